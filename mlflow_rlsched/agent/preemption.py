"""Which running tasks make way for one that waits (pure).

Only for a higher priority, or among equals for a user who will hold no more by weight than whoever
gives; only what resumes, and at most ``MOST`` times a run. Runs that can go on with fewer devices
come first: they stop at a checkpoint like the others, and go on at once with what is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_rlsched.agent.placement import Scene
from mlflow_rlsched.agent.ranking import Ranking
from mlflow_rlsched.devices.demand import suits
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, Task

PREEMPTED = "preempted"
"""Class of the ending of an attempt whose devices were needed by another task."""

MOST = 3
"""Times that a run is preempted, at most."""


@dataclass(frozen=True)
class Runner:
    """A running task.

    Attributes:
        task: The task.
        shares: What it holds.
        least: Devices of these that it needs to go on.
        resumes: Whether it goes on from a checkpoint after a stop.
        leaves: Whether it was asked to stop already.
        preemptions: How often it was preempted so far.
        held_s: Seconds since its launch.
        quantum_s: How long its turn is, or None when it takes no turns.
    """

    task: Task
    shares: Sequence[DeviceShare]
    least: int
    resumes: bool
    leaves: bool
    preemptions: int
    held_s: float
    quantum_s: float | None


def first_of(waiting: Sequence[Task]) -> Task | None:
    """The first of waiting tasks for which others may have to make way; nobody does to learn."""
    return next((task for task in waiting if task.priority > LEARNING_PRIORITY), None)


def make_way(
    waiting: Sequence[Task], runners: Sequence[Runner], scene: Scene, ranking: Ranking
) -> list[Task]:
    """Running tasks that have to stop now.

    Args:
        waiting: Tasks that may start now and do not fit, in their order.
        runners: What runs.
        scene: What there is, after the grants of this pass.
        ranking: What each user holds, with these grants.
    """
    first = first_of(waiting)
    if first is None:
        return []
    learning = [r.task for r in runners if r.task.priority == LEARNING_PRIORITY]
    if learning or any(runner.leaves for runner in runners):
        return learning  # first see what that leaves
    lower = _lower(first, runners, scene, ranking)
    shrinking = [runner for runner in lower if runner.least < len(runner.shares)]
    return (
        enough(first, shrinking, scene, lambda runner: runner.shares[runner.least :])
        or enough(first, lower, scene, lambda runner: runner.shares)
        or []
    )


def _lower(first: Task, runners: Sequence[Runner], scene: Scene, ranking: Ranking) -> list[Runner]:
    """Those who may have to make way, in the order in which they do."""
    wants = scene.wants(first)
    served = ranking.served(first, wants.least * wants.amount)
    given: Counter[str] = Counter()
    found = []
    for runner in sorted(runners, key=lambda each: (each.task.priority, -each.task.order)):
        task = runner.task
        if not runner.resumes or not runner.shares or runner.preemptions >= MOST:
            continue
        if task.priority == first.priority and task.spec.user != first.spec.user:
            given[task.spec.user] += sum(share.amount for share in runner.shares)
            # Who has no weight takes from nobody.
            if math.isfinite(served) and ranking.served(task, -given[task.spec.user]) >= served:
                found.append(runner)
        elif task.priority < first.priority:
            found.append(runner)
    return found


def enough(
    first: Task,
    runners: Sequence[Runner],
    scene: Scene,
    given: Callable[[Runner], Sequence[DeviceShare]],
) -> list[Task] | None:
    """The first few of the runners whose devices are enough for a task; None when all are not.

    None of them where what is free is enough: then it waits for its turn only.
    """
    config, wants = scene.configs(first), scene.wants(first)
    suited = [device.id for device in scene.offered(first) if suits(device, config)]
    left = {device: scene.free.get(device, 0) for device in suited}
    room = {device for device, amount in left.items() if amount >= wants.amount}
    chosen: list[Task] = []
    if len(room) >= wants.devices:
        return chosen
    for runner in runners:
        gives = [share for share in given(runner) if share.device in left]
        if not gives:
            continue
        chosen.append(runner.task)
        for share in gives:
            left[share.device] += share.amount
            if left[share.device] >= wants.amount:
                room.add(share.device)
        if len(room) >= wants.devices:
            return chosen
    return None
