"""Which waiting task gets which devices (pure functions).

Tasks come in the order of ``ranking``. The first that does not fit is promised the devices that are
free first; others may pass it as long as that costs it nothing: on devices that it will not use,
or when they are surely over by then. Tasks that take no device pass, and one that needs devices
that are out of order or a stranger's holds up nobody; nor does one whose user holds as many as the
quota allows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_rlsched.agent.forecast import Holding, Reservation, earliest
from mlflow_rlsched.agent.ranking import RESIZED, Ranking
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import Demand, demand, suits
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.devices.locks import WHOLE
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, Task


@dataclass(frozen=True)
class Grant:
    """A task that can start now, and on what."""

    task: Task
    shares: tuple[DeviceShare, ...]


@dataclass(frozen=True)
class Scene:
    """What a pass over the waiting tasks looks at.

    Attributes:
        configs: Configuration of a task.
        offered: Devices that a task's own limit allows, in the order to be tried.
        free: Hundredths free by device id.
        kind: Kind of this host's devices.
        holdings: What runs, and what is being emptied.
        draining: Run ids of tasks whose last attempt's devices are not empty yet.
        is_late: Whether a task waits longer than it was first promised, given what it is promised
            now in seconds: then nobody passes it any more.
        closed: Ids of devices that are in quarantine: who needs one of them holds back nobody.
    """

    configs: Callable[[Task], RunConfig]
    offered: Callable[[Task], Sequence[Device]]
    free: Mapping[str, int]
    kind: str
    holdings: Sequence[Holding] = ()
    draining: Collection[str] = ()
    is_late: Callable[[Task, float], bool] = lambda task, in_s: False
    closed: Collection[str] = ()

    def wants(self, task: Task) -> Demand:
        """What a task asks for."""
        nested = task.spec.parent_attempt_dir is not None
        return demand(self.configs(task), nested, self.kind, task.gpus)


@dataclass(frozen=True)
class Plan:
    """What a pass over the waiting tasks found.

    Attributes:
        grants: Tasks that start now.
        waiting: Those that wait for devices, in their order; not those that their quotas hold back.
        scene: What there is after the grants.
        kinds: Of those who wait the first of each kind, as far as others may pass those before it:
            tasks of one kind have the same user, priority and demand, so all of them have to wait
            where the first has to.
        promised: What the first of these that is promised anything can count on.
        promised_to: That task.
    """

    grants: Sequence[Grant]
    waiting: Sequence[Task]
    scene: Scene
    kinds: Sequence[Task] = ()
    promised: Reservation | None = None
    promised_to: Task | None = None


def plan(ranking: Ranking, scene: Scene) -> Plan:
    """What starts at this moment; the ranking is told of it."""
    left, holdings = dict(scene.free), list(scene.holdings)
    grants: list[Grant] = []
    waiting: list[Task] = []
    kinds: list[Task] = []
    first: Reservation | None = None  # of the first task that does not fit
    first_task: Task | None = None
    unfit: set[Hashable] = set()  # what did not fit will not: devices only become fewer
    for task in ranking:
        config, wants = scene.configs(task), scene.wants(task)
        blocked = first is not None and not first.devices
        if task.priority == LEARNING_PRIORITY:  # it would have to make way at once
            blocked = first is not None or bool(waiting)
        if wants.devices and blocked:
            kinds += [] if kinds else [task]
            waiting.append(task)
            continue
        if task.exit_reason == RESIZED and task.run_id in scene.draining:
            first = Reservation(math.inf)
            continue
        is_in_the_way = first is not None and stays(config, first)
        limit = task.spec.device_limit
        asks = (wants, config.requires, config.gpu_fraction, limit and tuple(limit))
        kind = (task.spec.user, task.priority, asks, is_in_the_way)
        if kind in unfit:
            waiting.append(task)
            continue
        allowed = within_quota(config, wants, task.spec.user, ranking.held(task.spec.user))
        if allowed < wants.least:
            continue
        fitting = with_room(config, wants, scene.offered(task), left)
        if first is not None and is_in_the_way:
            fitting = [device for device in fitting if device.id not in first.devices]
        count = min(len(fitting), wants.devices, allowed)
        count -= count % wants.each
        if count < wants.least:
            if first is None:
                first = _promised(task, wants, scene, left, holdings)
                first_task = task if first is not None else None
            unfit.add(kind)
            kinds.append(task)
            waiting.append(task)
            continue
        chosen = _chosen(fitting, count, left)
        for device in chosen:
            left[device.id] -= wants.amount
        ranking.give(task, wants.amount * count)
        shares = tuple(DeviceShare(device.id, wants.amount) for device in chosen)
        grants.append(Grant(task, shares))
        holdings.append(Holding(task.run_id, shares, config.timeout_s or math.inf))
    return Plan(grants, waiting, replace(scene, free=left), kinds, first, first_task)


def stays(config: RunConfig, promised: Reservation) -> bool:
    """Whether a run could hold its devices still when another is to have what it is promised."""
    return math.isinf(promised.in_s) or (config.timeout_s or math.inf) > promised.in_s


def _chosen(fitting: Sequence[Device], count: int, left: Mapping[str, int]) -> list[Device]:
    """Which of the devices with room a task gets: those that are begun already first."""
    begun = sorted((d for d in fitting if left[d.id] < WHOLE), key=lambda d: left[d.id])[:count]
    return [*begun, *nearest([d for d in fitting if left[d.id] == WHOLE], count - len(begun))]


def nearest(devices: Sequence[Device], count: int) -> list[Device]:
    """Some of the devices: well connected, and so that what is left is as little broken up.

    Those of the innermost group that suffices; of several such groups the one with the fewest
    devices (best fit), which is in the group with the fewest, and so on. Its devices are on as few
    groups within it as can be, and in each the same again.

    Args:
        devices: At least as many as wanted.
        count: How many.
    """
    if count in (0, len(devices)):
        return list(devices[:count])
    depth = len(devices[0].groups)
    sizes = Counter(d.groups[:level] for d in devices for level in range(depth + 1))
    level = max(len(group) for group, size in sizes.items() if size >= count)
    fitting = [d for d in devices if sizes[d.groups[:level]] >= count]
    best = min(fitting, key=lambda d: [sizes[d.groups[:n]] for n in range(level, -1, -1)])
    within = [d for d in devices if d.groups[:level] == best.groups[:level]]
    if level == depth:
        return within[:count]
    # Needs numpy, which commands that only look at the queue would have to wait for.
    from mlflow_rlsched.policy.allocation import place

    members: dict[int, list[Device]] = {}
    for device in within:
        members.setdefault(device.groups[level], []).append(device)
    (found,) = place([count], [{}], {group: len(some) for group, some in members.items()})
    return [device for group, some in found.items() for device in nearest(members[group], some)]


def _promised(
    task: Task,
    wants: Demand,
    scene: Scene,
    left: Mapping[str, int],
    holdings: Sequence[Holding],
) -> Reservation | None:
    """What a task that does not fit can count on; None while devices that it needs are missing.

    Where it is not known when it can start, any device that suits it may be the one that it gets:
    others pass on the rest. Nobody passes one that is late.
    """
    config, offered = scene.configs(task), scene.offered(task)
    suited = [d.id for d in offered if suits(d, config) and d.id not in scene.closed]
    found = earliest(wants, suited, left, holdings)
    if math.isinf(found.in_s) and not found.after:
        return None
    if scene.is_late(task, found.in_s):
        return Reservation(math.inf)
    return replace(found, devices=suited) if math.isinf(found.in_s) else found


def within_quota(config: RunConfig, wants: Demand, user: str, held: int) -> int:
    """Devices that a task may be given by its user's quota, at most as many as it wants.

    Args:
        config: The task's configuration.
        wants: What it wants.
        user: Its user.
        held: Hundredths of devices that the user's tasks hold.
    """
    if user not in config.quotas or not wants.devices:
        return wants.devices
    left = 100 * config.quotas[user] - held
    return min(wants.devices, max(0, left // wants.amount))


def with_room(
    config: RunConfig, wants: Demand, offered: Sequence[Device], free: Mapping[str, int]
) -> list[Device]:
    """Of the offered devices, those that meet what a task requires and have room for it."""
    return [
        device
        for device in offered
        if free.get(device.id, 0) >= wants.amount and suits(device, config)
    ]


def pressure(ready: Sequence[Task], configs: Callable[[Task], RunConfig], devices: int) -> float:
    """Devices that waiting tasks ask for over those of the pool; learning presses nobody.

    Args:
        ready: Waiting tasks that may start now.
        configs: Configuration of a task.
        devices: Devices of the pool.
    """
    asked = [
        configs(t).gpus.initial if t.gpus is None else t.gpus
        for t in ready
        if t.priority > LEARNING_PRIORITY
    ]
    return sum(asked) / max(1, devices)
