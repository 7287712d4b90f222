"""What one run's goodput model knows and advises, and the policy ``goodput`` that follows it.

A policy is a function of its arguments, so what the model has seen stands in the notes of the
history, under names that begin with ``goodput.``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy import goodput as model
from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS, Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import Advice, Array
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.memory import sparing
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.rate import rate_proposal, with_rate
from mlflow_rlsched.policy.stability import noise_scale
from mlflow_rlsched.policy.state import State

PREFIX = "goodput."

BACK = 0.1
"""Gain in goodput from which one goes back to fewer devices that were measured to be better."""

ENOUGH = 3
"""Measurements of a setting from which it counts as measured."""

_COLUMNS = ("gpus", "batch", "seconds", "count")
_SMOOTH = 0.3
_RUN = np.zeros(1, int)


@dataclass(frozen=True)
class Knowledge:
    """What a run's step times have taught.

    Attributes:
        timings: One row.
        parameters: (1, 7) the fit.
        surprise: Smoothed error of the last predictions, of the logarithm of the step time.
    """

    timings: model.Timings
    parameters: Array
    surprise: float = 0.0

    @classmethod
    def of(cls, notes: Mapping[str, float]) -> Knowledge:
        """What ``notes`` left behind; nothing where they hold nothing, or not all of it."""
        settings = int(notes.get(PREFIX + "settings", 0))
        timings = model.Timings.none(1)
        for slot in range(min(settings, model.SLOTS)):
            for name in _COLUMNS:
                getattr(timings, name)[0, slot] = notes.get(f"{PREFIX}{name}.{slot}", math.nan)
        timings.settings[0] = settings
        fitted = np.array([[notes.get(PREFIX + name, math.nan) for name in model.PARAMETERS]])
        sizes = [getattr(timings, name) for name in _COLUMNS[:-1]]
        if settings < 1 or not all((size > 0).all() for size in sizes) or np.isnan(fitted).any():
            timings = model.Timings.none(1)
            return cls(timings, model.assumed(timings))
        return cls(timings, fitted, notes.get(PREFIX + "surprise", 0.0))

    def notes(self) -> dict[str, float]:
        """For the history; ``of`` reads them."""
        found = {PREFIX + "settings": float(self.timings.settings[0])}
        for slot in range(min(int(self.timings.settings[0]), model.SLOTS)):
            for name in _COLUMNS:
                found[f"{PREFIX}{name}.{slot}"] = float(getattr(self.timings, name)[0, slot])
        fitted = zip(model.PARAMETERS, self.parameters[0].tolist(), strict=True)
        found |= {PREFIX + name: value for name, value in fitted}
        return found | {PREFIX + "surprise": self.surprise}

    def with_interval(self, interval: Interval, history: History, per_node: float) -> Knowledge:
        """The knowledge after an interval; the same if no step time could be read off it."""
        seconds = _step_seconds(interval, history)
        if seconds is None:
            return self
        gpus = np.array([max(1.0, interval.setting.gpus)])
        batch = np.array([float(interval.setting.batch_size or 1)])
        surprise = self.surprise
        if self.timings.settings[0]:
            predicted = model.step_seconds(self.parameters, gpus[None], batch[None], per_node)
            error = abs(math.log(seconds / float(predicted[0, 0])))
            surprise += _SMOOTH * (min(error, 5.0) - surprise)
        timings = deepcopy(self.timings)
        timings.add(_RUN, gpus, batch, np.array([seconds]))
        start = self.parameters if self.timings.settings[0] else model.assumed(timings)
        return Knowledge(timings, model.fit(start, timings, per_node), surprise)

    def advice(
        self,
        interval: Interval,
        history: History,
        limits: Limits,
        weights: Weights,
        per_node: float,
    ) -> Advice:
        """What the model proposes; no change while it has seen nothing."""
        if not self.timings.settings[0] or not interval.setting.batch_size:
            return Advice()
        situation = _situation(interval, history, limits, weights)
        found = model.advise(self.parameters, situation, per_node)
        return Advice(
            int(found.gpu_delta[0]),
            float(found.batch_factor[0]),
            float(found.gain[0]),
            float(model.fit_error(self.parameters, self.timings, per_node)[0]),
        )

    def gain(
        self, action: Action, interval: Interval, history: History, limits: Limits, per_node: float
    ) -> float | None:
        """Relative gain in goodput that the model predicts of an action; None without a model."""
        if not self.timings.settings[0] or not interval.setting.batch_size:
            return None
        situation = _situation(interval, history, limits, Weights())
        changes = (np.array([action.gpu_delta]), np.array([action.batch_factor]))
        return float(model.gain(self.parameters, situation, *changes, per_node)[0])

    def way_back(
        self, interval: Interval, history: History, limits: Limits, per_node: float
    ) -> tuple[Action, float] | None:
        """The step towards fewer devices that were measured to be better than those held.

        What more devices bring is foretold before they are there, and across nodes for the first
        time; once it was measured, what did not come true is taken back.

        Returns:
            The step and its gain in goodput, at least ``BACK``; None where there is none.
        """
        gpus, seen = interval.setting.gpus, self.timings.count[0] >= ENOUGH
        fewer = seen & (self.timings.gpus[0] < gpus) & (self.timings.gpus[0] >= limits.gpus_min)
        if not fewer.any() or not (seen & (self.timings.gpus[0] == gpus)).any():
            return None
        situation = _situation(interval, history, limits, Weights())
        gains = model.gains_measured(self.parameters, self.timings, situation, per_node)[0]
        best = int(np.where(fewer, gains, -math.inf).argmax())
        if gains[best] < BACK:
            return None
        towards = float(self.timings.batch[0, best]) / float(situation.batch[0])
        delta = max(int(self.timings.gpus[0, best]) - gpus, GPU_DELTAS[0])
        factor = min(max(towards, FACTOR_MIN), FACTOR_MAX) if "batch_size" in interval.can else 1.0
        return Action(delta, factor), float(gains[best])


def _step_seconds(interval: Interval, history: History) -> float | None:
    """Step time of an interval that trained at one setting all along; None when it did not."""
    told = any("samples" in report.numbers for report in interval.reports)
    restarted = history.action.gpu_delta != 0
    batch = interval.setting.batch_size
    if not told or restarted or not interval.acknowledged or not batch or not history.throughput:
        return None
    return batch / history.throughput


def _situation(
    interval: Interval, history: History, limits: Limits, weights: Weights
) -> model.Situation:
    setting = interval.setting
    gpus, batch = max(1, setting.gpus), setting.batch_size or 1
    least, most = (limits.gpus_min, limits.gpus_max) if limits.gpus_are_live else (gpus, gpus)
    if interval.free_gpus is not None:
        most = min(most, gpus + max(0, interval.free_gpus))
    if interval.budget is not None and limits.gpus_are_live:
        most = max(least, min(most, interval.budget.gpus))
    smallest, largest = limits.batch_min, limits.batch_max
    if "batch_size" not in interval.can:
        smallest = largest = batch
    scale = noise_scale(history.gradients)
    numbers = (
        gpus,
        batch,
        max(1, least),
        max(1, most),
        smallest,
        largest,
        math.nan if scale is None else scale,
        weights.alpha,
        weights.beta,
    )
    return model.Situation(*(np.array([float(number)]) for number in numbers))


def advised(
    interval: Interval, history: History, limits: Limits, weights: Weights, per_node: float
) -> tuple[Knowledge, Advice]:
    """What is known of a run's steps, the interval included, and what follows from it."""
    known = Knowledge.of(history.notes).with_interval(interval, history, per_node)
    return known, known.advice(interval, history, limits, weights, per_node)


