"""Tuned starts: the fixed setting that one would choose who had tried them all."""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from mlflow_rlsched.learning.evaluation import play
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.parameters import HORIZON
from mlflow_rlsched.simulator.run import Runs

ALLOWED = 1.25
"""Device-seconds of a tuned setting over those of the cheapest."""

_BATCHES = 10
_DEVICES = np.linspace(0, 1, 9)  # powers of the most
_RATE = 0.7  # over the best at the usual noise scale, which drifts, and so does the best rate
_NEAR_DEVICES = np.arange(-2, 3)
_NEAR_BATCHES = np.array([0.6, 0.8, 1.0, 1.25, 1.7])
_NEAR_RATES = np.array([0.5, 0.7, 1.0, 1.4, 2.0])
_INTERVAL = 8.0  # a setting that stays needs no decisions: the search steps are as much longer
_SHORTEST_S, _LONGEST_S = 1.0, 60.0


class Trials(NamedTuple):
    """Fixed settings and what they came to; (R, W) each.

    Attributes:
        gpus: Devices.
        batch: Batch size, samples.
        rate: Learning rate over the best one at that batch.
        seconds: Running time to the target; infinite where it was not reached.
        device_seconds: Devices held over that time; likewise.
    """

    gpus: Floats
    batch: Floats
    rate: Floats
    seconds: Floats
    device_seconds: Floats

    def at(self, column: Array) -> Trials:
        """One setting of each run, (R, 1)."""
        return Trials(*(np.take_along_axis(part, column[:, None], 1) for part in self))


def tuned(runs: Runs) -> Runs:
    """The same trainings, begun at their tuned settings.

    That is the fastest of the fixed settings that take no more than ``ALLOWED`` times the
    device-seconds of the cheapest, by a search over the true model: a grid over devices and batch,
    and a finer one with the learning rate round its best. A run has as many decisions as before
    in its new length, and is followed to ``HORIZON`` times that.

    Args:
        runs: The runs, at their beginning; they are left there.

    Raises:
        ValueError: A run reaches its target at no setting that was tried.
    """
    first = _tried(runs, *_whole_grid(runs))
    best = first.at(_chosen(first))
    finer = _tried(
        runs,
        best.gpus + _NEAR_DEVICES,
        best.batch * _NEAR_BATCHES,
        best.rate * (_NEAR_RATES if runs.parameters.lr_fall_below.any() else np.ones(1)),
    )
    trials = Trials(*(np.concatenate(parts, axis=1) for parts in zip(first, finer, strict=True)))
    found = trials.at(_chosen(trials))
    if np.isinf(found.seconds).any():
        raise ValueError("a run reaches its target at no fixed setting that was tried")
    begun = deepcopy(runs)
    seconds = found.seconds[:, 0]
    p, bounds = begun.parameters, begun.bounds
    length = p.horizon_s / HORIZON
    bounds.interval_s = np.clip(bounds.interval_s * seconds / length, _SHORTEST_S, _LONGEST_S)
    p.horizon_s = HORIZON * seconds
    _begin(begun, found)
    return begun


def _whole_grid(runs: Runs) -> tuple[Floats, Floats, Floats]:
    bounds = runs.bounds
    gpus = np.rint(bounds.gpus_max[:, None] ** _DEVICES)
    batches = np.geomspace(bounds.batch_min, bounds.batch_max, _BATCHES, axis=1)
    return gpus, batches, np.full((len(gpus), 1), _RATE)


def _tried(runs: Runs, gpus: Floats, batch: Floats, rate: Floats) -> Trials:
    """All combinations of (R, G) devices, (R, B) batches and (R, L) rates."""
    count, bounds = len(gpus), runs.bounds
    gpus = np.clip(gpus, 1, np.minimum(bounds.gpus_max, bounds.batch_max)[:, None])
    shape = count, gpus.shape[1], batch.shape[1], rate.shape[1]
    gpus, batch, rate = (
        np.broadcast_to(values, shape).reshape(count, -1)
        for values in (gpus[:, :, None, None], batch[:, None, :, None], rate[:, None, None, :])
    )
    fitting = np.trunc(runs.most_samples()[:, None] * gpus)
    low = np.maximum(bounds.batch_min[:, None], gpus)
    batch = np.clip(np.rint(batch), low, np.minimum(bounds.batch_max[:, None], fitting))
    copies = runs.repeated(gpus.shape[1])
    copies.bounds.interval_s *= _INTERVAL
    trials = Trials(gpus, batch, rate, np.full(gpus.shape, np.inf), np.full(gpus.shape, np.inf))
    _begin(copies, trials)
    played = play(copies, lambda _: Fixed())
    return trials._replace(
        seconds=np.where(played.reached, played.seconds, np.inf).reshape(gpus.shape),
        device_seconds=np.where(played.reached, played.device_seconds, np.inf).reshape(gpus.shape),
    )


def _begin(runs: Runs, trials: Trials) -> None:
    runs.begin_with(trials.gpus.ravel(), trials.batch.ravel())
    runs.parameters.lr_optimum = 1 / trials.rate.ravel()


def _chosen(trials: Trials) -> Array:
    """The column of each run's tuned setting, (R,)."""
    cheapest = trials.device_seconds.min(1, keepdims=True)
    affordable = trials.device_seconds <= ALLOWED * cheapest
    return np.asarray(np.where(affordable, trials.seconds, np.inf).argmin(1))
