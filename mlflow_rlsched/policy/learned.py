"""The policy ``ddpg``: what the trained actor proposes, and when ``rules`` decide in its place."""

from __future__ import annotations

import math
from pathlib import Path

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.advice import Knowledge, advised
from mlflow_rlsched.policy.baselines import Rules
from mlflow_rlsched.policy.checkpoint import Version, actor_outputs
from mlflow_rlsched.policy.guard import NOISE
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import INPUTS, Array, action_of, chosen, inputs_of
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.state import State

BEYOND = 0.1
"""How far an input may lie outside of what the training saw; inputs are of about 1."""

SURPRISED = 0.5
"""Smoothed error of the predicted step times, of their logarithm, that is no longer trusted."""


class Ddpg:
    """Acts by a policy version, cautiously.

    Args:
        trained: The version.
        weights: The reward's weights, which the actor obeys.
        per_node: Devices of a node.
    """

    name = "ddpg"

    def __init__(
        self, trained: Version, weights: Weights | None = None, per_node: float = math.inf
    ) -> None:
        self.version = trained.name
        self._arrays = trained.arrays
        self._optional = frozenset(trained.optional)
        self._weights = weights or Weights()
        self._per_node = per_node

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        """The actor's action; that of ``rules``, with the reason, where it is not to be trusted."""
        known, advice = advised(interval, history, limits, self._weights, self._per_node)
        inputs = inputs_of(state, self._weights, advice)
        doubt = self._doubt(state, inputs, known)
        if doubt is not None:
            by_rule = Rules().propose(state, interval, history, limits)
            reason = f"the rules decide, as {doubt}: {by_rule.reason}"
            return Proposal(
                by_rule.action, reason, by_rule.predicted_gain, {**by_rule.notes, **known.notes()}
            )
        encoded = chosen(actor_outputs(self._arrays, inputs[None]))[0]
        action = _possible(action_of(encoded), interval, limits)
        gain = None
        if action.gpu_delta or action.batch_factor != 1:
            gain = known.gain(action, interval, history, limits, self._per_node)
        return Proposal(action, _told(action, gain), gain, known.notes())

    def _doubt(self, state: State, inputs: Array, known: Knowledge) -> str | None:
        """Why the actor is not to be trusted here; None when it is."""
        missing = sorted(state.missing - self._optional)
        if missing:
            return f"{', '.join(missing)} is not known, and the policy was trained with it"
        low, high = self._arrays["normaliser.low"], self._arrays["normaliser.high"]
        outside = (inputs < low - BEYOND) | (inputs > high + BEYOND)
        if outside.any():
            at = int(outside.argmax())
            return (
                f"{INPUTS[at]} is {inputs[at]:.3g}, and the policy was trained on"
                f" {low[at]:.3g} to {high[at]:.3g}"
            )
        if known.surprise > SURPRISED:
            return f"its predictions of the step time were off by {math.expm1(known.surprise):.0%}"
        return None


def load(path: Path, weights: Weights | None = None, per_node: float = math.inf) -> Ddpg:
    """The policy in a file.

    Raises:
        PolicyFileError: The file holds none that can be used.
    """
    return Ddpg(Version.read(path), weights, per_node)


def _possible(action: Action, interval: Interval, limits: Limits) -> Action:
    """What the training can do of it; what is under the noise is no change."""

    def factor(wanted: float, knob: str) -> float:
        return wanted if knob in interval.can and abs(wanted - 1) >= NOISE else 1.0

    return Action(
        action.gpu_delta if limits.gpus_are_live and "resume" in interval.can else 0,
        factor(action.batch_factor, "batch_size"),
        factor(action.lr_factor, "learning_rate"),
    )


def _told(action: Action, gain: float | None) -> str:
    parts = [f"{action.gpu_delta:+d} devices"] if action.gpu_delta else []
    factors = {"batch": action.batch_factor, "learning rate": action.lr_factor}
    parts += [f"{name} times {factor:.2f}" for name, factor in factors.items() if factor != 1]
    expected = "" if gain is None else f", goodput {gain:+.0%} expected"
    return f"learned: {', '.join(parts) or 'no change'}{expected}"
