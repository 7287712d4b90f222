"""A file in which Optuna keeps studies, in the format of its own ``JournalFileBackend``.

Optuna's own forces each line to the disk, which makes a minute of seconds when thousands of past
runs become trials, and waits for half a minute for a writer that was killed. Here a line is one
append of the kernel, which readers see whole; what a power failure takes of the last seconds is
found again in MLflow. The rest of a line whose writer was killed, or found the disk full, is cut
off by the next one.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages.journal import BaseJournalBackend

from mlflow_rlsched import filelock

_LOOK_S = 0.001
_SETTLED_S = 0.05


class Journal(BaseJournalBackend):
    """Lines of JSON, in the order in which they were appended.

    Args:
        path: The file, made if absent; on a local file system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = [0]
        path.touch(mode=0o600)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """All lines from a number on."""
        number = min(log_number_from, len(self._offsets) - 1)
        at = self._offsets[number]
        with open(self._path, "rb") as file:
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                number, at = number + 1, at + len(line)
                if number == len(self._offsets):
                    self._offsets.append(at)
                if number > log_number_from:
                    yield self._parsed(line, number)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, all at once.

        Raises:
            OSError: Not all of it could be written; none of it counts.
        """
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            while not filelock.acquire(descriptor, 0, 1):
                time.sleep(_LOOK_S)
            _cut_off(descriptor)
            if os.write(descriptor, text) < len(text):
                _cut_off(descriptor)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            log = json.loads(line)
        except ValueError:
            log = None
        if not isinstance(log, dict):
            raise StorageInternalError(f"line {number} of {self._path} is damaged: take it out")
        return log


def _cut_off(descriptor: int) -> None:
    """Remove what follows the last whole line of a file."""
    size = _size(descriptor)
    while size and os.pread(descriptor, 1, size - 1) != b"\n":
        time.sleep(_SETTLED_S)
        before, size = size, _size(descriptor)
        if size == before:  # else Optuna's own, which takes no lock of ours, is writing
            rest = os.pread(descriptor, size, 0)
            os.ftruncate(descriptor, rest.rfind(b"\n") + 1)
            return


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size
