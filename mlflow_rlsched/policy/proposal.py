"""What a policy is: the interface between those who propose and the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.state import State


@dataclass(frozen=True)
class Proposal:
    """What a policy wants.

    Attributes:
        action: The change.
        reason: Why, in words for a person.
        predicted_gain: Relative gain in useful throughput that it expects (0.1 is 10 %), or
            None when it expects none in particular.
        notes: What it wants to find in ``History.notes`` at the next decision. A name with a dot
            is that of a model and what it has measured, ``goodput.surprise``: it is kept whoever
            decides. All others are about what the policy does, and are kept if it decides.
        doubt: Why another policy decided in its place, or None.
        inputs: What the networks saw, in the order of ``inputs.INPUTS``; None where they saw
            nothing.
        noise: What was added to the encoded factors of the batch and of the learning rate, to
            find out more.
    """

    action: Action
    reason: str
    predicted_gain: float | None = None
    notes: Mapping[str, float] = field(default_factory=dict)
    doubt: str | None = None
    inputs: tuple[float, ...] | None = None
    noise: tuple[float, float] = (0.0, 0.0)


class Policy(Protocol):
    """Maps what is known of a run to a proposal.

    ``propose`` is called once a decision, after the state and the history took in the interval.
    It is a function of its arguments: what a policy must remember stands in the history.
    """

    name: str
    version: str

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        """The change that it wants now."""
        ...
