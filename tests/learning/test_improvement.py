"""One step of policy improvement from what was recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlflow_rlsched.learning.improvement import NEVER, evaluate, improve, taught
from mlflow_rlsched.policy.ddpg import Learner, Settings
from mlflow_rlsched.policy.inputs import INPUTS, WEIGHTS_AT, encode
from mlflow_rlsched.policy.replay import Replay, Transitions

COUNT = 600


def recorded(seed: int = 0) -> Transitions:
    """Runs of one decision, whose reward is the learning-rate factor where the first input is above
    0, and minus that elsewhere; nobody ever changed the batch."""
    random = np.random.default_rng(seed)
    inputs = random.uniform(-1, 1, (COUNT, len(INPUTS))).astype(np.float32)
    inputs[:, WEIGHTS_AT] = 1
    rate = random.uniform(0.8, 1.2, COUNT)
    ones = np.ones(COUNT)
    parts = np.zeros((COUNT, 5), np.float32)
    parts[:, 0] = 500 * (rate - 1) * np.sign(inputs[:, 0])
    action = encode(0 * ones, ones, rate)
    return Transitions(inputs, action, parts, np.zeros((COUNT, 1), np.float32), inputs)


@pytest.fixture(scope="module")
def learner() -> Learner:
    learner = Learner(Settings(critic_rate=1e-3, actor_after=NEVER), seed=0)
    learner.adopt(learner.arrays())
    replay = Replay(capacity=1000)
    replay.add(recorded(), np.zeros(COUNT, bool))
    evaluate(learner, replay, 200)
    improve(learner, replay, 200)
    return learner


def test_the_actor_learns_what_was_better_and_where(learner: Learner) -> None:
    seen = recorded(1)
    rate = learner.act(seen.inputs)[:, -1]
    assert rate[seen.inputs[:, 0] > 0.3].mean() > 0.2
    assert rate[seen.inputs[:, 0] < -0.3].mean() < -0.2


def test_what_nobody_tried_stays_as_it_is(learner: Learner) -> None:
    action = learner.act(recorded(1).inputs)
    assert np.abs(action[:, -2]).mean() < 0.1
    assert (action[:, 2] == 1).all()


def test_recorded_actions_are_taught_only_where_all_critics_prefer_them(learner: Learner) -> None:
    seen = recorded(2)
    wanted, better = taught(learner, seen)
    good = (seen.action[:, -1] * np.sign(seen.inputs[:, 0])) > 0.3
    assert better[good].mean() > 0.8
    bad = (seen.action[:, -1] * np.sign(seen.inputs[:, 0])) < -0.3
    assert better[bad].mean() < 0.1
    assert (wanted[better] == seen.action[better]).all()
    assert learner.reference is not None
    with torch.no_grad():
        logits, factors = learner.reference(learner.normaliser(torch.from_numpy(seen.inputs)))
    assert (wanted[~better, -2:] == factors.numpy()[~better]).all()
    assert wanted[~better, :5] == pytest.approx(logits.softmax(1).numpy()[~better])


def test_the_critics_alone_move_no_actor() -> None:
    learner = Learner(Settings(actor_after=NEVER), seed=0)
    learner.adopt(learner.arrays())
    before = learner.act(recorded().inputs)
    replay = Replay(capacity=1000)
    replay.add(recorded(), np.zeros(COUNT, bool))
    losses = evaluate(learner, replay, 50)
    assert np.isfinite(losses.critic)
    assert (learner.act(recorded().inputs) == before).all()
