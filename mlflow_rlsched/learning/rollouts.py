"""Simulated runs as the learner meets them: the networks' inputs, and transitions in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.action import FACTOR_MAX, GPU_DELTAS
from mlflow_rlsched.policy.goodput import Advised, Situation, Timings
from mlflow_rlsched.policy.inputs import Array, decode, encode
from mlflow_rlsched.policy.replay import LARGE_CHANGE, Transitions
from mlflow_rlsched.policy.reward import DISCOUNT
from mlflow_rlsched.simulator.environment import RunEnvironment
from mlflow_rlsched.simulator.guards import Actions, guard
from mlflow_rlsched.simulator.measured import OOM
from mlflow_rlsched.simulator.models import Floats

_ITERATIONS = 2  # of the fit each interval: it goes on from the last one
_HALF = FACTOR_MAX - 1


@dataclass(frozen=True)
class Steps:
    """A step of all runs, one a row.

    Attributes:
        transitions: With the actions that were taken, after the guard.
        ended: Whether the run ended with it, or is no longer followed.
        key: Whether it is a key transition: out of memory, diverged, another number of devices, or
            a large change of the reward.
        real: Whether it is a step at all: after an end, one passes in which another run begins.
    """

    transitions: Transitions
    ended: Array
    key: Array
    real: Array


class _Parted(RunEnvironment):
    """The runs, keeping the parts of the last rewards (runs x 5): these are linear in the weights.

    Attributes:
        parts: See ``replay.parts_of``.
    """

    parts: Floats

    def rewards(self, progress_before: Floats, told_at_before: Floats) -> Floats:
        """Rewards of the last interval."""
        weights = self.weights
        found = []
        for unit in (np.zeros(4), *np.eye(4)):
            self.weights = np.tile(unit, (len(weights), 1))
            found.append(super().rewards(progress_before, told_at_before))
        self.weights = weights
        penalty = found[0]
        each = np.stack(found[1:], 1) - penalty[:, None]
        self.parts = np.column_stack([each, penalty])
        total: Floats = (each * weights).sum(1) + penalty
        return total


class Rollouts:
    """Simulated runs side by side, each with its goodput model.

    Attributes:
        environment: The runs.
        inputs: (R, 31) inputs of the networks now.
        advised: What the goodput models propose now.
    """

    def __init__(self, count: int, seed: int = 0, **options: Any) -> None:
        """Begin.

        Args:
            count: Runs.
            seed: Of the runs.
            options: Of ``RunEnvironment``.
        """
        self.environment = _Parted(count, seed, **options)
        self._timings = Timings.none(count)
        self._fit = goodput.assumed(self._timings)
        self._told_at = np.full(count, np.nan)
        self._rewards = np.zeros(count)
        self._look()

    def weigh(self, weights: Sequence[float] | Array) -> None:
        """Set the reward's weights, (4,) for all runs or (R, 4), from the next inputs on."""
        shape = self.environment.weights.shape
        self.environment.weights = np.broadcast_to(np.asarray(weights, float), shape).copy()
        self._look()

    def take(self, actions: Array) -> Steps:
        """Take encoded actions (R, 7)."""
        runs, before = self.environment, self.inputs
        begins, gpus = runs.over.copy(), runs.runs.settings.gpus.copy()
        step = runs.decide(self._proposals(actions))
        self._timings.forget(np.flatnonzero(begins))
        self._told_at[begins] = np.nan
        self._look()
        length = runs.seen.duration / runs.runs.bounds.interval_s
        weight = np.where(step.terminated, 0.0, DISCOUNT**length)
        changed = np.abs(step.rewards - self._rewards) > LARGE_CHANGE
        self._rewards = step.rewards
        taken = runs.history.action
        rows = (before, _encoded(taken), runs.parts, weight[:, None], self.inputs)
        return Steps(
            Transitions(*(row.astype(np.float32) for row in rows)),
            step.terminated | step.truncated,
            (runs.seen.ending >= OOM) | (runs.runs.settings.gpus != gpus) | changed,
            ~begins,
        )

    def guarded(self, actions: Array) -> Array:
        """What the guard would leave of encoded actions (R, 7): what an expert should be asked."""
        runs = self.environment
        _, left = guard(self._proposals(actions), runs.seen, runs.history, runs.runs.bounds)
        return _encoded(left)

    def _proposals(self, actions: Array) -> Actions:
        deltas, batch, rate = decode(actions)
        gain = goodput.gain(self._fit, self._situation, deltas, batch, self.per_node)
        gain = np.where(self._timings.settings == 0, np.nan, gain)
        return Actions(deltas.astype(float), batch, rate, gain)

    @property
    def per_node(self) -> Array:
        """(R, 1) devices of a node."""
        per_node: Array = self.environment.runs.parameters.gpus_per_node[:, None]
        return per_node

    def _look(self) -> None:
        """Take in the last interval."""
        self._measure()
        self._fit = goodput.fit(self._fit, self._timings, self.per_node, _ITERATIONS)
        self._situation = self.situation(self.environment.history.noise_scale)
        advised = goodput.advise(self._fit, self._situation, self.per_node)
        unknown = self._timings.settings == 0
        self.advised = Advised(
            np.where(unknown, 0, advised.gpu_delta),
            np.where(unknown, 1.0, advised.batch_factor),
            np.where(unknown, 0.0, advised.gain),
        )
        error = goodput.fit_error(self._fit, self._timings, self.per_node)
        columns = [
            self.advised.gpu_delta / GPU_DELTAS[-1],
            (self.advised.batch_factor - 1) / _HALF,
            np.clip(np.log1p(np.maximum(self.advised.gain, -0.9)), -1, 1),
            np.minimum(error, 1.0),
        ]
        runs = self.environment
        self.inputs = np.column_stack([runs.states, runs.weights, *columns]).astype(np.float32)

    def _measure(self) -> None:
        """Add the step times of the runs that trained at one setting all along."""
        history, setting = self.environment.history, self.environment.runs.settings
        told = np.isfinite(history.samples_at) & (history.samples_at != self._told_at)
        steady = self.environment.seen.acknowledged & (history.action[:, 0] == 0)
        rows = np.flatnonzero(told & steady & (history.throughput > 0))
        self._told_at = history.samples_at.copy()
        first = rows[self._timings.settings[rows] == 0]
        batch = setting.batch[rows]
        self._timings.add(rows, setting.gpus[rows], batch, batch / history.throughput[rows])
        self._fit[first] = goodput.assumed(self._timings)[first]

    def situation(self, noise_scale: Floats) -> Situation:
        """Where the runs stand, if their gradient noise scales are (R,) ``noise_scale``."""
        runs = self.environment
        setting, bounds = runs.runs.settings, runs.runs.bounds
        free = np.where(np.isnan(runs.seen.free_gpus), np.inf, np.maximum(runs.seen.free_gpus, 0))
        return Situation(
            gpus=setting.gpus,
            batch=setting.batch,
            gpus_min=bounds.gpus_min,
            gpus_max=np.minimum(bounds.gpus_max, setting.gpus + free),
            batch_min=np.minimum(bounds.batch_min, bounds.batch_max),
            batch_max=bounds.batch_max,
            noise_scale=noise_scale,
            alpha=runs.weights[:, 0],
            beta=runs.weights[:, 1],
        )


def _encoded(parts: Array) -> Array:
    """Actions in the networks' encoding, from runs x 3 (``Action.encoded``)."""
    deltas = np.rint(parts[:, 0] * GPU_DELTAS[-1])
    return encode(deltas, 1 + _HALF * parts[:, 1], 1 + _HALF * parts[:, 2])
