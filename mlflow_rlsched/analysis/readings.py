"""What the devices of a run said, from its metrics in MLflow."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

_NAME = re.compile(
    r"system/gpu_(?P<device>\d+(?:_mig_\w{4})?)_(?P<what>utilization_percentage"
    r"|memory_usage_percentage|power_usage_watts|energy_joules|throttled|temperature_celsius)"
)

Points = Sequence[tuple[float, float]]
"""(seconds since the epoch, value), by time."""


@dataclass(frozen=True)
class Readings:
    """Readings of all devices of a run together; None is "not recorded".

    Attributes:
        utilisation: Mean utilisation, 0 to 1.
        memory: Most that was used of a device's memory, 0 to 1.
        energy_j: Energy while they were held, joules: as the devices counted it, else their mean
            power over the time of their samples.
        watts: Mean power of a device.
        throttled: Part of the samples in which something held the clocks down, 0 to 1.
        celsius: Highest temperature.
    """

    utilisation: float | None = None
    memory: float | None = None
    energy_j: float | None = None
    watts: float | None = None
    throttled: float | None = None
    celsius: float | None = None


def read(client: MlflowClient, run_id: str, held: Sequence[tuple[float, float]]) -> Readings:
    """Readings of a run.

    Args:
        client: Of the tracking server.
        run_id: The run.
        held: When it held devices (start, end), by time; readings of no other time count.

    Raises:
        Exception: What MLflow's stores raise, of any kind.
    """
    found: dict[str, dict[str, Points]] = {}
    for name in client.get_run(run_id).data.metrics:
        match = _NAME.fullmatch(name)
        if match is not None:
            history = client.get_metric_history(run_id, name)
            points = sorted((each.timestamp / 1000, each.value) for each in history)
            kept = [point for point in points if _place(held, point[0]) is not None]
            if kept:
                found.setdefault(match["what"], {})[match["device"]] = kept
    power = found.get("power_usage_watts", {})
    return Readings(
        utilisation=_mean(found.get("utilization_percentage", {}), 0.01),
        memory=_most(found.get("memory_usage_percentage", {}), 0.01),
        energy_j=_energy(found.get("energy_joules", {}), power, held),
        watts=_mean(power),
        throttled=_mean(found.get("throttled", {})),
        celsius=_most(found.get("temperature_celsius", {})),
    )


def _place(held: Sequence[tuple[float, float]], time: float) -> int | None:
    """In which of the stretches a moment lies."""
    place = bisect_right([start for start, _ in held], time) - 1
    return place if place >= 0 and time <= held[place][1] else None


def _mean(devices: dict[str, Points], unit: float = 1.0) -> float | None:
    values = [value for points in devices.values() for _, value in points]
    return unit * fmean(values) if values else None


def _most(devices: dict[str, Points], unit: float = 1.0) -> float | None:
    values = [value for points in devices.values() for _, value in points]
    return unit * max(values) if values else None


def _energy(
    counters: dict[str, Points], power: dict[str, Points], held: Sequence[tuple[float, float]]
) -> float | None:
    """Joules of all devices; a device that has no counter counts with its power."""
    joules = [
        max(0.0, (last - first) if device in counters else (last + first) / 2 * (after - before))
        for device in {*counters, *power}
        for (before, first), (after, last) in pairwise(counters.get(device) or power[device])
        if _place(held, before) == _place(held, after)
    ]
    return sum(joules) if joules else None
