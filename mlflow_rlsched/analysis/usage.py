"""What runs held, and what that cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlflow_rlsched.agent.usage import hourly_price
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import Attempt, Task

SECONDS_OF_AN_HOUR = 3600


def held_s(attempt: Attempt, start: float, end: float) -> float:
    """Device-seconds of an attempt in a stretch of time, seconds since the epoch."""
    seconds = min(attempt.ended_at or math.inf, end) - max(attempt.started_at, start)
    return max(0.0, seconds) * sum(share.amount for share in attempt.devices) / 100


def device_price(
    task: Task, attempts: Sequence[Attempt], known: Mapping[str, Device]
) -> float | None:
    """Price of an hour of a device of a run, by its ``prices``; None without one.

    Args:
        task: The run.
        attempts: Its attempts.
        known: Devices of this host by id: the store does not keep their types.
    """
    prices = task.spec.config.get("prices") or {}
    ids = [share.device for attempt in attempts for share in attempt.devices]
    return hourly_price(prices, [known[each] for each in ids if each in known])


def cost(
    task: Task,
    attempts: Sequence[Attempt],
    known: Mapping[str, Device],
    start: float = -math.inf,
    end: float = math.inf,
) -> float | None:
    """What a run cost in a stretch of time, in the unit of its ``prices``; None without any.

    Attempts on devices that have no price, or are not of this host, are left out.
    """
    costs = [
        listed * held_s(attempt, start, end) / SECONDS_OF_AN_HOUR
        for attempt in attempts
        if (listed := device_price(task, [attempt], known)) is not None
    ]
    return sum(costs) if costs else None
