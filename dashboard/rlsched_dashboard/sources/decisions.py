"""Decisions of runs: from their directories while those are there, else from MLflow."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_rlsched import decision_log
from mlflow_rlsched.overview.whole import is_whole
from rlsched_dashboard.sources.tracking import Tracking

KEPT_RUNS = 200
AGAIN_S = 60.0
"""How often MLflow is asked again for the decisions of a run."""

UNUSED = ("history",)
"""Keys of a record of which pages show little, and that are most of it."""

Record = dict[str, Any]


@dataclass
class _Log:
    """What was read of a run's decisions, how far, and how many were no decisions."""

    records: list[Record] = field(default_factory=list)
    offset: int = 0
    spoilt: int = 0
    asked_at: float = -math.inf

    def take(self, found: Iterable[Record]) -> None:
        """Keep those of which pages can tell."""
        for record in found:
            if is_whole(record):
                self.records.append(_slim(record))
            else:
                self.spoilt += 1


class Decisions:
    """Reads each line once. Of its history a record keeps ``samples``, those seen so far.

    Args:
        tracking: Has the decisions of runs whose directories are gone or elsewhere.
    """

    def __init__(self, tracking: Tracking) -> None:
        self._tracking = tracking
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, _Log] = OrderedDict()

    def of(self, run_id: str, run_dir: Path | None) -> Sequence[Record]:
        """Decisions of a run so far, oldest first.

        Args:
            run_id: The run.
            run_dir: Its directory, None where there is none on this host.

        Raises:
            RunGone: It has no directory, and MLflow does not know it.
            TrackingError: It has no directory, and MLflow does not answer.
        """
        if run_dir is not None and (run_dir / decision_log.NAME).exists():
            return self.of_directory(run_id, run_dir)
        now = time.monotonic()
        with self._lock:
            log = self._log(run_id)
            if now - log.asked_at < AGAIN_S:
                return list(log.records)
        found = self._tracking.decisions(run_id)  # which nobody else should have to wait for
        with self._lock:
            log = self._logs[run_id] = _Log(asked_at=now)
            log.take(found)
            return list(log.records)

    def spoilt(self, run_id: str) -> int:
        """How many records of a run could not be used."""
        with self._lock:
            log = self._logs.get(run_id)
            return log.spoilt if log else 0

    def of_directory(self, run_id: str, run_dir: Path) -> Sequence[Record]:
        """The same from its directory alone; none where that is gone or elsewhere."""
        with self._lock:
            log = self._log(run_id)
            found, log.offset = decision_log.since(run_dir, log.offset)
            log.take(found)
            return list(log.records)

    def _log(self, run_id: str) -> _Log:
        log = self._logs.get(run_id) or _Log()
        self._logs[run_id] = log
        self._logs.move_to_end(run_id)
        while len(self._logs) > KEPT_RUNS:
            self._logs.popitem(last=False)
        return log


def _slim(record: Record) -> Record:
    known = {name: value for name, value in record.items() if name not in UNUSED}
    return known | {"samples": (record.get("history") or {}).get("samples")}
