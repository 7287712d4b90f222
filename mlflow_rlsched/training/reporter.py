"""Report lines, and numbers out of whatever a training holds them in."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_rlsched.protocol import MAX_LINE_BYTES

log = logging.getLogger("mlflow_rlsched.training")


class Reporter:
    """Appends lines to ``report.jsonl``. A line that cannot be written is lost, never an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._torn = False
        self._warned = False

    def write(self, line: Mapping[str, Any]) -> None:
        """Append ``line`` with one system call, so that lines of several ranks never mix."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(data) > MAX_LINE_BYTES:
            self._warn(f"a report of {len(data)} bytes is above the limit of {MAX_LINE_BYTES}")
            return
        if self._torn:  # end the rest of a line that a full disk cut off
            data = b"\n" + data
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            self._torn = os.write(self._descriptor, data) < len(data)
        except OSError as error:
            self._warn(f"{self._path} cannot be written: {error.strerror}")

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("mlflow-rlsched: %s; the training goes on without this report", what)


def number(value: Any) -> float:
    """``value`` as a float; waits for the device that holds it.

    Args:
        value: A number, or a tensor or array of one element.

    Raises:
        TypeError: It is no number.
    """
    try:
        if hasattr(value, "detach"):
            return float(value.detach())
        if not isinstance(value, str | bytes):
            return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"expected a number or a tensor of one element, got {type(value).__name__}")


class LossProbe:
    """Reads the loss now and then without ever waiting for a device."""

    def __init__(self) -> None:
        self._pending: tuple[Any, Any] | None = None  # pinned host tensor, CUDA event

    def read(self, loss: Any) -> float | None:
        """The value of ``loss``; for one on a GPU, that of an earlier call once it has arrived.

        Raises:
            TypeError: It is no number.
        """
        if not getattr(loss, "is_cuda", False):
            return number(loss)
        value = None
        if self._pending is not None and self._pending[1].query():
            value = float(self._pending[0])
            self._pending = None
        if self._pending is None:
            self._pending = self._start_copy(loss)
        return value

    @staticmethod
    def _start_copy(loss: Any) -> tuple[Any, Any]:
        if loss.numel() != 1:
            raise TypeError(f"expected a loss of one element, got the shape {tuple(loss.shape)}")
        torch = sys.modules["torch"]
        with torch.cuda.device(loss.device):
            host = torch.empty((), dtype=torch.float32, pin_memory=True)
            host.copy_(loss.detach().reshape(()).float(), non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        return host, arrived
