from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import sim, sim_figures
from benchmarks.sim_policies import HINDSIGHT, contenders, side_by_side
from benchmarks.sim_starts import SEED, RaisedRate, VaryingMemory
from benchmarks.sim_tuned import tuned
from mlflow_rlsched.learning.comparison import novice
from mlflow_rlsched.learning.evaluation import Played, play
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.simulator.measured import OOM
from mlflow_rlsched.simulator.parameters import Effects, Ranges
from mlflow_rlsched.simulator.run import Runs
from tests.policy.trained import trained

COUNT = 6
APPS = ("yolov3", "cifar10")
SHORT = Ranges(length_s=(100, 200), decisions=(40, 60), lr_optimum=(0.2, 5.0))
CALM = replace(Effects(), device_loss=False, interference=False, input_bound=False)


def played(seconds: Iterable[float], reached: Iterable[bool] | None = None) -> Played:
    values = np.array(list(seconds), float)
    there = np.ones(len(values), bool) if reached is None else np.array(list(reached))
    nothing = np.zeros(len(values))
    return Played(values, values * 2, nothing + 0.4, there, nothing + 1, nothing)


def test_one_device_and_the_smallest_batch_are_best_where_nothing_else_pays() -> None:
    runs = Runs(COUNT, 0, CALM, SHORT, APPS)
    p = runs.parameters
    p.throughput[:, 0] = 0.0  # a step takes as long as its samples
    p.throughput[:, 2:6] = 1e3  # and several devices wait for each other
    p.noise_scale[:] = -3.0  # a larger batch teaches no more
    p.steps[:] = 100 / (p.throughput[:, 1] * p.bounds.batch_min)
    found = tuned(runs)
    assert (found.settings.gpus == 1).all()
    assert np.array_equal(found.settings.batch, runs.bounds.batch_min)


def test_the_largest_batch_is_best_where_only_steps_take_time() -> None:
    runs = Runs(COUNT, 0, replace(CALM, memory=False), SHORT, APPS)
    p = runs.parameters
    p.throughput[:, 1] = 1e-12
    p.noise_scale[:] = 6.0
    p.lr_drift[:] = 0.0
    found = tuned(runs)
    assert np.array_equal(found.settings.batch, runs.bounds.batch_max)
    assert np.abs(np.log(found.parameters.lr_optimum)).max() < 0.5  # the best rate is the user's


def test_a_tuned_run_is_the_same_training_sooner_done() -> None:
    runs = Runs(COUNT, 0, CALM, SHORT, APPS)
    before, found = play(deepcopy(runs), lambda _: Fixed()), tuned(runs)
    after = play(deepcopy(found), lambda _: Fixed())
    assert np.array_equal(found.parameters.steps, runs.parameters.steps)
    assert after.reached.all()
    assert np.median(after.seconds / before.seconds) < 1
    assert after.seconds == pytest.approx(found.parameters.horizon_s / 5, rel=0.3)
    assert not runs.elapsed.any()


def test_a_target_out_of_reach_has_no_tuned_setting() -> None:
    runs = Runs(COUNT, 0, CALM, SHORT, APPS)
    runs.parameters.steps[:] = 1e12
    with pytest.raises(ValueError, match="no fixed setting"):
        tuned(runs)


def raised(lasts: float) -> RaisedRate:
    runs = RaisedRate(COUNT, APPS, lasts)
    runs.parameters.loss_top[:] = 1.2  # none explodes
    runs.parameters.failures[:] = 0.0
    return runs


def test_a_jump_of_the_rate_loses_what_was_learnt_and_it_comes_back() -> None:
    runs = raised(0.1)
    play(runs, lambda _: Fixed())
    p = runs.parameters
    took = runs.recovered_at - runs.raised_at
    assert (took > 0.1 * p.horizon_s / 2.5).all()
    assert (runs.progress > 0.5).all()
    assert (runs.progress < 1).all()
    assert runs.learning.all()


def test_with_a_rate_too_high_for_good_it_does_not_come_back() -> None:
    runs = raised(np.inf)
    runs.parameters.horizon_s *= 0.4
    play(runs, lambda _: Fixed())
    assert np.isfinite(runs.raised_at).all()
    assert np.isnan(runs.recovered_at).all()
    assert (runs.progress < 0.5).all()


