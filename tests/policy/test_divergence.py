from __future__ import annotations

import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.divergence import (
    CHANCES,
    CHECKLIST,
    DivergenceError,
    Health,
    Watch,
    largest_value,
)
from mlflow_rlsched.policy.loss import WINDOW

WEIGHTS = Weights()


class Slowed:
    def __init__(self) -> None:
        self.times = 0

    def slow_down(self) -> None:
        self.times += 1


def health(reward: float = 0.5, value: float = 0.5, clipped: float = 0.0) -> Health:
    return Health(reward, value, clipped)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (health(value=3 * largest_value(WEIGHTS)), "where no policy earns above"),
        (health(value=float("nan")), "values of nan"),
        (health(clipped=0.5), "50% of the inputs"),
        (health(reward=float("nan")), "the reward is nan"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_check(bad: Health, says: str) -> None:
    learner = Slowed()
    watch = Watch(learner, WEIGHTS)
    assert watch.check(health()) is None
    told = watch.check(bad)
    assert told is not None
    assert says in told
    assert all(check in told for check in CHECKLIST)
    assert learner.times == 1


def test_a_falling_reward_is_seen_and_a_noisy_one_is_none() -> None:
    learner = Slowed()
    watch = Watch(learner, WEIGHTS)
    for place in range(3 * WINDOW):
        assert watch.check(health(reward=0.5 + 0.1 * (-1) ** place)) is None
    found = [watch.check(health(reward=0.5 - 0.03 * place)) for place in range(WINDOW)]
    assert any(text and "the reward fell from" in text for text in found)
    assert learner.times == 1


def test_it_slows_down_before_it_gives_up() -> None:
    learner = Slowed()
    watch = Watch(learner, WEIGHTS)
    for _ in range(CHANCES):
        assert watch.check(health(clipped=0.9)) is not None
    with pytest.raises(DivergenceError, match=f"lowered {CHANCES} times: 90% of the inputs"):
        watch.check(health(clipped=0.9))
    assert learner.times == CHANCES


def test_the_largest_value_is_the_sum_of_the_parts_at_their_bounds() -> None:
    weights = Weights(alpha=2, beta=1, gamma=3, smoothness=0.5)
    assert largest_value(weights) == pytest.approx(2 + 1 + 3 + 2 + 0.1)
