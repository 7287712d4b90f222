"""The attempt that a process belongs to, and what is asked of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_rlsched.protocol import Directive

log = logging.getLogger("mlflow_rlsched.training")


@dataclass(frozen=True)
class Attempt:
    """The attempt that this process belongs to, as its environment says.

    Attributes:
        number: Its number.
        folder: Its directory.
        checkpoints: Folder of the run's checkpoints.
        gpus: Devices that it holds.
        memory_cap: Most memory of each device that it may use, bytes, or None.
    """

    number: int
    folder: Path
    checkpoints: Path
    gpus: int
    memory_cap: int | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Attempt | None:
        """None outside a scheduled run."""
        folder = environ.get("RLSCHED_ATTEMPT_DIR")
        if not folder:
            return None
        number = environ.get("RLSCHED_ATTEMPT", "")
        gpus = environ.get("RLSCHED_NUM_GPUS", "")
        checkpoints = environ.get("RLSCHED_CHECKPOINT_DIR")
        if not number.isdigit() or not checkpoints or not Path(folder).is_dir():
            log.warning(
                "mlflow-rlsched: RLSCHED_ATTEMPT_DIR=%s is no folder of a running attempt; "
                "the training goes on as if it was not scheduled",
                folder,
            )
            return None
        cap = environ.get("RLSCHED_MEMORY_CAP_BYTES", "")
        return cls(
            int(number),
            Path(folder),
            Path(checkpoints),
            int(gpus) if gpus.isdigit() else 0,
            int(cap) if cap.isdigit() else None,
        )

    def superseded(self) -> bool:
        """Whether this attempt was given up, or a later one exists."""
        if (self.folder / "void").exists():
            return True
        try:
            names = os.listdir(self.folder.parent)
        except OSError:
            return False
        return any(name.isdigit() and int(name) > self.number for name in names)


class Mail:
    """What is asked of an attempt; ``directive.json`` is read only when it was replaced."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._signature: tuple[int, int, int] | None = None
        self._directive: Directive | None = None

    def read(self) -> Directive | None:
        """The newest directive; a stop when the attempt is superseded."""
        try:
            stat = os.stat(self._attempt.folder / "directive.json")
        except OSError:
            stat = None
        if stat is not None:
            signature = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if signature != self._signature:
                self._signature = signature
                self._directive = (
                    Directive.read(self._attempt.folder, self._attempt.number) or self._directive
                )
        if self._attempt.superseded():
            current = self._directive or Directive(self._attempt.number)
            return replace(current, action="stop", reason="another attempt has taken over")
        return self._directive
