"""Whether a learner diverges, and what is done about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.loss import WINDOW, signals
from mlflow_rlsched.policy.reward import DISCOUNT, TERMINAL_PENALTY

CHANCES = 4
"""How often the learner lowers its rates before it gives up."""

FALLING = 3.0
"""Standard deviations of a falling trend of the reward that are no chance."""

TOO_LARGE = 2.0
"""Mean absolute value over the largest that a policy can earn."""

CLIPPED = 0.05
"""Share of the normalised inputs that may be clipped."""

CHECKLIST = (
    "normalisation: are all inputs in about -1 to 1, and is the running mean and variance theirs",
    "reward weights: does one term outweigh the others, and do they fit the recorded ones",
    "actor learning rate: is it below the critics'",
)


class DivergenceError(RuntimeError):
    """The learner diverges at its lowest rate too."""


class Slows(Protocol):
    """A learner whose rates can be lowered."""

    def slow_down(self) -> None:
        """Lower the learning rates."""
        ...


@dataclass(frozen=True)
class Health:
    """How a round of learning went.

    Attributes:
        reward: Mean reward a reference interval of the episodes.
        value: Mean absolute value that the critics estimate, in the same unit.
        clipped: Share of the normalised inputs that were clipped, 0 to 1.
    """

    reward: float
    value: float
    clipped: float


def largest_value(weights: Weights) -> float:
    """The most that a policy can earn or lose a reference interval, on average.

    Each part of the reward at its bound (``reward``): the progress of a whole training and the
    penalty once, the others all the time.
    """
    always = weights.alpha + weights.beta + weights.gamma + 4 * weights.smoothness
    return always + (1 - DISCOUNT) * TERMINAL_PENALTY


class Watch:
    """Looks at each round of learning; on divergence slows the learner down, then gives up.

    Args:
        learner: Who is slowed down.
        weights: The largest weights of the reward that occur.
    """

    def __init__(self, learner: Slows, weights: Weights) -> None:
        self._learner = learner
        self._largest = largest_value(weights)
        self._rewards: list[float] = []
        self._lowered = 0

    def check(self, health: Health) -> str | None:
        """What is wrong, with what to check, in words; None when nothing is.

        Raises:
            DivergenceError: It is wrong again, after the rates were lowered ``CHANCES`` times.
        """
        self._rewards = [*self._rewards, health.reward][-WINDOW:]
        found = self._found(health)
        if found is None:
            return None
        checks = "; ".join(f"{place}. {text}?" for place, text in enumerate(CHECKLIST, 1))
        if self._lowered == CHANCES:
            raise DivergenceError(
                f"the learner diverges, its rates lowered {CHANCES} times: {found}. Check {checks}"
            )
        self._lowered += 1
        self._learner.slow_down()
        self._rewards = []  # what comes now is judged by itself
        return (
            f"the learner may diverge: {found}. Its rates are lowered"
            f" ({self._lowered} of {CHANCES}). Check {checks}"
        )

    def _found(self, health: Health) -> str | None:
        # A value that is not a number is below no bound.
        if not health.value <= TOO_LARGE * self._largest:
            return f"values of {health.value:.3g}, where no policy earns above {self._largest:.3g}"
        if not health.clipped <= CLIPPED:
            return f"{health.clipped:.0%} of the inputs lie beyond what the normalisation covers"
        if not math.isfinite(health.reward):
            return f"the reward is {health.reward}"
        seen = signals(list(enumerate(map(float, self._rewards))))
        if seen is not None and len(self._rewards) == WINDOW and seen.trend < -FALLING:
            first, last = self._rewards[0], self._rewards[-1]
            return f"the reward fell from {first:.3g} to {last:.3g} in {WINDOW} rounds"
        return None
