"""A file in which Optuna keeps studies, in the format of its own ``JournalFileBackend``.

Optuna's own forces each line to the disk, which makes a minute of seconds when thousands of past
runs become trials, and waits for half a minute for a writer that was killed. Here a line is one
append of the kernel, which readers see whole; what a power failure takes of the last seconds is
found again in MLflow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend


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
                    yield json.loads(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, all at once."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
