from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlflow_rlsched.simulator.drawing import draw
from mlflow_rlsched.simulator.measured import DIVERGED, DONE, OOM, Settings
from mlflow_rlsched.simulator.models import gain
from mlflow_rlsched.simulator.parameters import Effects, Parameters, Ranges, along
from mlflow_rlsched.simulator.run import Runs

COUNT = 32
NONE = Effects(
    learning_rate=False,
    memory=False,
    restarts=False,
    interference=False,
    input_bound=False,
    noise=False,
    missing=False,
    late=False,
    device_loss=False,
    pressure=False,
)


def with_settings(runs: Runs, **values: float) -> Settings:
    changed = {name: np.full(COUNT, float(value)) for name, value in values.items()}
    return replace(runs.settings.copy(), **changed)


def test_runs_differ_widely_and_the_seed_decides_how() -> None:
    first, second = (draw(np.random.default_rng(1), 1000) for _ in range(2))
    for name in ("throughput", "lr_optimum", "noise_scale", "memory_total"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    step_s = first.model.step_time(1, 1, 8)
    assert np.percentile(step_s, 99) / np.percentile(step_s, 1) > 50
    assert np.percentile(first.lr_optimum, 99) / np.percentile(first.lr_optimum, 1) > 50


def test_only_the_named_applications_are_drawn() -> None:
    drawn = draw(np.random.default_rng(0), 100, apps=["cifar10"])
    assert set(drawn.base_batch) == {128}


def test_without_effects_a_run_takes_as_long_as_its_length() -> None:
    runs = Runs(COUNT, effects=NONE, ranges=Ranges(length_s=(1000, 1000), noise_growth=(0, 0)))
    # A noise scale that does not change, so that the length is exact.
    steady = runs.parameters.noise_scale.mean(axis=1, keepdims=True)
    runs.parameters.noise_scale[:] = steady
    p = runs.parameters
    worth = gain(1.0, 10 ** steady[:, 0] / p.base_batch, runs.settings.batch / p.base_batch)
    p.steps[:] = 1000 * worth * runs.speed(runs.settings).rate / runs.settings.batch
    while not runs.ended.all():
        seen = runs.advance(runs.settings)
    assert runs.elapsed == pytest.approx(1000)
    assert (seen.ending[seen.duration > 0] == DONE).all()


def test_the_drawn_length_is_about_right() -> None:
    runs = Runs(COUNT, effects=NONE, ranges=Ranges(length_s=(1000, 1000)))
    while not runs.ended.all():
        runs.advance(runs.settings)
    assert np.median(runs.elapsed) == pytest.approx(1000, rel=0.2)


def test_a_learning_rate_far_from_the_best_learns_less_and_beyond_it_diverges() -> None:
    runs = Runs(COUNT, effects=replace(NONE, learning_rate=True))
    settings = runs.settings.copy()
    off = runs.speed(settings).off
    best = replace(settings, lr_scale=settings.lr_scale * np.exp(-off))
    for factor in (0.3, 2.0):
        other = replace(best, lr_scale=best.lr_scale * factor)
        assert (runs.speed(other).progress < runs.speed(best).progress).all()
    wild = replace(best, lr_scale=best.lr_scale * 2 * runs.parameters.lr_diverges)
    endings = {code for _ in range(30) for code in runs.advance(wild).ending}
    assert DIVERGED in endings
    assert DONE not in endings


def test_a_rate_that_is_too_large_loses_what_was_learnt_until_it_is_lowered() -> None:
    runs = Runs(COUNT, effects=replace(NONE, learning_rate=True))
    runs.parameters.loss_top[:] = np.where(np.arange(COUNT) % 2, np.inf, 1.2)
    best = runs.settings.lr_scale * np.exp(-runs.speed(runs.settings).off)
    wild = replace(runs.settings.copy(), lr_scale=best * 1.5 * runs.parameters.lr_diverges)
    runs.parameters.loss_noise[:] = 0.001
    for _ in range(20):
        before = np.nanmean(runs.advance(replace(wild, lr_scale=best)).loss, axis=1)
    learnt = runs.progress.copy()
    for _ in range(2):
        seen = runs.advance(wild)
    assert (runs.progress < learnt).all()
    told = np.nanmean(seen.loss, axis=1)
    assert (told > 1.02 * before)[before < 0.8].all()
    assert (told[::2] < 2.5).all()  # back where it began, where others explode
    for _ in range(30):
        seen = runs.advance(replace(wild, lr_scale=best))
    assert (runs.progress > learnt).all()
    assert (np.nanmean(seen.loss, axis=1) < 1.3 * before).all()


def test_a_loss_is_higher_for_a_while_after_the_rate_was_raised() -> None:
    runs = Runs(COUNT, effects=replace(NONE, learning_rate=True))
    p = runs.parameters
    p.loss_noise[:], p.loss_excess[:], p.lr_diverges[:] = 0, 0.3, 1e9
    best = runs.settings.lr_scale * np.exp(-runs.speed(runs.settings).off)
    low = replace(runs.settings.copy(), lr_scale=best / 4)
    for _ in range(10):
        before = np.nanmean(runs.advance(low).loss, axis=1)
    after = np.nanmean(runs.advance(replace(low, lr_scale=best)).loss, axis=1)
    assert np.median(after / before) > 1.05


def test_a_batch_that_does_not_fit_runs_out_of_memory_and_goes_on_smaller() -> None:
    runs = Runs(COUNT, effects=replace(NONE, memory=True, restarts=True))
    p = runs.parameters
    fits = (p.memory_total - p.memory_base) / p.memory_sample * runs.settings.gpus
    seen = runs.advance(replace(runs.settings.copy(), batch=np.ceil(fits * 1.1)))
    assert (seen.ending == OOM).all()
    assert np.array_equal(seen.oom_batch, np.ceil(fits * 1.1))
    assert (seen.duration < p.bounds.interval_s + 1e-9).all()
    assert not runs.progress.any()
    seen = runs.advance(runs.settings)
    assert np.array_equal(seen.settings.batch, np.trunc(np.ceil(fits * 1.1) * 0.85))
    for _ in range(100):
        seen = runs.advance(runs.settings)
    assert (runs.progress > 0).all()


@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_change_of_devices_costs_its_restart(in_rounds: bool) -> None:
    ranges = Ranges(gpus_max=(2, 2), restart_s=(90, 90), decisions=(100, 100), length_s=(6e3, 6e3))
    runs = Runs(COUNT, effects=replace(NONE, restarts=True), ranges=ranges)
    runs.in_rounds = in_rounds
    wanted = replace(runs.settings.copy(), gpus=3 - runs.settings.gpus)
    # Seconds of training and of an interval of 60 s.
    expected = [(0, 60), (30, 60), (60, 60)] if in_rounds else [(60, 150), (60, 60)]
    for trained, lasted in expected:
        known = runs.progress + runs.speed(wanted).progress * trained
        seen = runs.advance(wanted)
        assert runs.progress == pytest.approx(known)
        assert seen.duration == pytest.approx(lasted)


def test_a_lost_device_takes_progress_with_it() -> None:
    ranges = Ranges(gpus_max=(4, 4), failures=(1.0, 1.0))
    runs = Runs(COUNT, effects=replace(NONE, device_loss=True, restarts=True), ranges=ranges)
    runs.parameters.failures[:] = 1e3  # at once
    gpus, reached = runs.settings.gpus.copy(), runs.speed(runs.settings).progress
    reached = reached * runs.bounds.interval_s
    runs.parameters.horizon_s[:] = np.inf
    runs.advance(runs.settings)
    assert (runs.progress < reached).all()
    seen = runs.advance(with_settings(runs, gpus=4))
    assert np.array_equal(seen.settings.gpus, np.maximum(gpus - 1, 1))


def test_a_late_training_goes_on_as_before() -> None:
    runs = Runs(COUNT, effects=replace(NONE, late=True))
    runs.parameters.late[:] = 1.0
    expected = runs.speed(runs.settings).progress * runs.bounds.interval_s
    seen = runs.advance(replace(runs.settings.copy(), batch=runs.settings.batch * 2))
    assert not seen.acknowledged.any()
    assert runs.progress == pytest.approx(expected)


@pytest.mark.parametrize(
    ("effect", "name", "value"),
    [("input_bound", "slow_input", 1.0), ("interference", "interfered", 1.0)],
)
def test_slow_phases_slow_down(effect: str, name: str, value: float) -> None:
    ranges = Ranges(input_share=(0.3, 0.5))
    runs = Runs(COUNT, effects=replace(NONE, **{effect: True}), ranges=ranges)
    getattr(runs.parameters, name)[:] = 0.0
    runs.parameters.phase_s[:] = 1e-3  # phases end at once
    runs.advance(runs.settings)
    before = runs.speed(runs.settings)
    getattr(runs.parameters, name)[:] = value
    runs.advance(runs.settings)
    after = runs.speed(runs.settings)
    assert (after.rate < before.rate).all()
    assert (after.input_wait > 0.4).all() == (effect == "input_bound")


def test_readings_are_missing_only_where_they_may_be() -> None:
    seen = Runs(COUNT, effects=NONE).advance(Runs(COUNT, effects=NONE).settings)
    for values in (seen.use, seen.power, seen.loss, seen.grad_var, seen.progress):
        assert np.isfinite(values[..., -1]).all()
    runs = Runs(COUNT, effects=replace(NONE, missing=True))
    seen = runs.advance(runs.settings)
    assert np.isnan(seen.use).any()
    assert np.isnan(seen.grad_var).any()


def test_a_run_that_ended_stands_still_until_it_is_renewed() -> None:
    runs = Runs(COUNT, effects=NONE)
    while not runs.ended.any():
        runs.advance(runs.settings)
    ended, elapsed = runs.ended.copy(), runs.elapsed.copy()
    seen = runs.advance(runs.settings)
    assert np.array_equal(runs.elapsed[ended], elapsed[ended])
    assert np.isnan(seen.loss[ended]).all()
    kept = runs.parameters.steps[~ended].copy()
    runs.renew(ended)
    assert not runs.ended[ended].any()
    assert not runs.progress[ended].any()
    assert np.array_equal(runs.parameters.steps[~ended], kept)


def test_curves_are_followed_linearly() -> None:
    curves = np.tile(np.linspace(1, 3, 33), (3, 1))
    assert along(curves, np.array([0.0, 0.26, 1.0])) == pytest.approx([1, 1.52, 3])


def test_every_parameter_is_documented() -> None:
    text = Parameters.__doc__ or ""
    assert all(f"{name}:" in text for name in Parameters.__dataclass_fields__)


def test_a_start_with_another_batch_is_the_same_training() -> None:
    usual, other = Runs(COUNT), Runs(COUNT)
    batch = usual.bounds.batch_max
    other.begin_with(usual.settings.gpus, batch)
    assert np.array_equal(other.settings.batch, batch)
    assert np.array_equal(other.bounds.batch_initial, batch)
    kept_rate = replace(usual.settings.copy(), batch=batch)
    for name in ("rate", "off", "progress"):
        same = getattr(other.speed(other.settings), name)
        assert same == pytest.approx(getattr(usual.speed(kept_rate), name)), name
    assert not (other.parameters.planned < usual.parameters.planned).any()


def test_a_run_that_diverges_does_not_learn() -> None:
    runs = Runs(COUNT, effects=replace(NONE, learning_rate=True))
    runs.parameters.lr_optimum[:] = 1.0
    runs.parameters.loss_top[:] = 1.2  # none explodes
    assert runs.learning.all()
    runs.parameters.lr_optimum[:] = 1e-3
    runs.advance(runs.settings)
    assert not runs.learning.any()
    before = runs.progress.copy()
    runs.advance(runs.settings)
    assert (runs.progress <= before).all()