class Goodput:
    """Follows the goodput model, and ``rules`` for the learning rate.

    Args:
        weights: The reward's weights: what a device is worth.
        per_node: Devices of a node; steps over several nodes are slower.
    """

    name = "goodput"
    version = "1"

    def __init__(self, weights: Weights | None = None, per_node: float = math.inf) -> None:
        self._weights = weights or Weights()
        self._per_node = per_node

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        """The model's step, joined with the rule's change of the learning rate."""
        known, advice = advised(interval, history, limits, self._weights, self._per_node)
        rate = rate_proposal(interval, history)
        action = with_rate(Action(advice.gpu_delta, advice.batch_factor), rate)
        gain = None
        if action.gpu_delta or action.batch_factor != 1:
            gain = known.gain(action, interval, history, limits, self._per_node)
        notes = {**rate.notes, **known.notes()}
        proposal = Proposal(action, f"{_told(advice)}; {rate.reason}", gain, notes)
        return sparing(proposal, interval, history, limits)


def _told(advice: Advice) -> str:
    if not advice.gpu_delta and advice.batch_factor == 1:
        return "the goodput model knows nothing better"
    return (
        f"the goodput model (error {advice.error:.0%}) expects {advice.gain:+.0%} of"
        f" {advice.gpu_delta:+d} devices and a batch of {advice.batch_factor:.2f} times"
    )
