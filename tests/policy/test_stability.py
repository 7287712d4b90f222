from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.policy.history import Gradient, History
from mlflow_rlsched.policy.loss import ENOUGH, WINDOW, level, signals
from mlflow_rlsched.policy.stability import (
    alignment,
    bad_losses,
    efficiency,
    noise_scale,
    unrest,
)
from tests.policy.builders import report


def points(losses: list[float]) -> tuple[tuple[float, float], ...]:
    return tuple((100.0 * place, loss) for place, loss in enumerate(losses))


def calm(losses: list[float], **known: object) -> History:
    values = {"loss_first": 2.0, "loss_best": 0.9, "spread_usual": 0.05} | known
    return History(losses=points(losses), **values)  # type: ignore[arg-type]


def test_a_straight_fall_by_hand() -> None:
    found = signals(points([1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6]))
    assert found is not None
    assert found.level == pytest.approx(0.8)
    assert found.slope == pytest.approx(-0.001)
    assert found.spread == pytest.approx(0)
    assert found.change == pytest.approx(-0.7 / 0.8)
    assert found.trend == pytest.approx(-28 / (8 * 7 * 21 / 18) ** 0.5)
    assert found.falls
    assert not found.rises


def test_too_few_losses_say_nothing() -> None:
    assert signals(points([1.0] * (ENOUGH - 1))) is None
    assert level([]) is None


def test_samples_that_went_back_are_counted_by_place() -> None:
    samples = (500, 600, 100, 200, 300, 400, 500, 600)
    losses = [1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6]
    found = signals(tuple(zip(samples, losses, strict=True)))
    assert found is not None
    assert found.slope == pytest.approx(-0.1)


def test_one_bad_batch_is_neither_oscillation_nor_divergence() -> None:
    losses = [1.0, 1.02, 0.98, 1.01, 0.99, 40.0, 1.0, 0.98, 1.02, 1.0, 0.99, 1.01]
    for end in range(1, len(losses) + 1):
        assert unrest(calm(losses[:end])) is None
    assert unrest(History(nonfinite=(0, 0, 1, 0))) is None


def test_losses_that_are_not_finite_are_counted() -> None:
    assert unrest(History(nonfinite=(0, 1, 0, 1))) == "2 losses were not finite"
    assert unrest(History(nonfinite=(3,))) == "3 losses were not finite"
    assert bad_losses(report(nonfinite_losses=3.0)) == 3
    assert bad_losses(report(nonfinite=frozenset({"loss"}))) == 1
    assert bad_losses(report(nonfinite=frozenset({"grad_norm"}))) == 0


def test_an_oscillation_is_one() -> None:
    why = unrest(calm([1.0, 0.6, 1.4] * 4))
    assert why is not None
    assert "oscillates" in why


@pytest.mark.parametrize(
    "changes",
    [
        {"spread_usual": 0.5},  # it has always been like that
        {"spread_usual": None},
        {"loss_first": 100.0, "loss_best": 1.0},  # nobody would see it
    ],
)
def test_a_usual_or_a_tiny_spread_is_no_oscillation(changes: dict[str, float]) -> None:
    assert unrest(calm([1.0, 0.6, 1.4] * 4, **changes)) is None


def test_a_climb_is_one() -> None:
    why = unrest(calm([0.9, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0], loss_best=0.9))
    assert why == "the loss has climbed from 0.9 to 1.6"
    assert unrest(calm([0.9, 0.9, 0.91, 0.92, 0.94, 0.96, 0.98, 1.0])) is None


@pytest.mark.parametrize("count", range(ENOUGH, WINDOW + 1))
def test_the_spread_of_few_losses_is_not_taken_for_too_small(count: int) -> None:
    drawn = random.Random(0)
    found = []
    for _ in range(1000):
        seen = signals(points([drawn.gauss(0, 1) for _ in range(count)]))
        assert seen is not None
        found.append(seen.spread)
    assert fmean(found) == pytest.approx(1.0, abs=0.1)


def gradients(*cosines: float) -> tuple[Gradient, ...]:
    return tuple(Gradient(cosine, 8.0, cosine) for cosine in cosines)


def test_opposed_gradients_of_a_loss_that_does_not_fall_are_unrest() -> None:
    opposed = gradients(-0.4, -0.5, -0.3, -0.4, -0.5)
    why = unrest(calm([1.0, 1.01] * 6, gradients=opposed))
    assert why is not None
    assert "opposed" in why
    falling = [1.0 - 0.01 * place for place in range(12)]
    assert unrest(calm(falling, gradients=opposed)) is None


def test_the_alignment_by_hand() -> None:
    mean, strength = alignment(gradients(0.1, 0.3, 0.1, 0.3))
    assert mean == pytest.approx(0.2)
    assert strength == pytest.approx(0.2 / (0.11547 / 2), rel=1e-3)
    assert alignment(gradients(0.1, 0.2, 0.3)) == (0.0, 0.0)


def test_the_noise_scale_is_a_ratio_of_means() -> None:
    assert noise_scale((Gradient(-1, 10, 0), Gradient(5, 30, 0))) == pytest.approx(10)
    assert noise_scale((Gradient(-1, 10, 0),)) is None
    assert noise_scale(()) is None


def test_the_efficiency_is_pollux_equation_6() -> None:
    assert efficiency(100, 300, 60) == pytest.approx(160 / 400)
    assert efficiency(100, 60, 60) == 1
    assert efficiency(None, 60, 60) is None
    assert efficiency(100, None, 60) is None


@given(st.integers(0, 10_000))
def test_a_calm_loss_is_hardly_ever_taken_for_an_oscillation(seed: int) -> None:
    noise = random.Random(seed)
    losses = [1.0 + noise.gauss(0, 0.05) for _ in range(12)]
    assert unrest(calm(losses, loss_best=0.97)) is None
