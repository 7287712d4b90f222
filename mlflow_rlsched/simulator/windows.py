"""Windows of many runs at once: ``policy.loss`` and ``policy.stability`` on arrays.

A window is an array of runs x places, the newest value in the last place, NaN before the first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlflow_rlsched.policy.loss import ENOUGH, SIGNIFICANT, TO_SIGMA, WINDOW
from mlflow_rlsched.policy.stability import FEWEST_GRADIENTS
from mlflow_rlsched.simulator.models import Floats

Flags = NDArray[np.bool_]

_EARLIER, _LATER = np.triu_indices(WINDOW, 1)


def empty(runs: int) -> Floats:
    """Windows without a value."""
    return np.full((runs, WINDOW), np.nan)


def push(windows: Floats, values: Floats, where: Flags) -> Floats:
    """The windows with one more value, in those runs that have one."""
    moved = np.concatenate([windows[:, 1:], values[:, None]], axis=1)
    return np.where(where[:, None], moved, windows)


def median(values: Floats) -> Floats:
    """Median of each row without its NaN; NaN for a row of nothing else."""
    ordered = np.sort(values, axis=1)  # NaN come last
    count = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(values))
    low = ordered[rows, np.maximum(count - 1, 0) // 2]
    high = ordered[rows, np.minimum(count // 2, values.shape[1] - 1)]
    return np.asarray((low + high) / 2)


def mean(values: Floats) -> Floats:
    """Mean of each row without its NaN; NaN for a row of nothing else."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.asarray(np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0))


def level(losses: Floats) -> Floats:
    """Level of the losses (``policy.loss.level``)."""
    return median(losses[:, -5:])


class Trends(NamedTuple):
    """Statistics of loss windows (``policy.loss.Signals``), NaN for fewer than ``ENOUGH``."""

    level: Floats
    trend: Floats
    spread: Floats
    change: Floats

    @property
    def known(self) -> Flags:
        """Whether there are enough losses."""
        return np.isfinite(self.level)

    @property
    def falls(self) -> Flags:
        """Whether the loss falls, and not by chance."""
        return self.trend < -SIGNIFICANT


def trends(samples: Floats, losses: Floats) -> Trends:
    """Statistics of windows of losses over the samples seen (``policy.loss.signals``)."""
    count = np.isfinite(losses).sum(axis=1)
    with np.errstate(invalid="ignore"):
        back = (np.diff(samples, axis=1) <= 0).any(axis=1, keepdims=True)
        x = np.where(back, np.arange(float(WINDOW)), samples)
        rise = losses[:, _LATER] - losses[:, _EARLIER]
        slope = median(rise / (x[:, _LATER] - x[:, _EARLIER]))
        residuals = losses - slope[:, None] * x
        around = np.abs(residuals - median(residuals)[:, None])
        score = np.nansum(np.sign(rise), axis=1)
    enough = count >= ENOUGH
    n = np.maximum(count, ENOUGH)
    first = x[np.arange(len(x)), WINDOW - n]
    now = level(losses)
    found = Trends(
        level=now,
        trend=score / np.sqrt(n * (n - 1) * (2 * n + 5) / 18),
        spread=TO_SIGMA * median(around) / (1 - 2 / n),
        change=slope * (x[:, -1] - first) / np.maximum(np.abs(now), 1e-12),
    )
    return Trends(*(np.where(enough, values, np.nan) for values in found))


def alignment(cosines: Floats) -> tuple[Floats, Floats]:
    """Mean cosine of consecutive gradients and its strength (``policy.stability.alignment``)."""
    known = np.isfinite(cosines)
    count = known.sum(axis=1)
    middle = mean(cosines)
    square = np.where(known, (cosines - middle[:, None]) ** 2, 0.0).sum(axis=1)
    deviation = np.sqrt(square / np.maximum(count - 1, 1))
    error = np.maximum(deviation / np.sqrt(np.maximum(count, 1)), 1e-3)
    enough = count >= FEWEST_GRADIENTS
    return np.where(enough, middle, 0.0), np.where(enough, middle / error, 0.0)
