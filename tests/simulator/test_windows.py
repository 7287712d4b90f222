"""Windows on arrays against the policy's own functions, row by row."""

from __future__ import annotations

from statistics import median as median_of

import numpy as np
import pytest

from mlflow_rlsched.policy import loss, stability
from mlflow_rlsched.policy.history import Gradient
from mlflow_rlsched.simulator import windows

ROWS = 200


def filled(random: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """Windows with so many values each, the newest in the last place."""
    values = random.standard_normal((len(counts), loss.WINDOW))
    values[np.arange(loss.WINDOW) < loss.WINDOW - counts[:, None]] = np.nan
    return values


def test_a_median_leaves_out_what_is_missing() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(1, loss.WINDOW + 1, ROWS)
    values = random.permuted(filled(random, counts), axis=1)
    expected = [median_of(row[np.isfinite(row)]) for row in values]
    assert windows.median(values) == pytest.approx(expected)
    assert np.isnan(windows.median(windows.empty(1))).all()
    assert np.isnan(windows.mean(windows.empty(1))).all()


def test_a_window_forgets_its_oldest_value() -> None:
    held = windows.empty(2)
    for value in range(loss.WINDOW + 1):
        held = windows.push(held, np.array([value, value], float), np.array([True, value < 3]))
    assert held[0].tolist() == list(range(1, loss.WINDOW + 1))
    assert held[1, -3:].tolist() == [0, 1, 2]
    assert np.isnan(held[1, :-3]).all()


@pytest.mark.parametrize("rolled_back", [False, True])
def test_trends_are_those_of_the_policy(rolled_back: bool) -> None:
    random = np.random.default_rng(1)
    counts = random.integers(0, loss.WINDOW + 1, ROWS)
    samples = np.cumsum(random.uniform(1, 10, (ROWS, loss.WINDOW)), axis=1)
    if rolled_back:
        samples[:, -2] = samples[:, -4]
    losses = filled(random, counts) + random.uniform(-0.1, 0.1, (ROWS, 1)) * samples
    losses[0] = 1.0  # one that does not move
    samples[np.isnan(losses)] = np.nan
    found = windows.trends(samples, losses)
    for i in range(ROWS):
        known = np.isfinite(losses[i])
        points = list(zip(samples[i, known].tolist(), losses[i, known].tolist(), strict=True))
        expected = loss.signals(points)
        assert bool(found.known[i]) == (expected is not None)
        if expected is not None:
            assert found.level[i] == pytest.approx(expected.level)
            assert found.trend[i] == pytest.approx(expected.trend)
            assert found.spread[i] == pytest.approx(expected.spread, abs=1e-12)
            assert found.change[i] == pytest.approx(expected.change)
            assert bool(found.falls[i]) == expected.falls


def test_alignment_is_that_of_the_policy() -> None:
    random = np.random.default_rng(2)
    cosines = filled(random, random.integers(0, loss.WINDOW + 1, ROWS)) / 5 - 0.1
    cosines[0] = 0.5  # all alike
    mean, strength = windows.alignment(cosines)
    for i in range(ROWS):
        gradients = [Gradient(1, 1, float(c)) for c in cosines[i] if np.isfinite(c)]
        expected = stability.alignment(gradients)
        assert (mean[i], strength[i]) == pytest.approx(expected, rel=1e-6)
