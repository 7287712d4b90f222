from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlflow_rlsched.learning.evaluation import Estimate, Played, mean_of, play
from mlflow_rlsched.learning.hindsight import optimum
from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.state import State
from mlflow_rlsched.simulator.parameters import Effects, Ranges
from mlflow_rlsched.simulator.run import Runs

COUNT = 12
SHORT = Ranges(length_s=(100, 200), decisions=(40, 60))
CALM = replace(Effects(), learning_rate=False, device_loss=False, missing=False)


class Raises:
    """Raises the learning rate always."""

    name = "raises"
    version = "1"

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        return Proposal(Action(lr_factor=1.2), "a test")


def runs(effects: Effects = CALM, seed: int = 0) -> Runs:
    return Runs(COUNT, seed, effects, SHORT)


def test_a_fixed_setting_takes_what_the_simulation_says() -> None:
    played = play(runs(), lambda _: Fixed())
    alone = runs()
    for _ in range(1000):
        alone.advance(alone.settings)
    assert played.reached.all()
    assert np.array_equal(played.seconds, alone.elapsed)
    assert played.device_seconds == pytest.approx(alone.elapsed * alone.settings.gpus)
    assert ((played.busy > 0) & (played.busy <= 1)).all()
    assert not played.restarts.any()
    assert not played.ooms.any()


def test_each_run_has_its_own_policy_and_the_same_noise() -> None:
    effects = replace(CALM, learning_rate=True)
    fixed = play(runs(effects), lambda _: Fixed())
    half = play(runs(effects), lambda run: Raises() if run % 2 else Fixed())
    assert np.array_equal(half.seconds[::2], fixed.seconds[::2])
    assert (half.seconds[1::2] != fixed.seconds[1::2]).any()


def test_a_run_is_followed_to_its_horizon_at_most() -> None:
    stuck = runs()
    stuck.parameters.steps[:] = 1e12
    played = play(stuck, lambda _: Rules())
    assert not played.reached.any()
    assert (played.seconds >= stuck.parameters.horizon_s).all()
    assert (played.seconds < stuck.parameters.horizon_s + stuck.bounds.interval_s).all()


def test_hindsight_is_faster_within_the_same_device_seconds() -> None:
    fixed = play(runs(), lambda _: Fixed())
    start = runs()
    best = optimum(start, fixed.device_seconds)
    assert best.reached.all()
    assert (best.device_seconds <= fixed.device_seconds * 1.001).mean() > 0.8
    assert np.median(best.seconds / fixed.seconds) < 0.95
    assert not start.elapsed.any()


def test_hindsight_finds_the_rate() -> None:
    effects = replace(CALM, learning_rate=True)
    far = runs(effects)
    far.parameters.lr_optimum[:] = 8.0
    fixed = play(far, lambda _: Fixed())
    far = runs(effects)
    far.parameters.lr_optimum[:] = 8.0
    best = optimum(far, fixed.device_seconds)
    assert (best.seconds < 0.7 * fixed.seconds).all()


def test_repeated_runs_are_the_same_and_go_their_own_way() -> None:
    one = runs()
    several = one.repeated(3)
    assert len(several.progress) == 3 * COUNT
    several.advance(several.settings)
    assert several.elapsed.any()
    assert not one.elapsed.any()
    for name in ("steps", "lr_optimum", "noise_scale"):
        kept = getattr(several.parameters, name).reshape(COUNT, 3, -1)
        assert (kept == getattr(one.parameters, name).reshape(COUNT, 1, -1)).all()


def test_a_mean_has_an_interval_round_it() -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 200)
    found = mean_of(values)
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(values.mean())
    assert mean_of(np.full(5, 2.0)) == Estimate(2.0, 2.0, 2.0)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.1 / np.sqrt(200), rel=0.2)


def test_some_of_the_runs() -> None:
    played = play(runs(), lambda _: Fixed())
    some: Played = played.where(np.arange(COUNT) < 4)
    assert np.array_equal(some.seconds, played.seconds[:4])
