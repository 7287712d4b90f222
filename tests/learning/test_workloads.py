"""Simulated runs like those that were recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlflow_rlsched.learning.workloads import Recorded, Workload, WorkloadError, recorded
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Rules
from mlflow_rlsched.simulator.environment import RunEnvironment
from mlflow_rlsched.simulator.models import Throughput
from mlflow_rlsched.simulator.parameters import HORIZON, Effects, Ranges, along
from mlflow_rlsched.simulator.run import Runs
from tests.learning.recording import Record, record

QUIET = Effects(interference=False, input_bound=False, missing=False, late=False)
ONE_NODE = Ranges(decisions=(40, 60), gpus_max=(1, 2), plan=(1, 1), lr_optimum=(1, 1))
COUNT = 6


@pytest.fixture(scope="module")
def runs() -> Runs:
    """What was recorded; nothing in ``parameters`` changes while it runs."""
    return Runs(COUNT, 5, QUIET, ONE_NODE)


@pytest.fixture(scope="module")
def decided(runs: Runs) -> list[list[Record]]:
    return record(runs, lambda _: Goodput(), most=40)


@pytest.fixture(scope="module")
def known(decided: list[list[Record]]) -> list[Recorded]:
    found = [recorded(records) for records in decided]
    assert None not in found
    return [each for each in found if each is not None]


def test_the_fit_finds_the_step_times_again(runs: Runs, known: list[Recorded]) -> None:
    true = runs.parameters
    off = []
    for run, each in enumerate(known):
        seconds = [
            Throughput(*model).step_time(1, each.gpus, each.batch / each.gpus)
            for model in (true.throughput[run], each.throughput)
        ]
        off.append(abs(math.log(seconds[1] / seconds[0])))
    assert np.median(off) < 0.03
    assert np.median([each.error for each in known]) < 0.05


def test_and_what_else_it_can_know(runs: Runs, known: list[Recorded]) -> None:
    true, bounds = runs.parameters, runs.bounds
    for run, each in enumerate(known):
        assert (each.batch, each.gpus) == (bounds.batch_initial[run], true.gpus_start[run])
        assert each.sgd == bounds.sgd[run]
        assert each.price == pytest.approx(bounds.price[run])
        assert each.gpus_min <= each.gpus <= each.gpus_max <= bounds.gpus_max[run]
    at = np.array([each.noise_at for each in known])
    told = np.isfinite(at)
    off = [each.noise_scale for each in known] - along(true.noise_scale, np.nan_to_num(at))
    assert told.sum() >= COUNT / 2
    assert np.median(np.abs(off[told])) < 0.5
    noise = [math.log(each.loss_noise / true.loss_noise[run]) for run, each in enumerate(known)]
    assert np.median(np.abs(noise)) < math.log(2)


def test_simulated_runs_are_like_the_recorded_ones(known: list[Recorded]) -> None:
    like = Workload(known[:1]).runs(16, 1)
    each, p, bounds = known[0], like.parameters, like.bounds
    assert (bounds.batch_initial == each.batch).all()
    assert (like.settings.batch == each.batch).all()
    assert (like.settings.gpus == each.gpus).all()
    assert p.throughput == pytest.approx(np.tile(each.throughput, (16, 1)))
    if math.isfinite(each.noise_scale):
        at = np.full(16, each.noise_at)
        assert along(p.noise_scale, at) == pytest.approx(np.full(16, each.noise_scale))
    assert (bounds.batch_min <= each.batch).all()
    assert (bounds.batch_max >= each.batch).all()
    assert p.horizon_s == pytest.approx(np.full(16, HORIZON * each.length_s))
    # What no record tells is as wide as ever.
    assert np.ptp(np.log(p.lr_optimum)) > 1
    # At its initial setting and the best rate, a run lasts as long as was recorded.
    assert (like.most_samples() * like.settings.gpus >= each.batch).all()


def test_the_same_seed_gives_the_same_runs_and_others_follow_them(known: list[Recorded]) -> None:
    workload = Workload(known)
    one, other = workload.runs(8, 2), workload.runs(8, 2)
    assert (one.parameters.steps == other.parameters.steps).all()
    assert not (one.parameters.steps == workload.runs(8, 3).parameters.steps).all()
    before = one.parameters.throughput.copy()
    some = np.arange(8) < 4
    one.advance(one.settings)
    one.renew(some)
    assert (one.parameters.throughput[~some] == before[~some]).all()
    batches = {each.batch for each in known}
    assert set(one.settings.batch[some]) <= batches
    assert (one.elapsed[some] == 0).all()


def test_they_are_decided_on_in_the_environment_and_renewed_by_themselves(
    known: list[Recorded],
) -> None:
    environment = RunEnvironment(8, 4, runs=Workload(known).runs(8, 4))
    still, renewed = np.zeros((8, 3)), np.zeros(8, bool)
    models = np.array([each.throughput for each in known])
    while not renewed.all():
        before = environment.runs.parameters.steps.copy()
        step = environment.step(still)
        assert np.isfinite(step.states).all()
        others = environment.runs.parameters.steps != before
        drawn = environment.runs.parameters.throughput[others, None]
        assert np.isclose(drawn, models).all(-1).any(-1).all()
        assert not step.rewards[others].any()
        renewed |= others
    assert environment.history.decisions.any()


def test_the_fits_error_is_said(decided: list[list[Record]]) -> None:
    figures = Workload.fit(decided).figures()
    assert figures["runs"] == COUNT
    assert figures["settings"] >= COUNT
    assert 0 <= figures["step_time_error"] < 0.1
    assert figures["loss_noise"] > 0


def test_runs_that_tell_nothing_are_left_out_or_are_an_error(
    decided: list[list[Record]], runs: Runs
) -> None:
    silent = record(Runs(1, 0, ranges=ONE_NODE), lambda _: Rules(), most=3)
    assert Workload.fit([decided[0], *silent, []]).figures()["runs"] == 1
    with pytest.raises(WorkloadError, match=r"none of 2 runs tells how long its steps take"):
        Workload.fit([*silent, []])
