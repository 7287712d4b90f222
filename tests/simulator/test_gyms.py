from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import mlflow_rlsched.simulator  # noqa: E402, F401  # registers the environments
from mlflow_rlsched.policy.action import GPU_DELTAS  # noqa: E402
from mlflow_rlsched.simulator.gyms import FlattenHybridAction, encoded  # noqa: E402
from mlflow_rlsched.simulator.parameters import Ranges  # noqa: E402

IDS = ("rlsched/Run-v0", "rlsched/Cluster-v0")
SHORT = Ranges(length_s=(60, 300), decisions=(20, 30))
NOTHING = (2, np.zeros(2, np.float32))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", IDS)
def test_the_checker_of_gymnasium_has_nothing_to_say(name: str) -> None:
    check_env(gymnasium.make(name).unwrapped)


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
@pytest.mark.parametrize("name", IDS)
def test_nor_has_it_of_flat_actions(name: str) -> None:
    check_env(FlattenHybridAction(gymnasium.make(name).unwrapped))


@pytest.mark.parametrize("name", IDS)
def test_an_episode_ends_and_says_how(name: str) -> None:
    environment = gymnasium.make(name, ranges=SHORT)
    environment.reset(seed=0)
    ended = False
    while not ended:
        *_, terminated, truncated, info = environment.step(NOTHING)
        ended = terminated or truncated
    assert info["ending"] in ("done", "diverged", "failed", None)
    assert info["elapsed_s"] > 0


def test_actions_are_a_pair_of_the_devices_and_two_factors() -> None:
    space = gymnasium.make("rlsched/Run-v0").action_space
    assert (space[0].n, space[1].shape) == (len(GPU_DELTAS), (2,))
    assert encoded((0, [0.5, -1])).tolist() == [[-1, 0.5, -1]]
    assert encoded((2, [0, 0])).tolist() == [[0, 0, 0]]


def test_every_pair_has_a_flat_action_and_the_middle_changes_nothing() -> None:
    flat = FlattenHybridAction(gymnasium.make("rlsched/Run-v0").unwrapped)
    for delta in np.linspace(-1, 1, 5, dtype=np.float32):
        place, factors = flat.action(np.array([delta, 0.3, -0.3], np.float32))
        assert GPU_DELTAS[place] == delta * 2
        assert factors == pytest.approx([0.3, -0.3])
    assert encoded(flat.action(np.zeros(3, np.float32))).tolist() == [[0, 0, 0]]
    assert flat.action(np.full(3, 5, np.float32))[0] == 4


def test_many_runs_at_once() -> None:
    runs = gymnasium.make_vec("rlsched/Run-v0", num_envs=8, ranges=SHORT)
    states, _ = runs.reset(seed=3)
    again, _ = runs.reset(seed=3)
    assert np.array_equal(states, again)
    runs.action_space.seed(0)
    over = np.zeros(8, bool)
    for _ in range(60):
        states, rewards, terminated, truncated, _ = runs.step(runs.action_space.sample())
        assert runs.observation_space.contains(states)
        assert not rewards[over].any()
        over = terminated | truncated
    with pytest.raises(ValueError, match="one seed"):
        runs.reset(seed=[1] * 8)


@pytest.mark.parametrize("name", IDS)
def test_a_step_before_the_first_reset_is_refused(name: str) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        gymnasium.make(name).unwrapped.step(NOTHING)


def test_a_cluster_decides_on_its_runs_in_turn() -> None:
    environment = gymnasium.make("rlsched/Cluster-v0", runs=4, gpus=64)
    _, info = environment.reset(seed=2)
    seen, rewards = [info["run"]], []
    for _ in range(600):
        _, reward, *_, info = environment.step(NOTHING)
        seen.append(info["run"])
        rewards.append(reward)
    assert set(seen) == {0, 1, 2, 3}
    turns = [a < b for a, b in pairwise(seen)]
    # a reward comes with the step that ends a turn, and only then
    assert not any(reward for reward, within in zip(rewards, turns, strict=True) if within)


def test_a_library_for_continuous_actions_learns_on_it() -> None:
    stable = pytest.importorskip(
        "stable_baselines3", reason="stable-baselines3 is not installed (extra: dev)"
    )
    environment = FlattenHybridAction(gymnasium.make("rlsched/Run-v0"))
    learner = stable.DDPG("MlpPolicy", environment, learning_starts=50, seed=0, device="cpu")
    before = [weights.clone() for weights in learner.actor.parameters()]
    learner.learn(150)
    after = list(learner.actor.parameters())
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    assert all(weights.isfinite().all() for weights in after)
