"""Fewer points with the same outline, so that a browser can draw a long history."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MOST = 1500
"""Points of a line that a browser draws and moves without delay."""


def min_max(x: Numbers, y: Numbers, most: int = MOST) -> npt.NDArray[np.intp]:
    """Which points to keep: of each stretch the lowest, the highest and one that is not finite.

    Args:
        x: Places, ascending, shape (n,).
        y: Values, shape (n,); NaN and infinities are kept as the marks that they are.
        most: About how many points to keep.

    Returns:
        Ascending indices; all of them where there are no more than ``most``.
    """
    count = len(x)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max(1, most // 2) + 1).astype(np.intp)
    finite = np.isfinite(y)
    starts = edges[:-1]
    lows = np.where(finite, y, np.inf)
    highs = np.where(finite, y, -np.inf)
    kept = [np.array([0, count - 1])]
    for values, best in ((lows, np.minimum), (highs, np.maximum)):
        extremes = best.reduceat(values, starts)
        hits = np.flatnonzero(values == np.repeat(extremes, np.diff(edges)))
        block = np.searchsorted(edges, hits, side="right")
        kept.append(hits[np.unique(block, return_index=True)[1]])
    wild = np.flatnonzero(~finite)
    block = np.searchsorted(edges, wild, side="right")
    kept.append(wild[np.unique(block, return_index=True)[1]])
    return np.unique(np.concatenate(kept))
