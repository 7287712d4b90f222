"""What tuning saved on runs against their first settings, with how sure that is.

What was done is what the useful progress of the decisions says. At its first setting a run would
have gone on as fast as it went there; so what was done afterwards would have taken that much longer
or less long. How fast it went there is known with an error, and with it what was saved: the scatter
of intervals at one and the same setting, over the root of their number at the first one. The first
interval does not count where others follow at that setting, as a training warms up in it.

A learning rate changes what a sample is worth, and no speed tells that. So it is part of the
setting only where progress is the way to a target of the objective; a run of which nothing but the
rate was changed tells nothing else. Nor is it seen what the queue, priorities or recovery brought.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from scipy.stats import t as student  # type: ignore[import-untyped]

from mlflow_rlsched.overview.decisions import changed
from mlflow_rlsched.store import Task

SURE = 1.96
"""Standard errors of an interval of 95 %."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Amount:
    """Something estimated, below 0 where it was lost.

    Attributes:
        value: The estimate.
        error: Its standard error; where few intervals tell it, so much more that ``SURE`` of it is
            an interval of 95 % (Student).
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


def has_target(task: Task) -> bool:
    """Whether the progress of a run is the way to a target of its objective."""
    return (task.spec.config.get("objective") or {}).get("target") is not None


def saving(
    records: Sequence[Record],
    start: float = -math.inf,
    end: float = math.inf,
    *,
    to_target: bool = False,
) -> Saving | None:
    """What a run's decisions saved; None where that cannot be told.

    That is so where nothing that it would show in was changed, where its training tells no
    progress, and where it was never seen at one setting for two intervals.

    Args:
        records: All decisions on the run, oldest first.
        start: What was before does not count, seconds since the epoch.
        end: Nor what was afterwards.
        to_target: Whether progress is the way to a target of the objective.
    """
    rows = [
        Interval.of(record, to_target) for record in records if record["terms"]["duration_s"] > 0
    ]
    usual = [row for row in rows if row.setting == rows[0].setting]
    usual = usual[1:] or usual
    counted = [row for row in rows if row.setting != rows[0].setting and start <= row.time < end]
    squares = _squares(rows)
    if not counted or not squares:
        return None
    speed = sum(row.progress for row in usual) / sum(row.seconds for row in usual)
    if speed <= 0:
        return None
    wider = float(student.ppf(0.975, len(squares))) / SURE
    scatter = wider * math.sqrt(fmean(squares))
    fixed_s = sum(row.progress for row in counted) / speed
    error = abs(fixed_s) * scatter / math.sqrt(len(usual))
    took_s = sum(row.seconds for row in counted)
    held_s = sum(row.seconds * row.gpus for row in counted)
    gpus = rows[0].gpus
    return Saving(
        Amount(fixed_s - took_s, error),
        Amount(fixed_s * gpus - held_s, error * gpus),
        len(usual),
    )


@dataclass(frozen=True)
class Interval:
    """What a decision tells of the interval that ended with it.

    Attributes:
        setting: What it was at, as far as that shows in its progress.
        gpus: Devices.
        time: Its end, seconds since the epoch.
        seconds: Its length.
        progress: Part of the training that was done in it.
    """

    setting: tuple[object, ...]
    gpus: int
    time: float
    seconds: float
    progress: float

    @classmethod
    def of(cls, record: Record, to_target: bool) -> Interval:
        """The interval before a decision."""
        before, terms = record["before"], record["terms"]
        rate = before["lr_scale"] if to_target else None
        return cls(
            (before["gpus"], before["batch_size"], rate),
            max(1, before["gpus"]),
            record["time"],
            terms["duration_s"],
            terms["progress"],
        )


def _squares(rows: Sequence[Interval]) -> list[float]:
    """Squares of the relative difference of speed between neighbours of one setting, halved."""
    found = []
    for one, other in pairwise(rows):
        speeds = one.progress / one.seconds, other.progress / other.seconds
        if one.setting == other.setting and sum(speeds) > 0:
            found.append(2 * ((speeds[0] - speeds[1]) / sum(speeds)) ** 2)
    return found
