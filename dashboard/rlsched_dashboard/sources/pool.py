"""The pool over time: who held which devices when, who waited, and what is simulated."""

from __future__ import annotations

import heapq
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlflow_rlsched.config import ConfigError, pool_rules
from mlflow_rlsched.daemon import home
from mlflow_rlsched.sharing import is_shared
from mlflow_rlsched.store import State, Task
from mlflow_rlsched.words import short
from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.tracking import TrackedRun, TrackingError
from rlsched_dashboard.sources.usage import LOOKED_AT

FIGURES = ("finished", "workload", "policy", "avg_jct_s", "makespan_s", "gpu_hours", "restarts")
"""What a page says of a simulated workload."""

GRAIN_S = 15.0
"""What goes on reaches to the last such moment, so that charts do not change all the time."""

ELSEWHERE = "not in this store"
"""Row of runs that only MLflow knows: on which devices they were is not known."""


@dataclass(frozen=True)
class Hold:
    """A run's hold on a device.

    Attributes:
        run_id: The run, or "" where it is simulated.
        name: Its name.
        group: Whose it is: a user, or an application where it is simulated.
        device: The device.
        start: Seconds since the epoch, or since the begin of a workload.
        end: The same.
        devices: How many devices that is: a part of one, or several.
        ended: How it ended; "" while it goes on.
    """

    run_id: str
    name: str
    group: str
    device: str
    start: float
    end: float
    devices: float = 1.0
    ended: str = ""

    @property
    def device_s(self) -> float:
        """Device-seconds."""
        return self.devices * (self.end - self.start)


@dataclass(frozen=True)
class Wait:
    """A stretch of time in which a run waited for devices."""

    group: str
    start: float
    end: float


@dataclass(frozen=True)
class Pool:
    """What happened in a stretch of time.

    Attributes:
        start: Its start.
        end: Its end.
        devices: The devices, in their order.
        holds: What was held, what lies outside cut off.
        waits: Who waited, the same.
        weights: Fair share by user; 1 where there is none.
    """

    start: float
    end: float
    devices: Sequence[str]
    holds: Sequence[Hold]
    waits: Sequence[Wait]
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def groups(self) -> list[str]:
        """All users, or applications, that took part, the one that held most first."""
        held: dict[str, float] = defaultdict(float)
        for each in self.waits:
            held[each.group] += 0.0
        for hold in self.holds:
            held[hold.group] += hold.device_s
        return sorted(held, key=lambda group: (-held[group], group))


def real_pool(context: Context, length_s: float | None) -> tuple[Pool, TrackingError | None]:
    """What really happened.

    Args:
        context: The sources.
        length_s: How far to look back, seconds; None for all that is known.

    Returns:
        The pool, and why MLflow could not be asked, or None.

    Raises:
        StoreError: The store cannot be read.
        ValueError: The devices of this host cannot be told.
    """
    now = time.time() // GRAIN_S * GRAIN_S
    start = 0.0 if length_s is None else now - length_s
    tasks = [*context.scheduler.tasks([State.RUNNING, State.QUEUED])]
    tasks += context.scheduler.ended(LOOKED_AT)
    holds, waits = [], []
    for task in tasks:
        found, waited = _of_task(context, task, now)
        holds += found
        waits += waited
    trouble = None
    try:
        known = {task.run_id for task in tasks}
        runs = [run for run in context.tracking.runs()[:LOOKED_AT] if run.run_id not in known]
        holds += [hold for run in runs if (hold := _of_mlflow(run, now)) is not None]
    except TrackingError as error:
        trouble = error
    here = [row["id"] for row in context.scheduler.devices()]
    cut = [_cut(hold, start) for hold in holds if hold.end > start]
    waited = [Wait(w.group, max(w.start, start), w.end) for w in waits if w.end > start]
    starts = [hold.start for hold in cut] + [wait.start for wait in waited]
    first = min(starts, default=now - 3600)
    others = sorted({hold.device for hold in cut} - {*here, ELSEWHERE})
    last = [ELSEWHERE] * any(hold.device == ELSEWHERE for hold in cut)
    weights = _weights(context, tasks)
    last_end = max([now, *(hold.end for hold in cut), *(wait.end for wait in waited)])
    return Pool(first, last_end, [*here, *others, *last], cut, waited, weights), trouble


