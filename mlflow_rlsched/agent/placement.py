"""Which waiting task gets which devices (pure functions).

Strict order: higher priority first, then older. A task that does not fit holds back those that
rank after it, so that none waits for ever; tasks that take no device pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import demand, suits
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, Task


@dataclass(frozen=True)
class Grant:
    """A task that can start now, and on what."""

    task: Task
    shares: tuple[DeviceShare, ...]


def plan(
    tasks: Sequence[Task],
    configs: Callable[[Task], RunConfig],
    offered: Callable[[Task], Sequence[Device]],
    free: Mapping[str, int],
    kind: str,
) -> list[Grant]:
    """Grants for this moment.

    Args:
        tasks: Waiting tasks that may start now, by rank.
        configs: Configuration of a task.
        offered: Devices that a task's own limit allows, in the order to be tried.
        free: Hundredths free by device id.
        kind: Kind of this host's devices.
    """
    left = dict(free)
    grants: list[Grant] = []
    blocked = False
    for task in tasks:
        config = configs(task)
        wants = demand(config, task.spec.parent_attempt_dir is not None, kind)
        if wants.devices and blocked:
            continue
        fitting = [
            device.id
            for device in offered(task)
            if left.get(device.id, 0) >= wants.amount and suits(device, config)
        ]
        if wants.amount < 100:
            fitting.sort(key=lambda device: left[device])  # fill what is begun already
        chosen = fitting[: wants.devices]
        if len(chosen) < wants.devices:
            blocked = True
            continue
        for device_id in chosen:
            left[device_id] -= wants.amount
        shares = tuple(DeviceShare(device_id, wants.amount) for device_id in chosen)
        grants.append(Grant(task, shares))
    return grants


def make_way(ready: Sequence[Task], grants: Sequence[Grant], running: Sequence[Task]) -> list[Task]:
    """Running tasks that have to make way: those that learn, as soon as anybody waits.

    Args:
        ready: Waiting tasks that may start now.
        grants: What of them starts.
        running: Running tasks.
    """
    granted = {grant.task.run_id for grant in grants}
    waiting = [t for t in ready if t.run_id not in granted and t.priority > LEARNING_PRIORITY]
    return [task for task in running if task.priority == LEARNING_PRIORITY] if waiting else []


def pressure(ready: Sequence[Task], configs: Callable[[Task], RunConfig], devices: int) -> float:
    """Devices that waiting tasks ask for over those of the pool; learning presses nobody.

    Args:
        ready: Waiting tasks that may start now.
        configs: Configuration of a task.
        devices: Devices of the pool.
    """
    asked = [configs(t).gpus.initial for t in ready if t.priority > LEARNING_PRIORITY]
    return sum(asked) / max(1, devices)
