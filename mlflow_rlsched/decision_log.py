"""``decisions.jsonl`` of a run directory: the authoritative record of decisions (stdlib only).

One JSON object a line: what ``policy.decision.Decision.to_json`` holds, and ``attempt``, ``time``
(seconds since the epoch) and ``seq`` (of the directive that carries the setting). Only the agent
writes it. A line is written before its directive, so that whoever comes next knows the setting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAME = "decisions.jsonl"

_TAIL_BYTES = 256 * 1024


def append(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Add a line with one system call; what an earlier crash tore off is left as a line of its own.

    Raises:
        OSError: It cannot be written.
    """
    line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    descriptor = os.open(run_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def last(run_dir: Path) -> dict[str, Any] | None:
    """The newest whole record, or None."""
    return next((record for line in reversed(_tail(run_dir)) if (record := _parsed(line))), None)


def tail(run_dir: Path) -> list[dict[str, Any]]:
    """The newest whole records, a quarter of a megabyte of them, oldest first."""
    return [record for line in _tail(run_dir) if (record := _parsed(line))]


def read(run_dir: Path) -> Iterator[dict[str, Any]]:
    """All whole records, oldest first; none when there is no file, or another user's."""
    return (record for record in lines(run_dir) if record is not None)


def lines(run_dir: Path) -> Iterator[dict[str, Any] | None]:
    """The same, and None for each line that is torn or no record."""
    try:
        with open(run_dir / NAME, "rb") as file:
            for line in file:
                if line.strip():
                    yield _parsed(line)
    except (FileNotFoundError, PermissionError):
        return


def since(run_dir: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Whole records after ``offset`` bytes, oldest first, and the offset to go on from.

    A file that is shorter than ``offset`` is another one, and is read from its beginning; of one
    that is not there, or another user's, there are no records.
    """
    try:
        with open(run_dir / NAME, "rb") as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0
            file.seek(offset)
            data = file.read()
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    found = [record for line in whole.splitlines() if (record := _parsed(line))]
    return found, offset + len(whole)


def _tail(run_dir: Path) -> list[bytes]:
    try:
        with open(run_dir / NAME, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().splitlines()
    except OSError:
        return []


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("number"), int) else None
