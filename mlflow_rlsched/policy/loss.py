"""What the last losses say: level, trend, spread. Robust, so that one bad batch says nothing.

A run reports about one loss a second, each of one batch or a mean of some, so a decision interval
may hold fewer than five. Everything here works on a window that goes on over intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median

WINDOW = 12
"""Losses that are remembered."""

ENOUGH = 8
"""Fewest losses that have a trend and a spread: that of five is often a third of the true one."""

SIGNIFICANT = 2.0
"""Standard deviations from which a trend is taken for one."""

TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""

_LEVEL = 5


@dataclass(frozen=True)
class Signals:
    """Statistics of a window of losses.

    Attributes:
        level: Median of the last five.
        slope: Change of the loss a sample: the median of all pairwise slopes (Theil 1950, Sen
            1968).
        trend: Strength of the trend in standard deviations, below 0 while the loss falls
            (Mann 1945, Kendall 1975).
        spread: Robust standard deviation round the trend line. The line follows the noise of a
            few losses, so their deviations are as much larger; by simulation, 1 / (1 - 2 / n).
        change: Change over the window along the trend line, relative to the level.
    """

    level: float
    slope: float
    trend: float
    spread: float
    change: float

    @property
    def falls(self) -> bool:
        """Whether the loss falls, and not by chance."""
        return self.trend < -SIGNIFICANT

    @property
    def rises(self) -> bool:
        """Whether the loss rises, and not by chance."""
        return self.trend > SIGNIFICANT


def level(losses: Sequence[float]) -> float | None:
    """Median of the last five losses; None when there is none."""
    return median(losses[-_LEVEL:]) if losses else None


def signals(points: Sequence[tuple[float, float]]) -> Signals | None:
    """Statistics of a window; None when it holds fewer than ``ENOUGH`` losses.

    Args:
        points: (samples seen, loss), oldest first; finite.
    """
    return _signals(tuple(points))


@lru_cache(maxsize=64)  # a decision asks for those of one window two dozen times
def _signals(points: tuple[tuple[float, float], ...]) -> Signals | None:
    if len(points) < ENOUGH:
        return None
    xs, ys = zip(*points, strict=True)
    # A resumed run may count samples from an earlier checkpoint: then places stand for samples.
    if any(b <= a for a, b in pairwise(xs)):
        xs = tuple(range(len(ys)))
    pairs = [(i, j) for j in range(len(xs)) for i in range(j)]
    slope = median((ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairs)
    residuals = [y - slope * x for x, y in zip(xs, ys, strict=True)]
    middle = median(residuals)
    n = len(ys)
    spread = TO_SIGMA * median(abs(r - middle) for r in residuals) / (1 - 2 / n)
    score = sum((ys[j] > ys[i]) - (ys[j] < ys[i]) for i, j in pairs)
    trend = score / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    now = median(ys[-_LEVEL:])
    change = slope * (xs[-1] - xs[0]) / max(abs(now), 1e-12)
    return Signals(now, slope, trend, spread, change)
