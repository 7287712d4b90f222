"""How long until the next decision."""

from __future__ import annotations

FIRST_S = 5.0
SHORTEST_S = 1.0
LONGEST_S = 60.0
STEPS = 20
"""Optimizer steps that make an interval long enough to measure."""

SHARE = 0.01
"""Part of the estimated run that one interval takes."""


def interval_length(
    fixed_s: float | None, elapsed_s: float, progress: float | None, steps_per_s: float | None
) -> float:
    """Seconds until the next decision.

    Args:
        fixed_s: The configured length, or None for ``auto``.
        elapsed_s: Running time so far, seconds.
        progress: Part of the training that is done, 0 to 1; None when unknown.
        steps_per_s: Optimizer steps a second; None when unknown.
    """
    if fixed_s is not None:
        return fixed_s
    # Of an unknown length, a run is at least as long again as it has been so far.
    wanted = max(FIRST_S, SHARE * 2 * elapsed_s)
    if progress is not None and progress > 0:
        wanted = SHARE * elapsed_s / progress
    if steps_per_s is not None and steps_per_s > 0:
        wanted = max(wanted, STEPS / steps_per_s)
    return min(max(wanted, SHORTEST_S), LONGEST_S)
