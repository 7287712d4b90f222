"""Policies side by side on the same runs."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from mlflow_rlsched.learning.comparison import (
    AT_ONCE,
    HELD_OUT,
    POLICIES,
    Comparison,
    compare,
    novice,
    side_by_side,
)
from mlflow_rlsched.learning.evaluation import Estimate, Played
from mlflow_rlsched.simulator.drawing import applications
from mlflow_rlsched.simulator.parameters import Effects, Ranges
from mlflow_rlsched.simulator.run import Runs
from tests.policy.trained import trained

SHORT = Ranges(length_s=(60, 100), decisions=(10, 15), gpus_max=(1, 3))


def short(count: int, seed: int) -> Runs:
    return Runs(count, seed, Effects(device_loss=False), SHORT)


def played(seconds: list[float], devices: list[float], reached: list[bool]) -> Played:
    nothing = np.zeros(len(seconds))
    times, held = np.array(seconds), np.array(seconds) * devices
    return Played(times, held, nothing, np.array(reached), nothing, nothing)


def same(one: Played, other: Played) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


def test_two_policies_on_three_runs() -> None:
    other = played([10, 20, 100], [1, 1, 1], [True, True, False])
    found = compare(played([5, 20, 50], [2, 2, 4], [True, False, True]), other)
    assert found.time is not None
    assert (found.pairs, found.lost, found.rescued) == (2, 1, 1)
    assert found.time.value == pytest.approx(0.75)
    assert 0.5 <= found.time.low < found.time.high <= 1
    assert found.geometric == pytest.approx(0.5**0.5)
    assert found.device_hours == pytest.approx((5 * 2 + 20 * 2) / (10 + 20))
    assert found.reached == pytest.approx(2 / 3)
    itself = Comparison(2, Estimate(1, 1, 1), 1, 1, reached=2 / 3, lost=1, rescued=0)
    assert compare(other, other) == itself


def test_a_target_that_nobody_reaches() -> None:
    lost = played([10, 10], [1, 1], [False, False])
    assert compare(lost, lost) == Comparison(0, None, None, None, reached=0, lost=2, rescued=0)


def test_the_figures_do_not_depend_on_the_processes() -> None:
    policies = {"fixed": "fixed", "rules": "rules", "raises": trained(1.1)}
    count, told = AT_ONCE + 2, []
    alone = side_by_side(policies, short, count, 3, tell=lambda *done: told.append(done))
    assert told == [(done, 6) for done in range(1, 7)]
    several = side_by_side(policies, short, count, 3, workers=2)
    for name in policies:
        assert len(alone[name].seconds) == count
        assert same(alone[name], several[name])
    assert not same(alone["fixed"], alone["raises"])
    assert not same(alone["fixed"], side_by_side({"fixed": "fixed"}, short, count, 4)["fixed"])


def test_fewer_runs_are_the_first_of_more() -> None:
    few, more = (side_by_side({"it": "fixed"}, short, n)["it"] for n in (AT_ONCE, 2 * AT_ONCE))
    assert same(few, more.where(np.arange(2 * AT_ONCE) < AT_ONCE))


def test_how_a_novice_starts() -> None:
    runs = novice(64, 0)
    p, bounds = runs.parameters, runs.bounds
    assert (bounds.batch_initial == p.base_batch).all()
    assert (runs.settings.gpus[::2] == 1).all()
    assert (runs.settings.gpus[1::2] == np.minimum(bounds.gpus_max, p.base_batch)[1::2]).all()
    assert p.lr_optimum.min() < 0.5 < 2 < p.lr_optimum.max()
    assert set(p.base_batch) <= {applications()[app]["batch"][0] for app in HELD_OUT}
    assert (novice(64, 0).parameters.steps == p.steps).all()


def test_what_can_be_named() -> None:
    for name, policy in POLICIES.items():
        assert policy(4.0).name == name
