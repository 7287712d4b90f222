"""Which running tasks make way for one that waits (pure).

The first who waits comes first. Where nobody can make way for that one, others are looked at, each
with its own right: somebody makes way for one of them if it would get the devices.

Only for a higher priority, or among equals for a user who will hold no more by weight than whoever
gives; only what resumes, and at most ``MOST`` times a run. Runs that can go on with fewer devices
come first: they stop at a checkpoint like the others, and go on at once with what is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from mlflow_rlsched.agent.placement import Plan, Scene, plan, stays
from mlflow_rlsched.agent.ranking import Ranking
from mlflow_rlsched.devices.demand import suits
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, Task

PREEMPTED = "preempted"
"""Class of the ending of an attempt whose devices were needed by another task."""

MOST = 3
"""Times that a run is preempted, at most."""

MOST_KINDS = 16
"""Kinds of waiting tasks that are looked at in a pass, so that it is short whoever waits."""


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


@dataclass(frozen=True)
class Way:
    """Who makes way for whom.

    Attributes:
        task: The task that waits.
        runners: Running tasks that have to stop now.
    """

    task: Task
    runners: Sequence[Task]


def first_of(waiting: Sequence[Task]) -> Task | None:
    """The first of waiting tasks for which others may have to make way; nobody does to learn."""
    return next((task for task in waiting if task.priority > LEARNING_PRIORITY), None)


def make_way(found: Plan, runners: Sequence[Runner], ranking: Ranking) -> Way | None:
    """Who has to stop now, and for whom; None when nobody has.

    Args:
        found: The plan of this pass.
        runners: What runs.
        ranking: What each user holds, with the grants of this pass.
    """
    first = first_of(found.waiting)
    if first is None:
        return None
    learning = [r.task for r in runners if r.task.priority == LEARNING_PRIORITY]
    if learning or any(runner.leaves for runner in runners):
        return Way(first, learning)  # first see what that leaves
    runners = sorted(runners, key=lambda each: (each.task.priority, -each.task.order))
    kept: Collection[str] = ()
    for place, task in enumerate(found.kinds[:MOST_KINDS]):
        if task.priority == LEARNING_PRIORITY:
            break
        promised = found.promised
        in_the_way = promised is not None and stays(found.scene.configs(task), promised)
        without = kept if in_the_way else ()
        lower = _lower(task, runners, found.scene, ranking)
        shrinking = [runner for runner in lower if runner.least < len(runner.shares)]
        for some, given in ((shrinking, _spare), (lower, all_of)):
            chosen = enough(task, some, found.scene, given, without)
            if chosen and _gets(task, found.kinds[:place], chosen, given, found.scene, ranking):
                return Way(task, [runner.task for runner in chosen])
        if promised is not None and task is found.promised_to:
            kept = promised.devices
    return None


def _spare(runner: Runner) -> Sequence[DeviceShare]:
    """What a runner gives that goes on with fewer devices."""
    return runner.shares[runner.least :]


def all_of(runner: Runner) -> Sequence[DeviceShare]:
    """What a runner gives that stops."""
    return runner.shares


def _gets(
    task: Task,
    before: Sequence[Task],
    runners: Sequence[Runner],
    given: Callable[[Runner], Sequence[DeviceShare]],
    scene: Scene,
    ranking: Ranking,
) -> bool:
    """Whether a waiting task, and none that comes before it, gets what these runners would give."""
    after, free = ranking.copy([*before, task]), dict(scene.free)
    gives = {runner.task.run_id: given(runner) for runner in runners}
    for runner in runners:
        after.give(runner.task, -sum(share.amount for share in gives[runner.task.run_id]))
        for share in gives[runner.task.run_id]:
            free[share.device] = free.get(share.device, 0) + share.amount
    holdings = [
        replace(holding, shares=[s for s in holding.shares if s not in gives[holding.run_id]])
        if holding.run_id in gives
        else holding
        for holding in scene.holdings
    ]
    then = replace(scene, free=free, holdings=holdings, is_late=lambda task, in_s: False)
    return [grant.task for grant in plan(after, then).grants] == [task]


def _lower(first: Task, runners: Sequence[Runner], scene: Scene, ranking: Ranking) -> list[Runner]:
    """Those of the runners who may have to make way, in their order."""
    wants = scene.wants(first)
    served = ranking.served(first, wants.least * wants.amount)
    given: Counter[str] = Counter()
    found = []
    for runner in runners:
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
    without: Collection[str] = (),
) -> list[Runner] | None:
    """The first few of the runners whose devices are enough for a task; None when all are not.

    None of them where what is free is enough: then it waits for its turn only.

    Args:
        first: The task.
        runners: The runners.
        scene: What there is.
        given: What a runner would give.
        without: Ids of devices that are another's.
    """
    config, wants = scene.configs(first), scene.wants(first)
    offered = (device for device in scene.offered(first) if device.id not in without)
    suited = [device.id for device in offered if suits(device, config)]
    left = {device: scene.free.get(device, 0) for device in suited}
    room = {device for device, amount in left.items() if amount >= wants.amount}
    chosen: list[Runner] = []
    if len(room) >= wants.devices:
        return chosen
    for runner in runners:
        gives = [share for share in given(runner) if share.device in left]
        if not gives:
            continue
        chosen.append(runner)
        for share in gives:
            left[share.device] += share.amount
            if left[share.device] >= wants.amount:
                room.add(share.device)
        if len(room) >= wants.devices:
            return chosen
    return None
