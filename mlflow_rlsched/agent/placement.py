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
from mlflow_rlsched.store import DeviceShare, Task


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
