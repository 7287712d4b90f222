"""Tasks that wait, timed by the agent's own clock.

The store holds wall-clock times, since they must outlive the agent; a wall clock that jumps
may neither end a task that waits nor keep it from being tried again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from mlflow_rlsched.agent.recovery import longest_delay
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.store import Ending, State, Task


@dataclass(frozen=True)
class _Wait:
    """Since when a task waits for its next attempt and when that may start (monotonic)."""

    attempt: int
    since: float
    ready_at: float


class Waiting:
    """What the agent remembers of the tasks that it saw waiting."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}
        self._promises: dict[str, float] = {}
        self._looked_at = 0.0

    def look(self) -> None:
        """Note that all waiting tasks are looked at now."""
        self._looked_at = time.monotonic()

    def see(self, task: Task, config: RunConfig) -> bool:
        """Note a queued task; whether it is seen for the first time since its last attempt."""
        known = self._waits.get(task.run_id)
        if known is not None and known.attempt == task.attempt:
            return False
        wall, now = time.time(), time.monotonic()
        # After an attempt the wait begins anew, now; before the first, with the submission.
        waited = max(0.0, wall - task.submitted_at) if task.attempt == 0 else 0.0
        delay = min(max(0.0, task.not_before - wall), longest_delay(config))
        ready_at = now + delay if delay else 0.0
        self._waits[task.run_id] = _Wait(task.attempt, now - waited, ready_at)
        return True

    def waited_s(self, task: Task) -> float:
        """Seconds that a task has waited for its next attempt, as far as it was seen."""
        known = self._waits.get(task.run_id)
        return 0.0 if known is None else time.monotonic() - known.since

    def is_late(self, task: Task, promised_s: float) -> bool:
        """Whether a task waits longer than it was first promised.

        Args:
            task: The task.
            promised_s: Seconds in which it can start by what is known now; infinite is no promise.
        """
        now = time.monotonic()
        if math.isfinite(promised_s):
            self._promises.setdefault(task.run_id, now + promised_s)
        return now > self._promises.get(task.run_id, math.inf)

    def is_overdue(self, task: Task, config: RunConfig) -> bool:
        """Whether a task that was seen waits longer than its ``queue_timeout_s``."""
        limit = config.queue_timeout_s
        return limit is not None and time.monotonic() - self._waits[task.run_id].since > limit

    def end_of(
        self, task: Task, config: RunConfig, deleted: Collection[str], running: Collection[str]
    ) -> Ending | None:
        """Why a task that was seen is over before it starts, if it is.

        Args:
            task: The task.
            config: Its configuration.
            deleted: Runs that were deleted in MLflow.
            running: Runs that go on.
        """
        if task.cancel_by is not None:
            return Ending(State.KILLED, "cancelled", f"cancelled by {task.cancel_by}")
        if task.run_id in deleted:
            return Ending(State.KILLED, "run_deleted", "the MLflow run was deleted")
        parent = task.spec.parent_run_id
        if task.spec.parent_attempt_dir is not None and parent not in running:
            return Ending(State.KILLED, "parent_ended", "the run that it was nested in has ended")
        if self.is_overdue(task, config):
            text = f"it waited longer than queue_timeout_s ({config.queue_timeout_s:g} s)"
            return Ending(State.FAILED, "queue_timeout", text)
        return None

    def is_ready(self, task: Task) -> bool:
        """Whether a retry's delay is over, for a task that was seen."""
        return time.monotonic() >= self._waits[task.run_id].ready_at

    def next_look_s(self) -> float | None:
        """Seconds until the first delay is over that was not at the last look, None without."""
        ends = [w.ready_at for w in self._waits.values() if w.ready_at > self._looked_at]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def forget(self, run_id: str) -> None:
        """Forget a task that started or ended."""
        self._waits.pop(run_id, None)
        self._promises.pop(run_id, None)
