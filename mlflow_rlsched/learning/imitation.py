"""A warm start by imitation: DAgger (Ross et al. 2011, "A Reduction of Imitation Learning ...").

A learned scheduler needs one (Peng et al. 2021, "DL2: A Deep Learning-Driven Scheduler"). The
expert says what it would do where the *actor* leads, not only where it leads itself, so that the
actor learns to come back from its own mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from mlflow_rlsched.policy.ddpg import Learner
from mlflow_rlsched.policy.inputs import Array

Expert = Callable[[], Array]
"""Encoded actions (N, 7) that the expert would take where the environments are now."""


class Environments(Protocol):
    """Environments in lockstep; one whose episode ends begins another."""

    def reset(self) -> Array:
        """Begin an episode in each; returns the inputs (N, 31)."""
        ...

    def act(self, actions: Array) -> Array:
        """Take the encoded actions (N, 7); returns the inputs that follow."""
        ...


def dagger(
    learner: Learner,
    environments: Environments,
    expert: Expert,
    *,
    rounds: int,
    steps: int,
    passes: int,
    batch_size: int = 256,
    rate: float = 1e-3,
    mixing: float = 0.5,
    seed: int = 0,
) -> Iterator[float]:
    """Teach the learner's actor; yields the mean loss of each round.

    Args:
        learner: Its actor learns and its normalisation takes in what is seen; reinforcement begins
            with ``Learner.hold_here``.
        environments: Where it acts; they go on from round to round.
        expert: Who is imitated.
        rounds: Rounds of acting, then learning from all that was seen so far.
        steps: Steps a round.
        passes: How often a round learns from each example, on average.
        batch_size: Examples a learning step.
        rate: Learning rate of the first round; it falls to 0 in equal steps.
        mixing: The expert acts instead of the actor with this probability to the power of the
            round (beta of the paper, section 3.1): always in the first.
        seed: Of who acts and what is learned from.
    """
    random = np.random.default_rng(seed)
    seen: list[Array] = []
    taught: list[Array] = []
    inputs = environments.reset()
    for place in range(rounds):
        for _ in range(steps):
            wanted = expert()
            learner.observe(inputs)
            seen.append(inputs)
            taught.append(wanted)
            led = random.random((len(inputs), 1)) < mixing**place
            inputs = environments.act(np.where(led, wanted, learner.act(inputs)))
        examples, actions = np.concatenate(seen), np.concatenate(taught)
        losses = [
            learner.imitate(examples[drawn], actions[drawn], rate * (1 - place / rounds))
            for drawn in random.integers(
                len(examples), size=(max(1, passes * len(examples) // batch_size), batch_size)
            )
        ]
        yield float(np.mean(losses))
