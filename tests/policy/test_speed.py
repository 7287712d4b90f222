from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.speed import SETTLING, heard, speed_of
from tests.policy.builders import interval, report


def followed(losses: list[float], samples: list[float], changed: float = 0.0) -> dict[str, float]:
    """The notes after intervals that told one loss each."""
    history = History(lr_changed_at=changed)
    for loss, seen in zip(losses, samples, strict=True):
        history = replace(history, samples=seen)
        history = replace(history, notes=heard(interval(reports=[report(loss=loss)]), history))
    return dict(history.notes)


SAMPLES = [1000.0 * 1.1**i for i in range(12)]


def test_a_power_law_has_the_speed_of_its_power() -> None:
    noise = np.random.default_rng(0).normal(0, 0.002, len(SAMPLES))
    losses = [s**-0.2 * (1 + e) for s, e in zip(SAMPLES, noise.tolist(), strict=True)]
    found = speed_of(followed(losses, SAMPLES))
    assert found.value == pytest.approx(0.2, rel=0.2)  # of the loss over its first level
    assert abs(found.value - 0.18) < 4 * found.error
    assert found.intervals == len(SAMPLES) - SETTLING


def test_a_flat_loss_has_no_speed_and_says_how_sure_that_is() -> None:
    quiet, loud = (
        speed_of(
            followed(np.random.default_rng(1).normal(1, noise, len(SAMPLES)).tolist(), SAMPLES)
        )
        for noise in (0.01, 0.1)
    )
    assert abs(quiet.value) < 3 * quiet.error
    assert abs(loud.value) < 3 * loud.error
    assert loud.error > 5 * quiet.error


def test_a_loss_below_zero_that_falls_has_a_speed_above_zero() -> None:
    losses = [-1.0 - 0.1 * i for i in range(len(SAMPLES))]
    assert speed_of(followed(losses, SAMPLES)).value > 0.5


def test_a_change_of_the_rate_begins_anew() -> None:
    notes = followed([2.0] * len(SAMPLES), SAMPLES)
    history = History(samples=5000.0, lr_changed_at=4000.0, notes=notes)
    again = heard(interval(reports=[report(loss=1.0)]), history)
    assert speed_of(again) == (0.0, math.inf, 0)


@pytest.mark.parametrize("told", [{}, {"loss": math.inf}])
def test_an_interval_without_a_loss_says_nothing(told: dict[str, float]) -> None:
    notes = followed([2.0] * 6, SAMPLES[:6])
    history = History(samples=5000.0, notes=notes)
    assert speed_of(heard(interval(reports=[report(**told)]), history)) == speed_of(notes)
    assert speed_of({}) == (0.0, math.inf, 0)
