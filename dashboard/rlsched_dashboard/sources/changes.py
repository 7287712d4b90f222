"""Rows that many browsers watch: each is sent only what changed since it looked last."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class News:
    """What happened to rows since a revision.

    Attributes:
        revision: Where to go on from.
        added: Rows that are new.
        updated: Rows that are others now.
        removed: Keys of rows that are gone.
    """

    revision: int
    added: list[Row]
    updated: list[Row]
    removed: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.updated or self.removed)


class Changes:
    """Rows by key, and when each came, changed and went.

    Args:
        key: Field that tells rows apart.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._revision = 0
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, int] = {}
        self._lives: dict[str, list[tuple[int, float]]] = {}

    def take(self, rows: Iterable[Row]) -> int:
        """Take in all rows as they are now; the revision."""
        with self._lock:
            now = {str(row[self._key]): row for row in rows}
            if now == self._rows:
                return self._revision
            self._revision += 1
            for name in now.keys() - self._rows.keys():
                self._lives.setdefault(name, []).append((self._revision, math.inf))
            for name in self._rows.keys() - now.keys():
                self._lives[name][-1] = (self._lives[name][-1][0], self._revision)
            for name, row in now.items():
                if row != self._rows.get(name):
                    self._changed[name] = self._revision
            self._rows = now
            return self._revision

    def since(self, revision: int) -> News:
        """What happened after a revision."""
        with self._lock:
            there = {
                name
                for name, lives in self._lives.items()
                if any(came <= revision < went for came, went in lives)
            }
            fresh = [name for name in self._rows if self._changed[name] > revision]
            return News(
                self._revision,
                [self._rows[name] for name in fresh if name not in there],
                [self._rows[name] for name in fresh if name in there],
                sorted(there - self._rows.keys()),
            )
