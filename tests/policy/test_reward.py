from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.reward import (
    DISCOUNT,
    Scales,
    Terms,
    absorbing,
    action_change,
    discount,
    reward,
)

SCALES = Scales(throughput_max=1000, cost_max=4, total_s=500, interval_s=5)


def test_each_part_by_hand() -> None:
    terms = Terms(
        duration_s=10,  # two reference intervals
        throughput=250,
        cost=20,  # two devices for 10 s
        progress=0.02,
        action_change=0.25,
        scales=SCALES,
    )
    found = reward(terms, Weights(alpha=2, beta=0.5, gamma=3, smoothness=0.1))
    assert found.throughput == pytest.approx(2 * 2 * 0.25)
    assert found.cost == pytest.approx(-0.5 * 2 * 0.5)
    assert found.progress == pytest.approx(3 * 0.02)
    assert found.smoothness == pytest.approx(-0.1 * 2 * 0.25)
    assert found.penalty == 0
    assert found.total == pytest.approx(1 - 0.5 + 0.06 - 0.05)
    assert found.to_json()["total"] == pytest.approx(found.total)


@pytest.mark.parametrize(
    ("ending", "penalty"),
    [("oom", -10), ("diverged", -10), ("failed", -10), ("done", 0), (None, 0)],
)
def test_a_bad_end_has_the_terminal_penalty(ending: str | None, penalty: float) -> None:
    assert reward(Terms(5, ending=ending, scales=SCALES), Weights()).penalty == penalty


def test_throughput_counts_up_to_its_maximum() -> None:
    assert reward(Terms(5, throughput=9e9, scales=SCALES), Weights()).throughput == 1


@given(st.floats(0.5, 60), st.integers(2, 5))
def test_an_interval_is_worth_its_parts(duration: float, parts: int) -> None:
    whole = Terms(duration, 100, 2 * duration, 0.1, 0.5, scales=SCALES)
    part = Terms(duration / parts, 100, 2 * duration / parts, 0.1 / parts, 0.5, scales=SCALES)
    weights = Weights()
    assert reward(whole, weights).total == pytest.approx(parts * reward(part, weights).total)


def test_the_discount_goes_by_time() -> None:
    assert discount(5, SCALES) == pytest.approx(0.99)
    assert discount(10, SCALES) == pytest.approx(0.99**2)
    assert discount(2.5, SCALES) ** 2 == pytest.approx(0.99)


def test_the_absorbing_state_earns_alpha_and_gamma_until_the_horizon() -> None:
    weights = Weights(alpha=1, gamma=2)
    each = 1 + 2 * 5 / 500
    assert absorbing(5, weights, SCALES) == pytest.approx(each)
    assert absorbing(10, weights, SCALES) == pytest.approx(each * (1 + DISCOUNT))
    assert absorbing(12.5, weights, SCALES) == pytest.approx(
        each * (1 + DISCOUNT + DISCOUNT**2 / 2)
    )
    assert absorbing(0, weights, SCALES) == absorbing(-3, weights, SCALES) == 0


def episode(intervals: int, gpus: int, horizon: int, weights: Weights) -> float:
    """Return of a run that is done after so many intervals, to a horizon in intervals."""
    total = 0.0
    for place in range(intervals):
        terms = Terms(5, 1000 / intervals * 10, 5.0 * gpus, 1 / intervals, scales=SCALES)
        total += DISCOUNT**place * reward(terms, weights).total
    rest = absorbing(5.0 * (horizon - intervals), weights, SCALES)
    return total + DISCOUNT**intervals * rest


@given(
    st.floats(0.1, 5), st.floats(0, 5), st.floats(0, 5), st.sampled_from([(1, 2), (2, 4), (1, 4)])
)
def test_of_two_equally_cheap_runs_the_faster_has_the_higher_return(
    alpha: float, beta_part: float, gamma: float, gpus: tuple[int, int]
) -> None:
    weights = Weights(alpha=alpha, beta=alpha * min(beta_part / 5, 1), gamma=gamma)
    slow, fast = gpus
    work = 200  # device-intervals, both times: the same cost
    slower = episode(work // slow, slow, 400, weights)
    faster = episode(work // fast, fast, 400, weights)
    assert faster > slower


def test_the_change_of_an_action_is_a_mean_of_squares() -> None:
    assert action_change((1, 0, 0.5), (0, 0, -0.5)) == pytest.approx(2 / 3)


def test_terms_go_through_json() -> None:
    terms = Terms(5, 1, 2, 0.3, 0.4, "done", SCALES)
    assert Terms.from_json(json.loads(json.dumps(terms.to_json()))) == terms
