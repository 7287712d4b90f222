"""Runs that share one pool of devices, decided on in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mlflow_rlsched.simulator.environment import WEIGHTS, RunEnvironment
from mlflow_rlsched.simulator.guards import guard, left_of
from mlflow_rlsched.simulator.measured import Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.parameters import HORIZON, Effects, Ranges

LENGTHS = (1800.0, 30_000.0)
"""Lengths of the runs at their initial settings, seconds."""

BUSY = 0.7
"""Part of the runs' lengths, one after the other, over which they come."""


class ClusterEnvironment(RunEnvironment):
    """A pool of devices and the runs that come to it.

    A run waits until its initial devices are free, first come, first served. Devices change
    hands between two rounds; whoever came first chooses first.

    Attributes:
        gpus: Devices of the pool.
        now: Time since the first run came, seconds.
    """

    def __init__(
        self,
        count: int = 8,
        gpus: int = 16,
        seed: int = 0,
        interval_s: float = 60.0,
        effects: Effects | None = None,
        ranges: Ranges | None = None,
        apps: Sequence[str] | None = None,
        weights: Sequence[float] = WEIGHTS,
    ) -> None:
        """Draw the runs and let the first ones begin.

        Args:
            count: Runs.
            gpus: Devices of the pool.
            seed: Of all randomness.
            interval_s: Length of a decision interval, seconds.
            effects: What the runs are subject to; the pressure of the pool is its own.
            ranges: How widely they differ.
            apps: Applications that they are like.
            weights: Reward weights.
        """
        self.gpus = gpus
        self.now = 0.0
        self._interval_s = interval_s
        effects = replace(effects or Effects(), pressure=False)
        super().__init__(count, seed, effects, ranges or Ranges(length_s=LENGTHS), apps, weights)

    def _begin(self) -> Measured:
        p, bounds, settings = self.runs.parameters, self.runs.bounds, self.runs.settings
        for values in (bounds.gpus_max, p.gpus_start, settings.gpus):
            np.minimum(values, self.gpus, out=values)
        bounds.interval_s[:] = self._interval_s
        whole = float((p.horizon_s / HORIZON * p.gpus_start).sum()) / self.gpus
        comes = np.sort(self._random.uniform(0, BUSY * whole, len(p.horizon_s)))
        self._comes = comes - comes[0]
        self._horizon = float(self._comes[-1] + p.horizon_s.max() + HORIZON * whole)
        self.runs.waiting[:] = True
        self.runs.in_rounds = True
        self._admit(settings)
        return self._observe(settings)

    @property
    def turn(self) -> NDArray[np.int_]:
        """The running runs, in the order in which they came."""
        return np.flatnonzero(~self.runs.standing)

    @property
    def done(self) -> bool:
        """Whether all runs ended."""
        return bool(self.runs.ended.all())

    @property
    def truncated(self) -> bool:
        """Whether the cluster is no longer followed, with runs that did not end."""
        return not self.done and self.now >= self._horizon

    def round(self, actions: Floats) -> Floats:
        """Decide on all running runs, in turn, and let them train for an interval.

        Args:
            actions: Encoded actions, runs x 3; those of others are ignored.

        Returns:
            The rewards of the interval by run.
        """
        before = self.runs.settings
        after, _ = guard(self.proposals(actions), self.seen, self.history, self.runs.bounds)
        after = before.where(self.runs.standing, after)
        self._share(before, after)
        self.history.decided(self.seen, after, left_of(before, after))
        progress, told_at = self.history.progress, self.history.samples_at
        self._admit(after)
        standing = self.runs.standing
        self.seen = self._observe(after)
        rewards = np.where(standing, 0.0, self.rewards(progress, told_at))
        while not len(self.turn) and self.runs.waiting.any():
            self._admit(self.runs.settings)
            self.seen = self._observe(self.runs.settings)
        return rewards

    def _share(self, before: Settings, after: Settings) -> None:
        """Let each run in turn grow by what the others leave, at most."""
        free = self.gpus - np.minimum(before.gpus, after.gpus)[self.turn].sum()
        for run in self.turn:
            more = min(max(after.gpus[run] - before.gpus[run], 0), free)
            after.gpus[run] = min(after.gpus[run], before.gpus[run] + more)
            free -= more

    def _admit(self, settings: Settings) -> None:
        """Begin the runs that have come and fit beside what ``settings`` give the others."""
        runs = self.runs
        free = self.gpus - settings.gpus[self.turn].sum()
        for run in np.flatnonzero(runs.waiting & (self._comes <= self.now)):
            if settings.gpus[run] > free:
                break
            free -= settings.gpus[run]
            runs.waiting[run] = False
            runs.parameters.horizon_s[run] = self._horizon - self.now
            self.history.restart(np.arange(len(self._comes)) == run)

    def _observe(self, settings: Settings) -> Measured:
        seen = self.runs.advance(settings)
        self.now += self._interval_s
        waiting = self.runs.waiting & (self._comes <= self.now)
        demand = self.runs.settings.gpus[waiting].sum() / self.gpus
        free = self.gpus - self.runs.settings.gpus[self.turn].sum()
        ones = np.ones(len(waiting))
        seen = replace(seen, pressure=demand * ones, free_gpus=free * ones)
        self.history.observe(seen, self.runs.bounds)
        return seen