def test_samples_of_varying_size_run_out_of_memory_now_and_then() -> None:
    runs = VaryingMemory(40, APPS)
    over = runs.most_samples() * runs.settings.gpus < runs.settings.batch
    assert 0 < over.sum() < 40
    late = np.zeros(40, bool)
    settings = runs.settings
    for _ in range(50):
        seen = runs.advance(settings)
        late |= (seen.ending == OOM) & ~over
        settings = seen.settings
    assert late.any()


def test_all_policies_meet_the_same_runs() -> None:
    runs = novice(4, SEED, APPS, replace(CALM, learning_rate=False))
    runs.parameters.steps[:] *= 0.05
    doubtful = trained(0.95, seen=0.01)  # always beyond what it saw: the rules decide
    who = {**contenders(doubtful), HINDSIGHT: HINDSIGHT}
    table = side_by_side({"case": (runs, who)}, workers=1)["case"]
    assert list(table) == ["fixed", "rules", "goodput", "ddpg", "hindsight"]
    assert np.array_equal(table["ddpg"].seconds, table["rules"].seconds)
    assert not runs.elapsed.any()
    assert (table["hindsight"].seconds <= table["fixed"].seconds * 1.001).all()


def test_a_run_that_never_gets_there_counts_as_long_as_it_is_followed() -> None:
    runs = novice(4, SEED, APPS)
    runs.parameters.steps[:] = 1e12
    runs.parameters.horizon_s[:] = 50 * runs.bounds.interval_s
    runs.parameters.lr_optimum[:] = 1e-3  # far beyond the edge
    runs.parameters.loss_top[:] = np.inf
    found = side_by_side({"case": (runs, {"fixed": "fixed"})}, workers=1)["case"]["fixed"]
    assert not found.reached.any()
    assert (found.seconds >= runs.parameters.horizon_s).all()


def test_ratios_of_all_runs_and_of_those_that_get_there() -> None:
    fixed = played([10, 10, 20], [True, True, False])
    table = {"fixed": fixed, "rules": played([5, 10, 5]), "goodput": played([5, 5, 5])}
    table |= {"ddpg": played([5, 5, 4]), "hindsight": played([4, 5, 2])}
    figures = {figure.name: figure for figure in sim_figures.novice("n", table)}
    assert figures["n: time, rules / fixed, where fixed gets there"].value == 0.75
    assert figures["n: time, rules / fixed, all"].value == pytest.approx((0.5 + 1 + 0.25) / 3)
    assert figures["n: time, rules / hindsight"].value == pytest.approx((1.25 + 2) / 2)
    assert figures["n: time, ddpg / rules, all"].value == pytest.approx((1 + 0.5 + 0.8) / 3)
    assert figures["n: time, ddpg / goodput, all"].value == pytest.approx((1 + 1 + 0.8) / 3)


def test_the_gap_left_open_from_tuned_starts() -> None:
    table = {
        "fixed": played([10, 10, 10, 10]),
        "rules": played([9, 8, 12, 10]),
        "hindsight": played([5, 5, 10, 12]),  # worse than fixed: fixed counts
    }
    apps = np.array(["a", "a", "b", "b"])
    figures = {figure.name: figure for figure in sim_figures.tuned("t", table, apps)}
    assert figures["t: time, rules / fixed, a"].value == pytest.approx(0.85)
    assert figures["t: time, rules / fixed, b"].value == pytest.approx(1.1)
    assert figures["t: over 1.1 x fixed, rules"].value == 0.25
    left = (3.9 - 3.0) / (4 - 3.0)
    assert figures["t: gap to hindsight left open, rules"].value == pytest.approx(left)


def test_a_quotient_has_an_interval_round_it() -> None:
    found = sim_figures.quotient(np.array([1.0, 2, 0, 1]), np.array([2.0, 2, 2, 2]))
    assert found.value == 0.5
    assert found.low < 0.5 < found.high
    assert np.isnan(sim_figures.quotient(np.zeros(3), np.zeros(3)).value)


def test_without_a_version_ddpg_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim, "SHIPPED", tmp_path / "none")
    assert sim._version(None) is None
    assert "ddpg is left out" in capsys.readouterr().err
