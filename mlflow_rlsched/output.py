"""Reading what the attempts of a run print (stdlib only)."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow_rlsched.protocol import MAX_READ_BYTES


class OutputFollower:
    """Reads the output of a run's attempts, one after the other, as it grows.

    Args:
        run_dir: The run directory; its attempts may still be to come.
        after: Number of the last attempt to leave out (those before a resumption).

    Attributes:
        attempt: Number of the attempt that was read last, ``after`` before the first.
    """

    def __init__(self, run_dir: Path, after: int = 0) -> None:
        self.attempt = after
        self._attempts = run_dir / "attempts"
        self._log: Path | None = None
        self._offset = 0

    def read(self) -> bytes:
        """What is new since the last call, at most ``MAX_READ_BYTES``; empty when nothing is."""
        while True:
            # Looked up before the reading: an attempt writes nothing once the next one exists.
            following = self._following()
            data = self._read()
            if data or following is None:
                return data
            self.attempt = following
            self._log = self._attempts / str(following) / "output.log"
            self._offset = 0

    def _following(self) -> int | None:
        try:
            names = os.listdir(self._attempts)
        except OSError:
            return None
        later = [int(name) for name in names if name.isdecimal() and int(name) > self.attempt]
        return min(later, default=None)

    def _read(self) -> bytes:
        if self._log is None:
            return b""
        try:
            with open(self._log, "rb") as file:
                file.seek(self._offset)
                data = file.read(MAX_READ_BYTES)
        except OSError:
            return b""
        self._offset += len(data)
        return data
