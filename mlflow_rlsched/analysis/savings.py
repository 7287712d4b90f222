"""What tuning saved on runs against their first settings, with how sure that is.

What was done is what the useful progress of the decisions says. At its first setting a run would
have gone on as fast as it went there; so what was done afterwards would have taken that much longer
or less long. How fast it went there is known with an error, and with it what was saved: the scatter
of intervals at one and the same setting, over the root of their number at the first one. The first
interval does not count where others follow at that setting, as a training warms up in it.

What it does not see: what a learning rate is worth (but on the way to a target of the objective),
and what the queue, priorities or recovery brought.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from mlflow_rlsched.overview.decisions import changed

SURE = 1.96
"""Standard errors of an interval of 95 %."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Amount:
    """Something estimated, below 0 where it was lost.

    Attributes:
        value: The estimate.
        error: Its standard error.
    """

    value: float
    error: float

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - SURE * self.error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + SURE * self.error

    def times(self, factor: float) -> Amount:
        """In another unit."""
        return Amount(self.value * factor, self.error * abs(factor))


def total(amounts: Iterable[Amount]) -> Amount:
    """The sum of amounts whose errors have nothing to do with each other."""
    known = list(amounts)
    errors = math.sqrt(sum(each.error**2 for each in known))
    return Amount(sum(each.value for each in known), errors)


@dataclass(frozen=True)
class Saving:
    """What tuning saved on a run.

    Attributes:
        seconds: Running time.
        device_s: Device-seconds.
        intervals: Intervals at the first setting that it rests on.
    """

    seconds: Amount
    device_s: Amount
    intervals: int


def is_tuned(records: Iterable[Record]) -> bool:
    """Whether any decision changed anything."""
    return any(changed(record) for record in records)


def saving(
    records: Sequence[Record], start: float = -math.inf, end: float = math.inf
) -> Saving | None:
    """What a run's decisions saved; None where that cannot be told.

    That is so where nothing was changed, where its training tells no progress, and where it was
    never seen at one setting for two intervals.

    Args:
        records: All decisions on the run, oldest first.
        start: What was before does not count, seconds since the epoch.
        end: Nor what was afterwards.
    """
    rows = [record for record in records if record["terms"]["duration_s"] > 0]
    scatter = _scatter(rows) if is_tuned(rows) else None
    if scatter is None:
        return None
    first = rows[0]["before"]
    usual = [record for record in rows if record["before"] == first]
    usual = usual[1:] or usual
    speed = sum(map(_progress, usual)) / sum(map(_duration, usual))
    counted = [
        record for record in rows if record["before"] != first and start <= record["time"] < end
    ]
    if speed <= 0 or not counted:
        return None
    fixed_s = sum(map(_progress, counted)) / speed
    error = abs(fixed_s) * scatter / math.sqrt(len(usual))
    took_s = sum(map(_duration, counted))
    held_s = sum(_duration(record) * _gpus(record["before"]) for record in counted)
    return Saving(
        Amount(fixed_s - took_s, error),
        Amount(fixed_s * _gpus(first) - held_s, error * _gpus(first)),
        len(usual),
    )


def _scatter(rows: Sequence[Record]) -> float | None:
    """Relative standard deviation of the speed of intervals at one setting; None if unknown."""
    squares = []
    for before, after in pairwise(rows):
        one, other = (_progress(each) / _duration(each) for each in (before, after))
        if before["before"] == after["before"] and one + other > 0:
            squares.append(2 * ((one - other) / (one + other)) ** 2)
    return math.sqrt(fmean(squares)) if squares else None


def _progress(record: Record) -> float:
    return float(record["terms"]["progress"])


def _duration(record: Record) -> float:
    return float(record["terms"]["duration_s"])


def _gpus(setting: Mapping[str, Any]) -> int:
    return max(1, int(setting["gpus"]))
