"""What runs took since a point in time, and what tuning saved, as far as that can be estimated."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_rlsched.analysis.savings import Amount, has_target, saving, total
from mlflow_rlsched.analysis.usage import cost, held_s
from mlflow_rlsched.store import Attempt, State, Task
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.scheduler import Scheduler

LOOKED_AT = 500
"""Tasks that are over, the newest, that are looked at."""

LATE_S = 60.0
"""How long after its end a run may still write a decision."""


@dataclass(frozen=True)
class Usage:
    """What was taken and saved since a point in time.

    Attributes:
        device_s: Device-seconds that runs held.
        cost: What those of runs with ``prices`` cost, in the unit of the prices; None without any.
        saved_s: Device-seconds that tuning saved; None where that is known of no run.
        tuned: Runs of which it is known.
    """

    device_s: float = 0.0
    cost: float | None = None
    saved_s: Amount | None = None
    tuned: int = 0


class Meter:
    """Measures use; attempts that are over are read once.

    Args:
        scheduler: Has the tasks and attempts.
        decisions: Have what was tuned.
    """

    def __init__(self, scheduler: Scheduler, decisions: Decisions) -> None:
        self._scheduler = scheduler
        self._decisions = decisions
        self._lock = threading.Lock()
        self._over: dict[tuple[str, int], Sequence[Attempt]] = {}
        self._saved: OrderedDict[tuple[str, int, float], Amount | None] = OrderedDict()

    def since(self, start: float, now: float) -> Usage:
        """Use from ``start`` until ``now``, seconds since the epoch."""
        device_s = 0.0
        costs: list[float] = []
        saved: list[Amount] = []
        for task in self._tasks(start):
            attempts = self.attempts(task)
            device_s += sum(held_s(attempt, start, now) for attempt in attempts)
            known = self._scheduler.known_devices() if task.spec.config.get("prices") else {}
            spent = cost(task, attempts, known, start, now)
            if spent is not None:
                costs.append(spent)
            if (by_tuning := self._saved_by_tuning(task, start, now)) is not None:
                saved.append(by_tuning)
        return Usage(
            device_s,
            sum(costs) if costs else None,
            total(saved) if saved else None,
            len(saved),
        )

    def _saved_by_tuning(self, task: Task, start: float, now: float) -> Amount | None:
        """Device-seconds that tuning a run saved; None where that cannot be told."""
        key = task.run_id, task.attempt, start
        if key in self._saved:
            return self._saved[key]
        records = self._decisions.of_directory(task.run_id, Path(task.spec.run_dir))
        found = saving(records, start, now, to_target=has_target(task))
        saved = None if found is None else found.device_s
        if task.state.final and now - (task.ended_at or now) > LATE_S:
            self._saved[key] = saved
            while len(self._saved) > 2 * LOOKED_AT:
                self._saved.popitem(last=False)
        return saved

    def _tasks(self, start: float) -> list[Task]:
        running = self._scheduler.tasks([State.RUNNING, State.QUEUED])
        over = self._scheduler.ended(LOOKED_AT)
        return [task for task in running if task.attempt] + [
            task for task in over if task.attempt and (task.ended_at or 0.0) >= start
        ]

    def attempts(self, task: Task) -> Sequence[Attempt]:
        """Attempts of a task; those of one that is over are read once."""
        key = task.run_id, task.attempt
        with self._lock:
            if key in self._over:
                return self._over[key]
            attempts = self._scheduler.attempts(task.run_id)
            if task.state.final:
                self._over[key] = attempts
            return attempts
