"""How long simulated runs take under a policy: the agent's own decisions, run by run.

Runs of one seed are the same under every policy, their noise included, so results are compared
in pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from scipy.stats import bootstrap  # type: ignore[import-untyped]

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.simulator.measured import OOM, Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.run import Runs


@dataclass(frozen=True)
class Played:
    """What became of runs; (R,) each.

    Attributes:
        seconds: Running time to the target, or as long as the run was followed.
        device_seconds: Devices held over that time.
        busy: Part of that in which they computed.
        reached: Whether the target was reached.
        ooms: Times that the run was out of memory.
        restarts: Changes of the devices.
    """

    seconds: Floats
    device_seconds: Floats
    busy: Floats
    reached: Array
    ooms: Floats
    restarts: Floats

    def where(self, runs: Array) -> Played:
        """Some of the runs."""
        return Played(*(getattr(self, f.name)[runs] for f in fields(self)))


def play(runs: Runs, policies: Callable[[int], Policy], weights: Weights | None = None) -> Played:
    """Follow runs to their ends.

    Args:
        runs: The runs, at their beginning.
        policies: The policy of each run, by its place.
        weights: The reward's weights.
    """
    return follow(runs, decisions(runs, policies, weights))


def decisions(
    runs: Runs, policies: Callable[[int], Policy], weights: Weights | None = None
) -> Callable[[Measured], Settings]:
    """The decisions on runs as ``follow`` asks for them.

    Args:
        runs: The runs, at their beginning.
        policies: The policy of each run, by its place.
        weights: The reward's weights.
    """
    chosen = [policies(run) for run in range(len(runs.progress))]
    deciders = {
        run: Decider(runs.bounds.of(run), policy, weights)
        for run, policy in enumerate(chosen)
        if not isinstance(policy, Fixed)
    }

    def decide(seen: Measured) -> Settings:
        settings = seen.settings.copy()
        for run, decider in deciders.items():
            if not runs.ended[run]:
                setting = decider.decide(seen.interval(run)).setting
                settings.gpus[run], settings.batch[run] = setting.gpus, setting.batch_size
                settings.lr_factor[run] = setting.lr_factor
                settings.lr_scale[run] = setting.lr_scale
        return settings

    return decide


def follow(runs: Runs, decide: Callable[[Measured], Settings]) -> Played:
    """Follow runs to their ends or horizons.

    Args:
        runs: The runs, at their beginning.
        decide: The settings of all runs for the next interval, from what the last one showed.
    """
    count = len(runs.progress)
    device_seconds, busy, ooms, restarts = np.zeros((4, count))
    settings = runs.settings.copy()
    followed = np.ones(count, bool)
    while followed.any():
        gpus = runs.settings.gpus
        seen = runs.advance(settings)
        held = seen.duration * seen.settings.gpus
        device_seconds += held
        busy += np.nan_to_num(seen.mean_use) * held
        ooms += seen.ending == OOM
        restarts += followed & (seen.settings.gpus != gpus)
        followed = ~runs.ended & (runs.elapsed < runs.parameters.horizon_s)
        runs.ended |= ~followed
        settings = decide(seen)
    reached = runs.progress >= 1
    return Played(
        runs.elapsed.copy(), device_seconds, busy / device_seconds, reached, ooms, restarts
    )


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def mean_of(values: Array, seed: int = 0) -> Estimate:
    """The mean of (N,) values, by the bias-corrected bootstrap (Efron 1987)."""
    if not np.ptp(values):  # nothing to be unsure of
        return Estimate(*(float(values[0]),) * 3)
    found = bootstrap((values,), np.mean, n_resamples=2000, random_state=seed)
    low, high = found.confidence_interval
    return Estimate(float(np.mean(values)), float(low), float(high))
