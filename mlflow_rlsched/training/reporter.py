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


_KNOWN = ("epoch", "progress", "grad_norm", "grad_sqr", "grad_var", "input_wait")


class Told:
    """What the training said and no line has yet."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._metrics: dict[str, float] = {}

    def metric(self, name: str, value: float) -> None:
        """A value of the training's own, or one of the names that every scheduler knows."""
        (self._fields if name in _KNOWN else self._metrics)[name] = value

    def fields(self, fields: Mapping[str, Any]) -> None:
        """Fields of the next line, as the protocol names them."""
        self._fields.update(fields)

    def take(self) -> dict[str, Any]:
        """The fields of a line; the next one starts anew."""
        taken = self._fields | ({"metrics": self._metrics} if self._metrics else {})
        self._fields, self._metrics = {}, {}
        return taken


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


class InputWait:
    """The part of the time that the input took, from line to line.

    Args:
        now: When the first part begins, as all times on a clock that only grows.
    """

    def __init__(self, now: float) -> None:
        self._waited: float | None = None
        self._since = now

    def add(self, seconds: float) -> None:
        """Count time that was waited."""
        self._waited = (self._waited or 0.0) + seconds

    def take(self, now: float) -> float | None:
        """That part, 0 to 1, since the last call; None where nothing was ever counted."""
        if self._waited is None:
            self._since = now
            return None
        part = min(1.0, self._waited / max(now - self._since, 1e-9))
        self._waited, self._since = 0.0, now
        return part


class HostCopy:
    """The values of a tensor on their way to the host; nobody waits for them."""

    def __init__(self, tensor: Any) -> None:
        self._host, self._arrived = tensor.detach(), None
        if tensor.is_cuda:
            torch = sys.modules["torch"]
            with torch.cuda.device(tensor.device):
                self._host = torch.empty(tensor.shape, dtype=torch.float32, pin_memory=True)
                self._host.copy_(tensor.detach(), non_blocking=True)
                self._arrived = torch.cuda.Event()
                self._arrived.record()

    def values(self) -> list[float] | None:
        """The values, flat; None while they are on their way."""
        if self._arrived is not None and not self._arrived.query():
            return None
        return list(map(float, self._host.reshape(-1).tolist()))


class Losses:
    """Mean of the losses of several steps; of losses on a GPU, one now and then.

    A loss that is not finite is counted and left out of the mean.
    """

    def __init__(self) -> None:
        self._pending: HostCopy | None = None
        self._sum, self._finite, self._nonfinite = 0.0, 0, 0
        self._wild = 0.0  # the last that was not finite

    def add(self, loss: Any) -> None:
        """Count the loss of a step, if looking at it costs nothing."""
        if isinstance(loss, float):
            self._count(loss)
        elif getattr(loss, "is_cpu", False) and loss.numel() == 1:
            self._count(loss.item())

    def take(self, loss: Any) -> dict[str, float]:
        """``loss`` and ``nonfinite_losses`` of a report line; the next line starts anew.

        Args:
            loss: That of the newest step; used when ``add`` could look at none. For one on a GPU
                the line has that of an earlier call once it has arrived.

        Raises:
            TypeError: ``loss`` is no number.
        """
        if self._finite + self._nonfinite == 0 and loss is not None:
            self._read(loss)
        line: dict[str, float] = {}
        if self._finite:
            line["loss"] = self._sum / self._finite
        if self._nonfinite:
            line = {"loss": self._wild, **line, "nonfinite_losses": self._nonfinite}
        self._sum, self._finite, self._nonfinite = 0.0, 0, 0
        return line

    def _count(self, value: float) -> None:
        if math.isfinite(value):
            self._sum += value
            self._finite += 1
        else:
            self._wild = value
            self._nonfinite += 1

    def _read(self, loss: Any) -> None:
        if not getattr(loss, "is_cuda", False):
            self._count(number(loss))
            return
        if self._pending is not None and (values := self._pending.values()) is not None:
            self._count(values[0])
            self._pending = None
        if self._pending is None:
            if loss.numel() != 1:
                raise TypeError(f"expected one element, got the shape {tuple(loss.shape)}")
            self._pending = HostCopy(loss)
