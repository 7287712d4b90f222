from __future__ import annotations

import multiprocessing
from functools import partial

import numpy as np
import pytest

from mlflow_rlsched.learning.expert import expert
from mlflow_rlsched.learning.pretraining import HEADS, Plan, Pretraining, drawn
from mlflow_rlsched.learning.rollouts import Rollouts
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.inputs import decode
from mlflow_rlsched.simulator.parameters import Ranges
from mlflow_rlsched.simulator.run import Runs

SMALL = Plan(rounds=4, runs=16, steps=8, passes=1, batch_size=64)


def simple(count: int, seed: int, gpus: float) -> Runs:
    """Long runs that may have so many devices at most."""
    ranges = Ranges(gpus_max=(gpus, gpus), batch_start=(1, 1), batch_headroom=(64, 64))
    return Runs(count, seed, None, ranges, ["imagenet"])


def same(first: Pretraining, second: Pretraining) -> bool:
    one, other = first.learner.arrays(), second.learner.arrays()
    return all((one[name] == other[name]).all() for name in one)


def goodput_of(runs: Runs) -> np.ndarray:
    speed = runs.speed(runs.settings)
    return np.asarray(speed.rate / (1 + runs.settings.batch / speed.noise_scale))


def test_the_expert_raises_the_goodput_of_the_true_model() -> None:
    rollouts = Rollouts(64, 2, runs=simple(64, 2, 8.0))
    before = goodput_of(rollouts.environment.runs)
    for _ in range(12):
        rollouts.take(expert(rollouts))
    assert np.median(goodput_of(rollouts.environment.runs) / before) > 1.3


def test_the_expert_leaves_the_rate_and_what_cannot_change() -> None:
    rigid = Ranges(rigid_gpus=1.0, rigid_batch=1.0)
    rollouts = Rollouts(16, 2, runs=Runs(16, 2, None, rigid))
    deltas, batch, rate = decode(expert(rollouts))
    assert not deltas.any()
    assert (batch == 1).all()
    assert (rate == 1).all()


def test_the_actor_learns_what_the_expert_does() -> None:
    plan = Plan(rounds=12, runs=32, steps=16, passes=8, batch_size=128)
    training = Pretraining(plan, seed=1, source=partial(simple, gpus=1.0))
    losses = list(training.rounds())
    assert losses[-1] < 0.5 * losses[0]


def test_the_same_seed_teaches_the_same_also_from_where_it_was_interrupted() -> None:
    states = []
    for _ in range(2):
        begun = Pretraining(SMALL, seed=3)
        for _ in zip(range(2), begun.rounds(), strict=False):
            pass
        resumed = Pretraining(SMALL, seed=3)
        resumed.resume(begun.state())
        assert resumed.round == 2
        list(resumed.rounds())
        states.append(resumed)
    assert resumed.round == SMALL.rounds
    assert same(*states)


def test_split_runs_teach_the_same_for_the_same_seed_and_as_many_processes() -> None:
    first, second, alone = (Pretraining(SMALL, seed=3, workers=workers) for workers in (2, 2, 1))
    for training in (first, second, alone):
        losses = list(training.rounds())
        assert len(losses) == SMALL.rounds
        assert losses[-1] < losses[0]
    assert same(first, second)
    assert not same(first, alone)


def test_each_input_that_was_met_anywhere_is_taken_in_once() -> None:
    counts = []
    for workers in (1, 3):
        training = Pretraining(SMALL, workers=workers)
        next(training.rounds())
        counts.append(float(training.learner.normaliser.count))
    assert counts[0] == counts[1]


def test_a_training_may_go_on_in_another_number_of_processes() -> None:
    begun = Pretraining(SMALL, seed=3)
    next(begun.rounds())
    resumed = Pretraining(SMALL, seed=3, workers=2)
    resumed.resume(begun.state())
    assert len(list(resumed.rounds())) == SMALL.rounds - 1
    assert not multiprocessing.active_children()


def test_it_ends_in_a_version_that_can_go_on_learning() -> None:
    training = Pretraining(SMALL, seed=4)
    list(training.rounds())
    actor = training.learner.arrays()["actor.body.0.weight"].copy()
    assert np.isfinite(training.judge(runs=8, steps=40, updates=50))
    optional = training.optional(runs=16, decisions=3)
    version = Version(training.learner.arrays(), {}, optional, HEADS)
    assert {"noise_scale", "loss_slope"} <= set(version.optional)
    assert version.arrays["actor.body.0.weight"] == pytest.approx(actor)
    assert "critics.bodies.0.0.weight" in version.arrays


def test_not_all_runs_to_train_on_can_change_all() -> None:
    bounds = drawn(400, 0).parameters.bounds
    assert 0.2 < (bounds.gpus_min == bounds.gpus_max).mean() < 0.7
    assert 0.08 < (bounds.batch_min == bounds.batch_max).mean() < 0.25
