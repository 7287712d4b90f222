"""The starts from which ``benchmarks.sim`` follows simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlflow_rlsched.learning.comparison import FOLLOWED, NOVICE, one_or_all
from mlflow_rlsched.simulator.measured import Measured, Settings
from mlflow_rlsched.simulator.parameters import HORIZON, Effects, Ranges
from mlflow_rlsched.simulator.run import Runs

SEED = 2026

_VARIES = 0.1  # of the memory of a sample, from interval to interval; assumed
_RAISED_AT = 0.5  # progress
_RAISED_FOR = 2.5  # running time to which it is followed, over its length
_RAISED_TO = 1.5  # rate over the one that diverges


def imagenet(count: int) -> Runs:
    """Runs like ImageNet's at the base batch, on 8 of 16 devices on nodes of four, as measured.

    Every device reading is there, as the use of the devices is what is looked at.
    """
    ranges = replace(NOVICE, coefficient=(1.0, 1.0), gpus_max=(16.0, 16.0))
    runs = Runs(count, SEED, Effects(missing=False), ranges, ["imagenet"])
    runs.parameters.gpus_per_node[:] = 4.0
    runs.begin_with(np.full(count, 8.0))
    runs.parameters.horizon_s *= FOLLOWED / HORIZON
    return runs


def recurring(app: str, count: int, seed: int) -> Runs:
    """Runs of one workload, which is drawn once, on the measured axes.

    It may have 4 to 16 devices, and its training tells all that there is to tell.

    Args:
        app: Application that it is like.
        count: How many.
        seed: Of all that differs from run to run.
    """
    ranges = replace(NOVICE, gpus_max=(4.0, 16.0))
    effects = Effects(learning_rate=False, missing=False)
    one = Runs(1, SEED, effects, ranges, [app])
    runs = Runs(count, seed, effects, ranges, [app])
    runs.parameters.replace(np.ones(count, bool), one.repeated(count).parameters)
    runs.begin_with(one_or_all(runs), runs.bounds.batch_initial.copy())
    runs.parameters.horizon_s *= FOLLOWED / HORIZON
    return runs


class VaryingMemory(Runs):
    """Runs near the memory's limit whose inputs differ in length.

    What a sample takes varies from interval to interval, so that a batch that fits today may not
    fit tomorrow.
    """

    def __init__(self, count: int, apps: Sequence[str]) -> None:
        super().__init__(count, SEED, None, replace(NOVICE, memory_use=(0.8, 1.1)), apps)
        drawn = self.parameters.gpus_start.copy()
        self.begin_with(one_or_all(self))
        # The memory was drawn for the batch of a device with the drawn devices.
        self._usual = self.parameters.memory_sample * self.parameters.gpus_start / drawn
        self._lengths = np.random.default_rng(SEED)

    def advance(self, wanted: Settings) -> Measured:
        drawn = self._lengths.standard_normal(len(self._usual))
        self.parameters.memory_sample = self._usual * np.exp(_VARIES * drawn)
        return super().advance(wanted)


class RaisedRate(Runs):
    """Runs from a good start whose user's schedule raises the rate far too high half-way.

    They end when all that was learnt before is learnt again, and the loss is where it was.

    Args:
        count: How many.
        apps: Applications that they are like.
        lasts: How long the rate stays there, over the length of the run.
    """

    def __init__(self, count: int, apps: Sequence[str], lasts: float) -> None:
        super().__init__(count, SEED, None, Ranges(lr_optimum=(1.0, 1.0)), apps)
        p = self.parameters
        self._users = self.settings.copy()
        length = p.horizon_s / HORIZON
        self._lasts, p.horizon_s = lasts * length, _RAISED_FOR * length
        self._good = p.lr_optimum.copy()
        self._factor, self._before = np.ones(count), np.full(count, np.inf)
        self.raised_at, self.recovered_at = np.full((2, count), np.nan)

    def advance(self, wanted: Settings) -> Measured:
        p = self.parameters
        now = np.isnan(self.raised_at) & (self.progress >= _RAISED_AT) & ~self.ended
        beyond = _RAISED_TO * p.lr_diverges / np.exp(self.speed(self._users).off)
        self._factor = np.where(now, np.maximum(beyond, 1), self._factor)
        self._before = np.where(now, self.progress, self._before)
        self.raised_at = np.where(now, self.elapsed, self.raised_at)
        high = self.elapsed < self.raised_at + self._lasts  # false before
        p.lr_optimum = np.where(high, self._good / self._factor, self._good)
        seen = super().advance(wanted)
        back = ~self.standing & self.learning & (self.progress > self._before)
        self.recovered_at = np.where(back, self.elapsed, self.recovered_at)
        self.ended = self.ended | back
        return seen
