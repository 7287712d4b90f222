"""Runs beside each other: how far each was when, on an axis that they can share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.histories import History, Numbers
from rlsched_dashboard.sources.run import RunData, read_run
from rlsched_dashboard.sources.tracking import RunGone, TrackingError

MOST = 10
"""Runs that can be told apart in one chart."""

AXES = {"time": "Time", "samples": "Samples", "hours": "Device-hours"}
"""What runs can be drawn over."""

HOUR_S = 3600.0


@dataclass(frozen=True)
class Way:
    """How far a run was when: both ascending, of the same length.

    Attributes:
        times: Seconds since the epoch.
        places: Seconds, samples or device-hours since its start.
    """

    times: Numbers
    places: Numbers

    def at(self, times: Numbers) -> Numbers:
        """Places at points in time, (n,)."""
        return np.interp(times, self.times, self.places)


def read_runs(
    context: Context, run_ids: Sequence[str]
) -> tuple[list[RunData], list[str], TrackingError | None]:
    """What is known of runs.

    Returns:
        The runs, the ids of those that are gone, and why MLflow could not be asked, or None.
    """
    found, gone = [], []
    trouble = None
    for run_id in run_ids:
        try:
            found.append(read_run(context, run_id))
        except RunGone:
            gone.append(run_id)
        except TrackingError as error:
            trouble = error
    return found, gone, trouble


def held(data: RunData) -> list[tuple[float, float, float]]:
    """When a run held how many devices: start, end, devices; by its attempts."""
    return [
        (
            each.started_at,
            each.ended_at or time.time(),
            sum(share.amount for share in each.devices) / 100,
        )
        for each in data.attempts
    ]


def device_hours(context: Context, data: RunData) -> float | None:
    """Device-hours that a run took so far; None where nobody wrote down what it held."""
    way = way_of(context, data, "hours")
    return None if way is None else float(way.places[-1])


def way_of(context: Context, data: RunData, axis: str) -> Way | None:
    """How far a run was when, on one of ``AXES``; None where that was not recorded."""
    start = data.started_at
    if start is None:
        return None
    if axis == "samples":
        return _by_samples(data, start)
    if axis == "hours":
        return _by_hours(context, data)
    far = start + 10 * 365 * 24 * HOUR_S
    return Way(np.array([start, far]), np.array([0.0, far - start]))


def _by_samples(data: RunData, start: float) -> Way | None:
    known = [(r["time"], r["samples"]) for r in data.decisions if r["samples"] is not None]
    if not known:
        return None
    times, samples = np.array([(start, 0.0), *known]).T
    # A restart goes back to a checkpoint: what was seen before is not counted twice.
    return Way(times, np.maximum.accumulate(samples))


def _by_hours(context: Context, data: RunData) -> Way | None:
    stretches = held(data) or _held_by_metric(context, data)
    if not stretches:
        return None
    times, places, total = [], [], 0.0
    for start, end, devices in stretches:
        times += [start, max(start, end)]
        places += [total, total + devices * max(0.0, end - start) / HOUR_S]
        total = places[-1]
    return Way(np.array(times), np.array(places))


def _held_by_metric(context: Context, data: RunData) -> list[tuple[float, float, float]]:
    """The same for a run that only MLflow knows, from what it logged of its devices."""
    if data.tracked is None or "rlsched/gpus" not in data.metrics:
        return []
    try:
        history: History = context.tracking.history(data.run_id, "rlsched/gpus")
    except (TrackingError, RunGone):
        return []
    if not len(history):
        return []
    devices = np.where(np.isfinite(history.values), history.values, 0.0).tolist()
    end = data.tracked.ended_at or time.time()
    edges = [*history.times.tolist(), max(end, float(history.times[-1]))]
    return list(zip(edges, edges[1:], devices, strict=False))
