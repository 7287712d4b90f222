"""The runs with their decisions: actions in, states and rewards out, all runs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlflow_rlsched.policy.action import FACTOR_MAX, GPU_DELTAS
from mlflow_rlsched.policy.reward import DISCOUNT, TERMINAL_PENALTY
from mlflow_rlsched.simulator.guards import Actions, guard, moved
from mlflow_rlsched.simulator.histories import Histories
from mlflow_rlsched.simulator.measured import DONE, Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.parameters import Effects, Ranges
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.simulator.states import states
from mlflow_rlsched.simulator.windows import Flags

WEIGHTS = (1.0, 0.5, 1.0, 0.1)
"""alpha, beta, gamma and smoothness of ``config.keys.Reward`` by default."""

GAIN_ERROR = 0.1
"""Standard deviation of the logarithm of a predicted speed-up round the true one."""


class Step(NamedTuple):
    """What a step of the environment returns, by run.

    Attributes:
        states: Runs x 23.
        rewards: Of the interval that has just ended.
        terminated: Whether the run ended in it.
        truncated: Whether it is no longer followed.
    """

    states: Floats
    rewards: Floats
    terminated: Flags
    truncated: Flags


class RunEnvironment:
    """Runs that are decided on, side by side.

    The state, the guard and the reward are those of the agent, on arrays. The step after a run's
    last ignores its action, begins another run in its place and returns what that one's first
    interval showed, with a reward of 0 (as ``AutoresetMode.NEXT_STEP`` of Gymnasium does).

    Args:
        count: Runs.
        seed: Of all that is drawn.
        effects: What the runs are subject to.
        ranges: How widely they differ.
        apps: Applications that they are like; all by default.
        weights: Reward weights (alpha, beta, gamma, smoothness) of each run.
        runs: As many runs, at their beginning, in the place of those that effects, ranges and apps
            describe; they renew themselves.

    Attributes:
        runs: The runs.
        history: What is remembered of them.
        seen: What was measured last.
        weights: Reward weights, runs x 4 (alpha, beta, gamma, smoothness).
        over: Whether each run is over, so that the next step begins another in its place.
    """

    def __init__(
        self,
        count: int,
        seed: int = 0,
        effects: Effects | None = None,
        ranges: Ranges | None = None,
        apps: Sequence[str] | None = None,
        weights: Sequence[float] = WEIGHTS,
        runs: Runs | None = None,
    ) -> None:
        self.runs = runs or Runs(count, seed, effects, ranges, apps)
        self._random = np.random.default_rng([seed, 1])
        self.weights = np.tile(np.asarray(weights, float), (count, 1))
        self.history = Histories.new(count)
        self.over = np.zeros(count, bool)
        self.seen = self._begin()

    def _begin(self) -> Measured:
        """Let the runs train for their first interval."""
        return self._observe(self.runs.settings)

    @property
    def states(self) -> Floats:
        """The states, runs x 23, each value in [-1, 1]."""
        return states(self.history, self.seen, self.runs.bounds)

    def step(self, actions: Floats) -> Step:
        """Decide on all runs and let them train for an interval.

        Args:
            actions: Encoded actions (``Action.encoded``), runs x 3: GPU delta / 2, and both
                factors from -1 (0.8) to 1 (1.2).
        """
        return self.decide(self.proposals(actions))

    def proposals(self, actions: Floats) -> Actions:
        """Encoded actions with the gain that a fitted model would predict for them.

        It is the true one with an error (``GAIN_ERROR``): the guard asks for one before a run
        gets more devices.
        """
        bounded = np.clip(np.nan_to_num(actions), -1, 1)
        half = FACTOR_MAX - 1
        made = Actions(
            np.rint(bounded[:, 0] * GPU_DELTAS[-1]),
            1 + bounded[:, 1] * half,
            1 + bounded[:, 2] * half,
            np.zeros(len(bounded)),
        )
        made.predicted_gain = self._gain(made)
        return made

    def _gain(self, actions: Actions) -> Floats:
        bounds, before = self.runs.bounds, self.runs.settings
        gpus = np.clip(before.gpus + actions.gpu_delta, bounds.gpus_min, bounds.gpus_max)
        batch = moved(before.batch, actions.batch_factor)
        batch = np.clip(batch, np.maximum(bounds.batch_min, gpus), bounds.batch_max)
        after = Settings(gpus, batch, before.lr_factor, before.lr_scale)
        useful = [
            speed.rate / (1 + settings.batch / speed.noise_scale)
            for settings in (before, after)
            for speed in (self.runs.speed(settings),)
        ]
        error = np.exp(GAIN_ERROR * self._random.standard_normal(len(gpus)))
        same = (gpus == before.gpus) & (batch == before.batch)
        return np.where(same, 0.0, useful[1] / useful[0] * error - 1)

    def decide(self, actions: Actions) -> Step:
        """Decide on all runs by proposals and let them train for an interval."""
        after, left = guard(actions, self.seen, self.history, self.runs.bounds)
        self.history.decided(self.seen, after, left)
        new = self.over
        if new.any():
            self.runs.renew(new)
            self.history.restart(new)
            after = self.runs.settings.where(new, after)
        progress, told_at = self.history.progress, self.history.samples_at
        self.seen = self._observe(after)
        rewards = np.where(new, 0.0, self.rewards(progress, told_at))
        terminated = self.runs.ended.copy()
        truncated = ~terminated & (self.runs.elapsed >= self.runs.parameters.horizon_s)
        self.over = terminated | truncated
        return Step(self.states, rewards, terminated, truncated)

    def _observe(self, settings: Settings) -> Measured:
        seen = self.runs.advance(settings)
        self.history.observe(seen, self.runs.bounds)
        return seen

    def rewards(self, progress_before: Floats, told_at_before: Floats) -> Floats:
        """Rewards of the last interval (``policy.measuring.terms_of``, ``policy.reward``).

        A run that is done is given at once what it earns until its horizon.

        Args:
            progress_before: Progress that was known when it began.
            told_at_before: Time of the last report then.
        """
        history, seen, bounds = self.history, self.seen, self.runs.bounds
        alpha, beta, gamma, smoothness = self.weights.T
        scales = history.scales(seen, bounds)
        scale, batch = history.noise_scale, seen.settings.batch
        useful = (scale + bounds.batch_initial) / (scale + batch)
        useful = np.where(np.isfinite(useful), useful, 1.0)
        told = np.isfinite(history.samples_at) & (history.samples_at != told_at_before)
        measured = np.where(told, history.throughput, 0.0)
        speed = np.nan_to_num(measured) * useful / scales["throughput_max"]
        cost = seen.settings.gpus * bounds.price / scales["cost_max"]
        learnt = np.nan_to_num(history.progress) - np.nan_to_num(progress_before)
        changed = ((history.action - history.action_before) ** 2).mean(axis=1)
        length = seen.duration / bounds.interval_s
        total = length * (alpha * np.minimum(speed, 1) - beta * cost - smoothness * changed)
        total = total + gamma * np.clip(learnt * useful, -1, 1)
        done = seen.ending == DONE
        rest = np.maximum(self.runs.parameters.horizon_s - seen.elapsed, 0) / bounds.interval_s
        each = alpha + gamma * bounds.interval_s / scales["total_s"]
        whole = np.floor(rest)
        kept = each * ((1 - DISCOUNT**whole) / (1 - DISCOUNT) + DISCOUNT**whole * (rest - whole))
        total = total + np.where(done, DISCOUNT**length * kept, 0.0)
        return np.asarray(total - TERMINAL_PENALTY * (seen.ending > DONE))
