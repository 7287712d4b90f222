"""The policy ``ddpg``: what the trained actor proposes, and when ``rules`` decide in its place.

A version says which knobs its actor sets. Where the learning rate is none of them, the rules set
it: an actor that was not better at it than they are is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from random import Random

import numpy as np

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.advice import Knowledge, advised
from mlflow_rlsched.policy.baselines import Rules
from mlflow_rlsched.policy.checkpoint import Version, actor_outputs
from mlflow_rlsched.policy.guard import NOISE, NOISE_MARGIN
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import FACTORS, INPUTS, Array, action_of, chosen, inputs_of
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.memory import sparing
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.rate import rate_proposal, with_rate
from mlflow_rlsched.policy.state import State

BEYOND = 0.1
"""How far an input may lie outside of what the training saw; inputs are of about 1."""

EXPLORATION = 0.05
"""Standard deviation of the noise on the factors of real runs, in the encoding of -1 to 1."""

SURPRISED = 0.5
"""Smoothed error of the predicted step times, of their logarithm, that is no longer trusted."""


class Ddpg:
    """Acts by a policy version, cautiously.

    Args:
        trained: The version.
        weights: The reward's weights, which the actor obeys.
        per_node: Devices of a node.
        explores: Seed of the noise on its factors, such as the run: the same decision of the same
            run has the same. None for no noise.
    """

    name = "ddpg"

    def __init__(
        self,
        trained: Version,
        weights: Weights | None = None,
        per_node: float = math.inf,
        explores: str | None = None,
    ) -> None:
        self.version = trained.name
        self._arrays = trained.arrays
        self._optional = frozenset(trained.optional)
        self._heads = frozenset(trained.heads)
        self._weights = weights or Weights()
        self._per_node = per_node
        self._explores = explores

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        """The actor's action; that of ``rules``, with the reason, where it is not to be trusted."""
        known, advice = advised(interval, history, limits, self._weights, self._per_node)
        notes = known.notes()
        inputs = inputs_of(state, self._weights, advice)
        finite = np.isfinite(inputs).all()
        seen = tuple(round(number, 6) for number in inputs.tolist()) if finite else None
        doubt = self._doubt(state, inputs, known)
        if doubt is not None:
            by_rule = Rules(doubt).propose(state, interval, history, limits)
            return replace(by_rule, notes={**by_rule.notes, **notes}, inputs=seen)
        encoded = chosen(actor_outputs(self._arrays, inputs[None]))[0]
        noise = self._noise(history.decisions)
        encoded[-FACTORS:] = np.clip(encoded[-FACTORS:] + noise, -1, 1)
        knobs = self._heads & _able(interval, limits)
        back = None
        if "gpus" in knobs:
            back = known.way_back(interval, history, limits, self._per_node)
        action = _possible(action_of(encoded) if back is None else back[0], knobs)
        rate = None if "learning_rate" in self._heads else rate_proposal(interval, history)
        if rate is not None:
            action = with_rate(action, rate)
            notes = {**rate.notes, **notes}
        gain = None
        if action.gpu_delta or action.batch_factor != 1:
            gain = known.gain(action, interval, history, limits, self._per_node)
        if gain is not None and not action.gpu_delta and gain < _least_gain(history, limits):
            # What the run itself has shown of its speed outweighs what was learned from others.
            action, gain = replace(action, batch_factor=1.0), None
        reason = _told(action, gain)
        if back is not None:
            reason = f"{reason}: on fewer devices {back[1]:+.0%} was measured"
        if rate is not None:
            reason = f"{reason}; {rate.reason}"
        proposal = Proposal(action, reason, gain, notes, inputs=seen, noise=noise)
        return sparing(proposal, interval, history, limits)

    def _noise(self, decision: int) -> tuple[float, float]:
        if self._explores is None:
            return 0.0, 0.0
        random = Random(f"{self._explores} {decision}")  # noqa: S311 - no secret
        batch, rate = random.gauss(0, EXPLORATION), random.gauss(0, EXPLORATION)
        return (
            batch if "batch_size" in self._heads else 0.0,
            rate if "learning_rate" in self._heads else 0.0,
        )

    def _doubt(self, state: State, inputs: Array, known: Knowledge) -> str | None:
        """Why the actor is not to be trusted here; None when it is."""
        missing = sorted(state.missing - self._optional)
        if missing:
            return f"{', '.join(missing)} is not known, and the policy was trained with it"
        low, high = self._arrays["normaliser.low"], self._arrays["normaliser.high"]
        inside = (inputs >= low - BEYOND) & (inputs <= high + BEYOND)  # what is no number is not
        if not inside.all():
            at = int(inside.argmin())
            return (
                f"{INPUTS[at]} is {inputs[at]:.3g}, and the policy was trained on"
                f" {low[at]:.3g} to {high[at]:.3g}"
            )
        if known.surprise > SURPRISED:
            return f"its predictions of the step time were off by {math.expm1(known.surprise):.0%}"
        return None


def _least_gain(history: History, limits: Limits) -> float:
    """Gain in goodput, as the run's own model predicts it, that another batch alone has to bring.

    Where the devices can change, small steps of the batch lead to more of them. Where they cannot,
    a step that does not clearly pay only keeps the rules from judging the learning rate.
    """
    if limits.gpus_are_live and limits.gpus_min < limits.gpus_max:
        return 0.0
    return NOISE_MARGIN * (history.throughput_noise or math.inf)


def _able(interval: Interval, limits: Limits) -> set[str]:
    """Knobs that can be turned."""
    gpus = limits.gpus_are_live and "resume" in interval.can
    return {*interval.can, "gpus"} if gpus else set(interval.can)


def _possible(action: Action, knobs: Set[str]) -> Action:
    """What some knobs do of it; what is under the noise is no change."""

    def factor(wanted: float, knob: str) -> float:
        return wanted if knob in knobs and abs(wanted - 1) >= NOISE else 1.0

    return Action(
        action.gpu_delta if "gpus" in knobs else 0,
        factor(action.batch_factor, "batch_size"),
        factor(action.lr_factor, "learning_rate"),
    )


def _told(action: Action, gain: float | None) -> str:
    parts = [f"{action.gpu_delta:+d} devices"] if action.gpu_delta else []
    factors = {"batch": action.batch_factor, "learning rate": action.lr_factor}
    parts += [f"{name} times {factor:.2f}" for name, factor in factors.items() if factor != 1]
    expected = "" if gain is None else f", goodput {gain:+.0%} expected"
    return f"learned: {', '.join(parts) or 'no change'}{expected}"
