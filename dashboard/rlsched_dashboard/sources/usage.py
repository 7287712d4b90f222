"""What runs took since a point in time, and what tuning saved, as far as that can be estimated."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_rlsched.agent.usage import hourly_price
from mlflow_rlsched.overview.decisions import changed
from mlflow_rlsched.store import Attempt, State, Task
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.scheduler import Scheduler

LOOKED_AT = 500
"""Tasks that are over, the newest, that are looked at."""

LATE_S = 60.0
"""How long after its end a run may still write a decision."""

SECONDS_OF_AN_HOUR = 3600


@dataclass(frozen=True)
class Usage:
    """What was taken and saved since a point in time.

    Attributes:
        device_s: Device-seconds that runs held.
        cost: What those of runs with ``prices`` cost, in the unit of the prices; None without any.
        saved_s: Device-seconds that tuning saved, below 0 where it cost some; None where no run
            was tuned.
        tuned: Runs that were tuned.
    """

    device_s: float = 0.0
    cost: float | None = None
    saved_s: float | None = None
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
        self._saved: OrderedDict[tuple[str, int, float], float | None] = OrderedDict()

    def since(self, start: float, now: float) -> Usage:
        """Use from ``start`` until ``now``, seconds since the epoch."""
        device_s = 0.0
        costs: list[float] = []
        saved: list[float] = []
        for task in self._tasks(start):
            attempts = self.attempts(task)
            held_s = sum(_held_s(attempt, start, now) for attempt in attempts)
            device_s += held_s
            costs += self._costs(task, attempts, start, now)
            if (by_tuning := self._saved_s(task, start, now)) is not None:
                saved.append(by_tuning)
        return Usage(
            device_s,
            sum(costs) if costs else None,
            sum(saved) if saved else None,
            len(saved),
        )

    def _saved_s(self, task: Task, start: float, now: float) -> float | None:
        """Device-seconds that tuning a run saved; None where it was not tuned."""
        key = task.run_id, task.attempt, start
        if key in self._saved:
            return self._saved[key]
        known = self._decisions.of_directory(task.run_id, Path(task.spec.run_dir))
        saved = None
        if any(changed(record) for record in known):
            saved = saved_s([each for each in known if each["time"] >= start])
        if task.state.final and now - (task.ended_at or now) > LATE_S:
            self._saved[key] = saved
            while len(self._saved) > 2 * LOOKED_AT:
                self._saved.popitem(last=False)
        return saved

    def _costs(
        self, task: Task, attempts: Sequence[Attempt], start: float, now: float
    ) -> list[float]:
        """What each attempt cost, of those on devices of this host that have a price."""
        prices = task.spec.config.get("prices") or {}
        if not prices:
            return []
        known = self._scheduler.known_devices()
        costs = []
        for attempt in attempts:
            devices = [known[each.device] for each in attempt.devices if each.device in known]
            listed = hourly_price(prices, devices)
            if listed is not None:
                costs.append(listed * _held_s(attempt, start, now) / SECONDS_OF_AN_HOUR)
        return costs

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


def _held_s(attempt: Attempt, start: float, now: float) -> float:
    """Device-seconds of an attempt in a stretch of time."""
    seconds = min(attempt.ended_at or now, now) - max(attempt.started_at, start)
    return max(0.0, seconds) * sum(share.amount for share in attempt.devices) / 100


def saved_s(records: Iterable[dict[str, Any]]) -> float:
    """Device-seconds that a run's decisions saved against its first setting.

    What was done is what the useful progress says; at its first setting the run would have taken
    that part of its expected length (``total_s``) for it.
    """
    saved = 0.0
    for record in records:
        terms = record["terms"]
        gpus = max(1, record["before"]["gpus"])
        saved += terms["progress"] * terms["scales"]["total_s"] - terms["duration_s"] * gpus
    return saved
