"""How fast the loss falls since the learning rate last changed, and how sure that is.

A loss falls about as a power of the samples seen (Hestness et al. 2017, "Deep Learning Scaling is
Predictable, Empirically"), so its speed is that power, -d log(loss) / d log(samples), here of the
loss over its level when the rate changed, so that a loss may be below 0. It is the slope of a
regression over the mean losses of all intervals since then; its sums stand in the notes of the
history, under names that begin with ``speed.``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval

SETTLING = 1
"""Intervals after a change that are left out: the loss follows the noise of the new rate."""

_PREFIX = "speed."
_SUMS = ("n", "x", "y", "xx", "xy", "yy")
_SURE_OF = 3  # points from which the line has an error


class Speed(NamedTuple):
    """A speed, its standard error, and the intervals that it rests on."""

    value: float
    error: float
    intervals: int


def heard(interval: Interval, history: History) -> dict[str, float]:
    """All notes of the history, with the losses of an interval."""
    notes = dict(history.notes)
    if notes.get("speed.changed") != history.lr_changed_at:
        notes |= {"speed.changed": history.lr_changed_at, "speed.skipped": 0.0}
        notes |= dict.fromkeys((_PREFIX + name for name in _SUMS), 0.0)
    told = interval.losses()
    if not told or not history.samples or history.samples <= 0:
        return notes
    loss, place = fmean(told), math.log(history.samples)
    if notes["speed.skipped"] < SETTLING:
        return notes | {"speed.skipped": notes["speed.skipped"] + 1}
    if not notes["speed.n"]:
        notes |= {"speed.x0": place, "speed.y0": max(abs(loss), 1e-12)}
    x, y = place - notes["speed.x0"], loss / notes["speed.y0"]
    for name, more in zip(_SUMS, (1.0, x, y, x * x, x * y, y * y), strict=True):
        notes[_PREFIX + name] += more
    return notes


def level_of(notes: Mapping[str, float], samples: float) -> float:
    """The loss on the line through those since the change, of which there are two, at a place."""
    n, x, y = (notes[_PREFIX + name] for name in ("n", "x", "y"))
    place = math.log(samples) - notes["speed.x0"]
    return notes["speed.y0"] * (y / n - speed_of(notes).value * (place - x / n))


def speed_of(notes: Mapping[str, float]) -> Speed:
    """What the notes come to; an infinite error as long as they say nothing."""
    n, x, y, xx, xy, yy = (notes.get(_PREFIX + name, 0.0) for name in _SUMS)
    unknown = Speed(0.0, math.inf, int(n))
    if n < _SURE_OF:
        return unknown
    spread = xx - x * x / n
    if spread <= 0:
        return unknown
    slope = (xy - x * y / n) / spread
    left = max(yy - y * y / n - slope * slope * spread, 0.0)
    # Few points err by more than their spread says: the width of Student's distribution.
    width = 1 + 2 / (n - 2)
    return Speed(-slope, width * math.sqrt(left / (n - 2) / spread), int(n))
