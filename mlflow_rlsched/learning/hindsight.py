"""The hindsight optimum: the fastest schedule that a search over the true model finds.

It bounds what any policy could reach within the same limits, and no policy can follow it, as it
knows what nobody knows in advance.
"""

from __future__ import annotations

import numpy as np

from mlflow_rlsched.learning.evaluation import Played, follow
from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.simulator.guards import batch_rule
from mlflow_rlsched.simulator.measured import Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.run import Runs

_SHARES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
"""Batch over the noise scale: 1 is the critical batch size (McCandlish et al. 2018)."""

_NEAR = np.array([0.6, 0.8, 1.0, 1.25, 1.7])


def optimum(runs: Runs, budget: Floats) -> Played:
    """The fastest schedule of each run that takes no more device-seconds than its budget.

    A schedule goes to a number of devices and keeps it, holds the batch at a multiple of the noise
    scale, which drifts, and the learning rate at its best, all within the limits of an action. Two
    rounds of search: a grid of both, and a finer one round its best.

    Args:
        runs: The runs, at their beginning; they are left there.
        budget: (R,) device-seconds.
    """
    count = len(runs.progress)
    most = runs.bounds.gpus_max
    fractions = np.linspace(0, 1, 9)
    gpus = np.rint(most[:, None] ** fractions)
    gpus = np.concatenate([gpus, runs.settings.gpus[:, None]], 1)
    shares = np.tile(_SHARES, (count, 1))
    best, played = _best(runs, gpus, shares, budget)
    near = best[0][:, None] + np.arange(-2, 3)
    finer = _best(runs, np.clip(near, 1, most[:, None]), best[1][:, None] * _NEAR, budget)[1]
    quicker = finer.reached & (finer.seconds < played.seconds)
    return Played(
        *(
            np.where(quicker, getattr(finer, name), getattr(played, name))
            for name in Played.__dataclass_fields__
        )
    )


def _best(runs: Runs, gpus: Floats, shares: Floats, budget: Floats) -> tuple[Array, Played]:
    """The best of all combinations (R x G, R x S), and what it came to."""
    count, width = len(gpus), gpus.shape[1] * shares.shape[1]
    all_gpus = np.repeat(gpus, shares.shape[1], 1).ravel()
    all_shares = np.tile(shares, (1, gpus.shape[1])).ravel()
    copies = runs.repeated(width)
    played = follow(copies, lambda seen: _next(copies, seen.settings, all_gpus, all_shares))
    seconds = np.where(played.reached, played.seconds, np.inf).reshape(count, width)
    fits = played.device_seconds.reshape(count, width) <= budget[:, None]
    # Where nothing fits the budget the cheapest counts.
    cheapest = played.device_seconds.reshape(count, width).argmin(1)
    found = np.where(fits.any(1), np.where(fits, seconds, np.inf).argmin(1), cheapest)
    at = np.arange(count) * width + found
    return np.stack([all_gpus[at], all_shares[at]]), played.where(at)


def _next(runs: Runs, now: Settings, gpus: Floats, shares: Floats) -> Settings:
    bounds = runs.bounds
    delta = np.clip(gpus - now.gpus, GPU_DELTAS[0], GPU_DELTAS[-1])
    held = np.clip(now.gpus + delta, 1, bounds.gpus_max)
    speed = runs.speed(now)
    batch = np.rint(
        now.batch * np.clip(shares * speed.noise_scale / now.batch, FACTOR_MIN, FACTOR_MAX)
    )
    fitting = np.trunc(runs.most_samples() * held)
    batch = np.clip(
        batch, np.maximum(bounds.batch_min, held), np.minimum(bounds.batch_max, fitting)
    )
    factor = now.lr_factor * np.clip(np.exp(-speed.off), FACTOR_MIN, FACTOR_MAX)
    return Settings(held, batch, factor, factor * batch_rule(batch, bounds))
