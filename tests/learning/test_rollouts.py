from __future__ import annotations

import numpy as np
import pytest

from mlflow_rlsched.learning.rollouts import Rollouts, Steps
from mlflow_rlsched.policy.inputs import ENCODED, INPUTS, STATE, WEIGHTS_AT, encode
from mlflow_rlsched.policy.reward import TERMINAL_PENALTY

RUNS = 24


def random_actions(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    factors = random.uniform(0.8, 1.2, (2, RUNS))
    return encode(random.integers(-2, 3, RUNS), *factors)


def follow(rollouts: Rollouts, steps: int) -> list[Steps]:
    return [rollouts.take(random_actions(number)) for number in range(steps)]


def test_the_rewards_parts_add_up_to_the_reward() -> None:
    rollouts = Rollouts(RUNS, seed=1)
    rollouts.weigh(np.random.default_rng(0).uniform(0, 2, (RUNS, 4)))
    for number in range(15):
        before = rollouts.inputs
        steps = rollouts.take(random_actions(number))
        rewards = rollouts._rewards
        assert (steps.transitions.inputs == before).all()
        assert (steps.transitions.next_inputs == rollouts.inputs).all()
        found = steps.transitions.reward[steps.real, 0]
        assert found == pytest.approx(rewards[steps.real], abs=1e-3)
        assert set(np.unique(steps.transitions.parts[:, -1])) <= {0, -TERMINAL_PENALTY}


def test_the_weights_are_inputs() -> None:
    rollouts = Rollouts(RUNS)
    rollouts.weigh((2, 1, 0.5, 0))
    assert (rollouts.inputs[:, WEIGHTS_AT] == [2, 1, 0.5, 0]).all()
    assert (rollouts.inputs[:, : len(STATE)] == rollouts.environment.states.astype("f4")).all()


def test_an_end_is_followed_by_nothing_and_then_by_another_run() -> None:
    rollouts = Rollouts(RUNS, seed=2)
    steps = follow(rollouts, 150)
    ended = np.stack([step.ended for step in steps])
    real = np.stack([step.real for step in steps])
    assert ended.any()
    assert (real[1:] == ~ended[:-1]).all()
    weights = np.stack([step.transitions.discount[:, 0] for step in steps])
    assert (weights[real & ~ended] > 0.5).all()
    assert (weights[ended] == 0).any()


def test_a_change_of_the_devices_is_a_key_transition() -> None:
    rollouts = Rollouts(RUNS, seed=3)
    for number in range(20):
        gpus = rollouts.environment.runs.settings.gpus.copy()
        steps = rollouts.take(random_actions(number))
        moved = rollouts.environment.runs.settings.gpus != gpus
        assert steps.key[moved].all()


def test_what_the_guard_leaves_is_what_is_taken() -> None:
    rollouts = Rollouts(RUNS, seed=4)
    taken = 0
    for number in range(10):
        actions = random_actions(number)
        left = rollouts.guarded(actions)
        steps = rollouts.take(actions)
        real = steps.real
        assert steps.transitions.action[real] == pytest.approx(left[real], abs=1e-6)
        assert left.shape == (RUNS, ENCODED)
        taken += int((left[real] != actions[real]).any())
    assert taken  # the guard did take something back


def test_the_model_learns_the_step_times() -> None:
    rollouts = Rollouts(RUNS, seed=5)
    error = INPUTS.index("fit_error")
    assert (rollouts.inputs[:, error] <= 1).all()
    follow(rollouts, 12)
    known = rollouts._timings.settings > 3
    assert known.any()
    assert np.median(rollouts.inputs[known, error]) < 0.2


def test_the_same_seed_gives_the_same_runs() -> None:
    first, second = (follow(Rollouts(RUNS, seed=6), 5) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert (one.transitions.next_inputs == other.transitions.next_inputs).all()