def _of_task(context: Context, task: Task, now: float) -> tuple[list[Hold], list[Wait]]:
    holds, waits = [], []
    name, user = task.spec.label or short(task.run_id), task.spec.user
    free_since: float | None = task.submitted_at
    for attempt in context.meter.attempts(task) if task.attempt else ():
        if free_since is not None and attempt.started_at > free_since:
            waits.append(Wait(user, free_since, attempt.started_at))
        free_since = attempt.ended_at
        end = attempt.ended_at or max(now, attempt.started_at)
        holds += [
            Hold(
                task.run_id,
                name,
                user,
                share.device,
                attempt.started_at,
                end,
                share.amount / 100,
                attempt.reason,
            )
            for share in attempt.devices
        ]
    if task.state is State.QUEUED and free_since is not None:
        waits.append(Wait(user, free_since, max(now, free_since)))
    return holds, waits


def _of_mlflow(run: TrackedRun, now: float) -> Hold | None:
    """The hold of a run that only MLflow knows; None where it says nothing of devices."""
    devices, waited = (
        run.metrics.get(f"rlsched/{name}", 0.0) for name in ("gpus", "queue_seconds")
    )
    if not devices or not math.isfinite(devices):
        return None
    start = run.started_at + (waited if math.isfinite(waited) else 0.0)
    end = run.ended_at or (start if run.is_over else now)
    ended = run.tags.get("rlsched.exit_reason", run.status.lower()) if run.is_over else ""
    name = run.name or short(run.run_id)
    return Hold(run.run_id, name, run.user, ELSEWHERE, start, max(start, end), devices, ended)


def _cut(hold: Hold, start: float) -> Hold:
    return replace(hold, start=max(hold.start, start))


def _weights(context: Context, tasks: Iterable[Task]) -> Mapping[str, float]:
    """Fair shares: an administrator's where users share the store, else of the newest run."""
    if is_shared(context.settings.store):
        try:
            return pool_rules().weights
        except ConfigError:
            return {}  # the agent says so
    newest = max(tasks, key=lambda task: task.submitted_at, default=None)
    found: Mapping[str, float] = newest.spec.config.get("weights", {}) if newest else {}
    return found


# Simulated workloads


class NoSimulationError(ValueError):
    """A file that holds no result of a simulation; the text says what to do."""


@dataclass(frozen=True)
class Simulation:
    """A replayed workload.

    Attributes:
        name: Of its file.
        pool: What happened in it; times in seconds of the workload.
        figures: ``FIGURES``, as ``rlsched simulate --json`` prints them.
    """

    name: str
    pool: Pool
    figures: Mapping[str, Any]


def simulations_folder() -> Path:
    """Where results of ``rlsched simulate --json`` are looked for."""
    return home() / "simulations"


def simulations() -> list[str]:
    """Names of the results that are there, the newest first."""
    found = simulations_folder().glob("*.json")
    return [path.stem for path in sorted(found, key=lambda path: -path.stat().st_mtime)]


def simulation(name: str) -> Simulation:
    """A simulated workload.

    Raises:
        NoSimulationError: The file holds none.
    """
    path = simulations_folder() / f"{name}.json"
    try:
        told = json.loads(path.read_bytes())
        pool = _simulated(told)
        figures = {key: told[key] for key in FIGURES}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise NoSimulationError(
            f"{path} holds no result of a simulation ({error!r}): write one by `rlsched simulate"
            f" … --json > {path}`"
        ) from error
    return Simulation(name, pool, figures)


def _simulated(told: Mapping[str, Any]) -> Pool:
    nodes, each = told["pool"]["nodes"], told["pool"]["gpus_per_node"]
    spans = [
        (span["start_s"], span["end_s"], job, int(node), count)
        for job in told["jobs"]
        for span in job["spans"]
        for node, count in span["held"].items()
    ]
    free: dict[int, list[int]] = {node: list(range(each)) for node in range(nodes)}
    busy: list[tuple[float, int, int]] = []
    holds = []
    for start, end, job, node, count in sorted(spans, key=lambda span: span[:2]):
        while busy and busy[0][0] <= start:
            _, its_node, slot = heapq.heappop(busy)
            heapq.heappush(free[its_node], slot)
        for _ in range(count):
            slot = heapq.heappop(free[node])
            heapq.heappush(busy, (end, node, slot))
            device = f"node {node} GPU {slot}"
            ended = "finished" if end == job["finished_s"] else "given others"
            holds.append(Hold("", job["name"], job["application"], device, start, end, 1.0, ended))
    devices = [f"node {node} GPU {slot}" for node in range(nodes) for slot in range(each)]
    waits = [wait for job in told["jobs"] for wait in _waits(job)]
    end = max(hold.end for hold in holds)
    return Pool(0.0, end, devices, holds, waits)


def _waits(job: Mapping[str, Any]) -> list[Wait]:
    since, found = job["submitted_s"], []
    for span in job["spans"]:
        if span["start_s"] > since:
            found.append(Wait(job["application"], since, span["start_s"]))
        since = span["end_s"]
    return found
