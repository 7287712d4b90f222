"""Ranks of a ``torch.distributed`` job: who they are, and how they agree on a directive."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from mlflow_rlsched.protocol import Directive

_ACTIONS = ("continue", "checkpoint", "stop")
_MAX_INTERVAL = 64


def _process_group() -> Any:
    """``torch.distributed`` when the training has set it up, else None."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist


def rank() -> int:
    """Rank of this process: before the process group exists, what torchrun says."""
    dist = _process_group()
    if dist is not None:
        return int(dist.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else 0


def world_size() -> int:
    """Ranks of the process group; 1 without one."""
    dist = _process_group()
    return 1 if dist is None else int(dist.get_world_size())


class Agreement:
    """Gives every rank the directive of rank 0 at the same step.

    Rank 0's directive is broadcast in the background over an own gloo group (so that no GPU is
    waited for) and obeyed at the next exchange, when it has long arrived everywhere. With each
    broadcast rank 0 says how many steps later that is, from the time its own steps take.

    Args:
        attempt: The attempt that the directives are for.
        interval_s: Wanted time between exchanges.
    """

    def __init__(self, attempt: int, interval_s: float) -> None:
        torch = sys.modules["torch"]
        self._dist = _process_group()
        self._attempt = attempt
        self._interval_s = interval_s
        self._group = self._dist.new_group(backend="gloo")
        self._message = torch.zeros(6, dtype=torch.float64)
        self._work: Any = None
        self._interval = 1
        self._left = 1
        self._exchanged_at = -math.inf  # until a step was timed, each has an exchange
        atexit.register(self._close)  # a gloo group that is left open may abort the exit

    @classmethod
    def join(cls, attempt: int, interval_s: float) -> Agreement | None:
        """An agreement of all ranks, each of which calls this; None for a job of one process."""
        return None if world_size() == 1 else cls(attempt, interval_s)

    def step(self, read: Callable[[], Directive | None]) -> Directive | None:
        """Count a step; at an exchange, return the directive that all ranks obey from now on.

        Args:
            read: Reads the newest directive; called on rank 0 only.
        """
        self._left -= 1
        if self._left > 0:
            return None
        agreed = self._receive()
        self._send(read() if rank() == 0 else None)
        self._left = self._interval
        return agreed

    def wait_for_all(self) -> None:
        """Return when every rank has called this."""
        self._dist.barrier(group=self._group)

    def _close(self) -> None:
        if _process_group() is not None:
            self._dist.destroy_process_group(self._group)

    def _receive(self) -> Directive | None:
        if self._work is None:
            return None
        self._work.wait()
        known, seq, batch, scale, action, interval = self._message.tolist()
        self._interval = int(interval)
        if not known:
            return None
        name = _ACTIONS[int(action)]
        return Directive(self._attempt, int(seq), int(batch) or None, scale, action=name)

    def _send(self, directive: Directive | None) -> None:
        now = time.monotonic()
        step_s = (now - self._exchanged_at) / self._interval
        self._exchanged_at = now
        interval = min(_MAX_INTERVAL, max(1, int(self._interval_s / max(step_s, 1e-6))))
        content = [0.0, 0.0, 0.0, 1.0, 0.0, float(interval)]
        if directive is not None:
            batch, action = directive.batch_size or 0, _ACTIONS.index(directive.action)
            content[:5] = [1.0, directive.seq, batch, directive.lr_scale, action]
        self._message.copy_(self._message.new_tensor(content))
        self._work = self._dist.broadcast(self._message, src=0, group=self._group, async_op=True)
