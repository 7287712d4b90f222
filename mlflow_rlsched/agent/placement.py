"""Which waiting task gets which devices (pure functions).

Strict order: higher priority first, then older. A task that does not fit holds back those that
rank after it, so that none waits for ever; tasks that take no device pass. A run whose devices
are being changed goes before all of them: what it gave back for a moment is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import Demand, demand, suits
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, Task

RESIZED = "resized"
"""Class of the ending of an attempt that made way for one on another number of devices."""


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
    draining: Collection[str] = (),
) -> list[Grant]:
    """Grants for this moment.

    Args:
        tasks: Waiting tasks that may start now, by rank.
        configs: Configuration of a task.
        offered: Devices that a task's own limit allows, in the order to be tried.
        free: Hundredths free by device id.
        kind: Kind of this host's devices.
        draining: Run ids of tasks whose last attempt's devices are not empty yet.
    """
    left = dict(free)
    grants: list[Grant] = []
    blocked = False
    for task in sorted(tasks, key=lambda task: task.exit_reason != RESIZED):
        config = configs(task)
        wants = demand(config, task.spec.parent_attempt_dir is not None, kind, task.gpus)
        if wants.devices and blocked:
            continue
        if task.exit_reason == RESIZED and task.run_id in draining:
            blocked = True
            continue
        fitting = with_room(config, wants, offered(task), left)
        if wants.amount < 100:
            fitting.sort(key=lambda device: left[device])  # fill what is begun already
        chosen = fitting[: wants.devices]
        del chosen[len(chosen) - len(chosen) % wants.each :]
        if len(chosen) < wants.least:
            blocked = True
            continue
        for device_id in chosen:
            left[device_id] -= wants.amount
        shares = tuple(DeviceShare(device_id, wants.amount) for device_id in chosen)
        grants.append(Grant(task, shares))
    return grants


def with_room(
    config: RunConfig, wants: Demand, offered: Sequence[Device], free: Mapping[str, int]
) -> list[str]:
    """Of the offered devices, those that meet what a task requires and have room for it."""
    return [
        device.id
        for device in offered
        if free.get(device.id, 0) >= wants.amount and suits(device, config)
    ]


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
    asked = [
        configs(t).gpus.initial if t.gpus is None else t.gpus
        for t in ready
        if t.priority > LEARNING_PRIORITY
    ]
    return sum(asked) / max(1, devices)
