"""Whether a training is calm, and what its gradients say of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev

from mlflow_rlsched.policy.history import Gradient, History
from mlflow_rlsched.policy.loss import Signals, signals
from mlflow_rlsched.protocol import Report

BAD_LOSSES = 2
"""Losses of the window that are not finite before this is more than one bad batch."""

OSCILLATION = 3.0
"""Spread of the loss over its usual one."""

VISIBLE = 0.05
"""Part of the first loss below which no spread counts."""

CLIMB = 0.1
"""Part of the first loss that the loss must rise above its best."""

CLIMB_SPREADS = 4.0

OPPOSED = -0.1
"""Mean cosine of consecutive gradients that says the steps overshoot."""

FEWEST_GRADIENTS = 4


def unrest(history: History) -> str | None:
    """Why the training is not calm, in words; None while it is.

    One bad batch is never a reason: medians do not see it, and one loss that is not finite is
    what a gradient scaler produces every now and then.
    """
    seen = signals(history.losses)
    return unstable(history) or (None if seen is None else _overshoots(seen, history))


def unstable(history: History) -> str | None:
    """Why the loss itself is not calm, in words; None while it is."""
    bad = sum(history.nonfinite)
    if bad >= BAD_LOSSES:
        return f"{bad} losses were not finite"
    seen = signals(history.losses)
    if seen is None or history.loss_first is None:
        return None
    why = _oscillates(seen, history.loss_first, history)
    return why or (None if seen.falls else climbed(seen.level, seen.spread, history))


def climbed(level: float, spread: float, history: History) -> str | None:
    """Whether a level of the loss is far above the best one, in words; None while it is not.

    Args:
        level: Where the loss is now.
        spread: Its spread, where no usual one is known.
        history: The run's history.
    """
    first, best, usual = history.loss_first, history.loss_best, history.spread_usual
    if first is None or best is None:
        return None
    if level - best <= max(
        CLIMB * abs(first), CLIMB_SPREADS * (spread if usual is None else usual)
    ):
        return None
    return f"the loss has climbed from {best:.4g} to {level:.4g}"


def _oscillates(seen: Signals, first: float, history: History) -> str | None:
    usual = history.spread_usual
    if usual is None or seen.falls or seen.spread <= VISIBLE * abs(first):
        return None
    if seen.spread <= OSCILLATION * usual:
        return None
    return f"the loss oscillates by {seen.spread:.3g}, usually by {usual:.3g}"


def _overshoots(seen: Signals, history: History) -> str | None:
    mean, strength = alignment(history.gradients)
    if seen.falls or mean >= OPPOSED or strength > -3:
        return None
    return (
        f"the loss no longer falls and consecutive gradients are opposed (mean cosine {mean:.2f})"
    )


def bad_losses(report: Report) -> int:
    """How many losses of a report were NaN or infinite."""
    told = min(report.numbers.get("nonfinite_losses", 0.0), 1e9)
    return max(int(told), int("loss" in report.nonfinite))


def alignment(gradients: Sequence[Gradient]) -> tuple[float, float]:
    """Mean cosine of consecutive gradients, and how many standard errors it is away from 0.

    The derivative of the loss by the learning rate of the step before is minus the product of
    consecutive gradients (Almeida et al. 1998; Baydin et al. 2018, "Online Learning Rate
    Adaptation with Hypergradient Descent", section 2): while they point the same way, a larger
    rate would have served better. On a quadratic at its noise floor the cosine is about minus
    half of rate times curvature, so opposed gradients of a loss that no longer falls mean that
    the rate is too large to go on (Pflug 1990).

    Returns:
        (0, 0) when fewer than ``FEWEST_GRADIENTS`` are known.
    """
    return _alignment(tuple(gradients))


@lru_cache(maxsize=64)
def _alignment(gradients: tuple[Gradient, ...]) -> tuple[float, float]:
    if len(gradients) < FEWEST_GRADIENTS:
        return 0.0, 0.0
    cosines = [g.cosine for g in gradients]
    mean = fmean(cosines)
    # Cosines that are all alike are as sure as the width of a rounding allows.
    error = max(stdev(cosines) / math.sqrt(len(cosines)), 1e-3)
    return mean, mean / error


def noise_scale(gradients: Sequence[Gradient]) -> float | None:
    """Gradient noise scale tr(covariance) / |G|^2, samples.

    A ratio of means, as both estimates are noisy (McCandlish et al. 2018, "An Empirical Model of
    Large-Batch Training", appendix A.1).

    Returns:
        None while the estimate of |G|^2 is not above 0.
    """
    if not gradients:
        return None
    sqr = fmean(g.sqr for g in gradients)
    return fmean(g.var for g in gradients) / sqr if sqr > 0 else None


def efficiency(scale: float | None, batch_size: int | None, initial: int | None) -> float | None:
    """Statistical efficiency of a sample at ``batch_size`` against the initial one.

    (scale + initial) / (scale + batch), equation 6 of Pollux (Qiao et al. 2021, section 3.1).

    Args:
        scale: Gradient noise scale, samples; None when unknown.
        batch_size: Batch size in force, samples.
        initial: Initial batch size, samples.
    """
    if scale is None or not batch_size or not initial:
        return None
    return (scale + initial) / (scale + batch_size)
