from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mlflow_rlsched.simulator.cluster_environment import ClusterEnvironment
from mlflow_rlsched.simulator.environment import WEIGHTS, RunEnvironment
from mlflow_rlsched.simulator.guards import Actions
from mlflow_rlsched.simulator.parameters import Effects, Ranges

COUNT = 16
STILL = np.zeros((COUNT, 3))
SHORT = Ranges(length_s=(60, 600), decisions=(20, 40))


def test_the_same_seed_gives_the_same_course() -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (50, COUNT, 3))
    first, second = (RunEnvironment(COUNT, seed=7, ranges=SHORT) for _ in range(2))
    for action in actions:
        a, b = first.step(action), second.step(action)
        for mine, other in zip(a, b, strict=True):
            assert np.array_equal(mine, other)
    assert not np.array_equal(a.states, RunEnvironment(COUNT, seed=8).step(STILL).states)


def test_states_and_rewards_are_finite_whatever_is_done() -> None:
    environment = RunEnvironment(COUNT, ranges=SHORT)
    random = np.random.default_rng(0)
    for _ in range(200):
        wild = random.normal(0, 2, (COUNT, 3))
        wild[random.random(wild.shape) < 0.05] = np.nan
        step = environment.step(wild)
        assert np.isfinite(step.rewards).all()
        assert (np.abs(step.states) <= 1).all()


def test_after_a_run_ended_another_one_begins() -> None:
    environment = RunEnvironment(COUNT, ranges=SHORT)
    step = environment.step(STILL)
    while not step.terminated.any():
        step = environment.step(STILL)
    ended = step.terminated | step.truncated
    lengths = environment.runs.parameters.steps.copy()
    step = environment.step(np.ones((COUNT, 3)))  # the new runs ignore this action
    assert not step.rewards[ended].any()
    assert not (step.terminated & ended).any()
    assert (environment.runs.parameters.steps != lengths)[ended].all()
    assert np.array_equal(environment.runs.parameters.steps[~ended], lengths[~ended])
    assert (environment.runs.settings.lr_factor[ended] == 1).all()
    assert (environment.history.decisions[ended] == 0).all()


def test_a_gain_is_predicted_for_what_changes_only() -> None:
    environment = RunEnvironment(COUNT, ranges=Ranges(gpus_max=(8, 8)))
    assert not environment.proposals(STILL).predicted_gain.any()
    rate_alone = STILL + np.array([0, 0, 1])
    assert not environment.proposals(rate_alone).predicted_gain.any()
    larger = environment.proposals(STILL + np.array([0, 1, 0]))
    assert larger.predicted_gain.all()
    assert (larger.batch_factor == 1.2).all()


def test_more_weight_on_the_cost_makes_devices_dearer() -> None:
    rewards = [
        RunEnvironment(COUNT, weights=(1.0, beta, 1.0, 0.1)).step(STILL).rewards
        for beta in (0.5, 2.0)
    ]
    assert (rewards[1] < rewards[0]).all()


def cluster(**changes: object) -> ClusterEnvironment:
    options: dict[str, object] = {"count": COUNT, "gpus": 8, "seed": 1, "ranges": SHORT}
    return ClusterEnvironment(**(options | changes))  # type: ignore[arg-type]


def held(environment: ClusterEnvironment) -> float:
    return float(environment.runs.settings.gpus[environment.turn].sum())


@pytest.mark.parametrize("greedy", [False, True])
def test_a_pool_never_gives_more_than_it_has(greedy: bool) -> None:
    environment = cluster(ranges=Ranges(length_s=(100, 400), gpus_max=(4, 16)), interval_s=10)
    random = np.random.default_rng(0)
    most = 0.0
    while not environment.done and not environment.truncated:
        actions = random.uniform(-1, 1, (COUNT, 3))
        actions[:, 0] = 1.0 if greedy else actions[:, 0]
        rewards = environment.round(actions)
        assert np.isfinite(rewards).all()
        assert held(environment) <= 8
        assert (environment.seen.free_gpus >= 0).all()
        most = max(most, held(environment))
    assert most == 8 or not greedy


def test_runs_wait_until_there_is_room_and_the_waiting_is_seen() -> None:
    environment = cluster(gpus=1, effects=Effects(learning_rate=False))
    assert environment.turn.tolist() == [0]
    pressures = []
    order = []
    while not environment.done and not environment.truncated:
        order += [run for run in environment.turn.tolist() if run not in order]
        environment.round(STILL)
        pressures.append(environment.seen.pressure[0])
    assert order == sorted(order)
    assert max(pressures) > 1
    assert pressures[-1] == 0


def test_a_waiting_run_stands_still_and_earns_nothing() -> None:
    environment = cluster(gpus=1)
    rewards = environment.round(STILL)
    assert rewards[0] != 0
    assert not rewards[1:].any()
    assert not environment.runs.elapsed[1:].any()


def test_a_run_starts_with_an_empty_history() -> None:
    environment = cluster(gpus=1)
    while environment.turn.tolist() in ([0], []):
        environment.round(STILL)
    (run,) = environment.turn
    assert environment.history.decisions[run] == 0
    assert environment.runs.elapsed[run] <= 60


def test_the_first_observation_is_of_an_interval_at_the_initial_setting() -> None:
    environment = RunEnvironment(COUNT)
    assert (environment.seen.duration > 0).all()
    assert np.array_equal(environment.seen.settings.batch, environment.runs.bounds.batch_initial)


def test_actions_are_encoded_as_those_of_the_agent() -> None:
    made = RunEnvironment(1, weights=WEIGHTS).proposals(np.array([[0.6, -1.0, 0.5]]))
    values = made.gpu_delta[0], made.batch_factor[0], made.lr_factor[0]
    assert values == pytest.approx((1, 0.8, 1.1))
    exact = Actions(np.ones(1), np.full(1, 0.8), np.full(1, 1.1), np.zeros(1))
    assert exact.encoded()[0] == pytest.approx([0.5, -1, 0.5])


def test_the_simulator_needs_no_gymnasium() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import mlflow_rlsched.simulator.environment, mlflow_rlsched.simulator.schedulers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
