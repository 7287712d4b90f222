from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.inputs import ENCODED, INPUTS, WEIGHTS_AT
from mlflow_rlsched.policy.replay import KEY, PARTS, Replay, Returns, SumTree, Transitions, parts_of
from mlflow_rlsched.policy.reward import Scales, Terms, absorbing, discount, reward

SCALES = Scales(throughput_max=1000, cost_max=4, total_s=500, interval_s=5)


def transitions(count: int, seed: int = 0) -> Transitions:
    random = np.random.default_rng(seed)
    widths = (len(INPUTS), ENCODED, PARTS, 1, len(INPUTS))
    return Transitions(*(random.normal(size=(count, w)).astype(np.float32) for w in widths))


def filled(errors: np.ndarray, key: np.ndarray, **options: float) -> Replay:
    replay = Replay(len(errors), **options)
    replay.add(transitions(len(errors)), key)
    replay.update(np.arange(len(errors)), errors)
    return replay


@given(arrays(float, st.integers(1, 3000), elements=st.floats(0, 1e6)), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_a_tree_draws_what_a_search_of_the_running_sum_finds(
    weights: np.ndarray, seed: int
) -> None:
    if weights.sum() == 0:
        weights[0] = 1
    tree = SumTree(len(weights))
    tree[np.arange(len(weights))] = weights
    assert tree.total == pytest.approx(weights.sum())
    shares = np.random.default_rng(seed).random(50)
    found = tree.draw(shares)
    assert (weights[found] > 0).all()
    running = weights.cumsum()
    mass, slack = shares * running[-1], 1e-9 * running[-1]
    assert (running[found] - weights[found] <= mass + slack).all()
    assert (mass <= running[found] + slack).all()


def test_the_last_weight_of_a_place_counts() -> None:
    tree = SumTree(2000)
    tree[np.array([7, 1500, 7])] = np.array([1.0, 2.0, 3.0])
    assert tree.total == 5
    assert set(tree.draw(np.linspace(0, 0.999, 20))) == {7, 1500}


def test_nothing_without_weight_is_drawn_at_the_edges() -> None:
    tree = SumTree(3000)
    tree[np.array([1234])] = np.array([0.1])
    shares = np.array([0.0, np.nextafter(0, 1), 0.5, np.nextafter(1, 0)])
    assert tree.draw(shares).tolist() == [1234] * 4


def test_the_distribution_is_that_of_the_priorities() -> None:
    random = np.random.default_rng(1)
    errors, key = random.exponential(size=200), random.random(200) < 0.2
    replay = filled(errors, key, exponent=0.6)
    counts = np.zeros(200)
    for _ in range(400):
        # One draw from all of the total at a time: the stratified ones are more even than chance.
        counts += np.bincount(replay._tree.draw(random.random(100)), minlength=200)
    odds = errors**0.6 * np.where(key, 3, 1)
    expected = counts.sum() * odds / odds.sum()
    assert stats.chisquare(counts, expected).pvalue > 0.001


def test_what_is_sampled_has_that_distribution_too() -> None:
    random = np.random.default_rng(2)
    errors, key = random.exponential(size=1500), random.random(1500) < 0.1
    replay = filled(errors, key, exponent=1)
    counts = np.zeros(1500)
    for _ in range(300):
        counts += np.bincount(replay.sample(256).places, minlength=1500)
    odds = errors * np.where(key, KEY, 1)
    expected = counts.sum() * odds / odds.sum()
    # Strata make the counts less scattered than chance, never more.
    assert stats.chisquare(counts, expected).pvalue > 0.5
    assert counts[key].sum() / counts.sum() == pytest.approx(odds[key].sum() / odds.sum(), rel=0.02)


def test_importance_weights_undo_the_priorities() -> None:
    errors = np.array([1.0, 2.0, 4.0, 8.0])
    key = np.array([False, True, False, False])
    replay = filled(errors, key, exponent=1, correction=1)
    values = np.array([10.0, 20.0, 30.0, 40.0])
    weighted = weight = 0.0
    for _ in range(200):
        sample = replay.sample(256)
        odds = (errors * [1, 3, 1, 1])[sample.places]
        assert sample.importance[:, 0] == pytest.approx(odds.min() / odds, rel=1e-5)
        weighted += float((sample.importance[:, 0] * values[sample.places]).sum())
        weight += float(sample.importance.sum())
    assert weighted / weight == pytest.approx(25, rel=0.02)


def test_rows_come_back_as_they_went_in_and_the_oldest_go() -> None:
    replay = Replay(100)
    for seed in range(3):
        replay.add(transitions(40, seed), np.zeros(40, bool))
    assert len(replay) == 100
    sample = replay.sample(512)
    known = {
        row.tobytes(): (seed, place)
        for seed in range(3)
        for place, row in enumerate(transitions(40, seed).inputs)
    }
    found = [known[row.tobytes()] for row in sample.transitions.inputs]
    assert min(found) >= (0, 20)
    for (seed, place), following in zip(found, sample.transitions.next_inputs, strict=True):
        assert (following == transitions(40, seed).next_inputs[place]).all()


def test_new_ones_are_as_likely_as_the_most_surprising() -> None:
    replay = filled(np.array([0.5, 9.0]), np.zeros(2, bool), exponent=1)
    replay.add(transitions(2), np.array([False, True]))
    assert replay._tree[np.arange(2)] == pytest.approx([9, 27])


def test_the_same_seed_draws_the_same() -> None:
    first, second = (filled(np.ones(50), np.zeros(50, bool), seed=3) for _ in range(2))
    assert (first.sample().places == second.sample().places).all()


def terms(number: int) -> Terms:
    return Terms(5.0 * (1 + number), 300, 10.0, 0.05 * number, 0.3, None, SCALES)


@pytest.mark.parametrize("weights", [Weights(), Weights(alpha=3, beta=0, gamma=2, smoothness=1)])
@pytest.mark.parametrize("ending", [None, "oom", "done"])
def test_a_reward_from_its_parts_is_the_reward(weights: Weights, ending: str | None) -> None:
    ended = Terms(10, 2500, 30, 0.1, 0.25, ending, SCALES)
    left = 100.0 if ending == "done" else 0.0
    inputs = np.zeros((1, len(INPUTS)), np.float32)
    inputs[0, WEIGHTS_AT] = [weights.alpha, weights.beta, weights.gamma, weights.smoothness]
    parts = np.array([parts_of(ended, left)], np.float32)
    found = Transitions(inputs, parts, parts, parts, inputs).reward
    after = discount(10, SCALES) * absorbing(left, weights, SCALES)
    assert found == pytest.approx(reward(ended, weights).total + after, rel=1e-5)


def steps(seed: int, count: int, envs: int) -> list[tuple]:
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        step = transitions(envs, number)
        ended = random.random(envs) < 0.2
        lost = ended & (random.random(envs) < 0.5)  # truncated: a value follows all the same
        weight = np.where(lost, 0, random.uniform(0.5, 1, envs))[:, None].astype(np.float32)
        step = Transitions(step.inputs, step.action, step.parts, weight, step.next_inputs)
        found.append((step, ended, random.random(envs) < 0.3, np.ones(envs, bool)))
    return found


@given(st.integers(0, 1000), st.integers(1, 5))
@settings(max_examples=25)
def test_n_step_returns_against_a_slow_reference(seed: int, most: int) -> None:
    given_steps = steps(seed, 8, 3)
    returns = Returns(most)
    folded = [item for step in given_steps for item in returns.push(*step)]
    folded += list(returns.flush())
    assert len(folded) == len(given_steps)
    for start, (found, key) in enumerate(folded):
        assert (key == given_steps[start][2]).all()
        for env in range(3):
            parts, weight = np.zeros(PARTS), 1.0
            for step, ended, *_ in given_steps[start : start + most]:
                parts += weight * step.parts[env]
                weight *= float(step.discount[env, 0])
                following = step.next_inputs[env]
                if ended[env]:
                    break
            assert found.parts[env] == pytest.approx(parts, abs=1e-5)
            assert math.isclose(found.discount[env, 0], weight, abs_tol=1e-6)
            assert (found.next_inputs[env] == following).all()
            assert (found.inputs[env] == given_steps[start][0].inputs[env]).all()


def test_a_step_that_only_begins_an_episode_is_no_transition() -> None:
    first, begins, after = (transitions(2, seed) for seed in range(3))
    none, both, second = np.zeros(2, bool), np.ones(2, bool), np.array([False, True])
    returns = Returns(3)
    given_steps = [(first, second, both), (begins, none, ~second), (after, none, both)]
    folded = [
        item for step, ended, real in given_steps for item in returns.push(step, ended, none, real)
    ]
    folded += list(returns.flush())
    assert [len(found.inputs) for found, _ in folded] == [2, 1, 2]
    assert (folded[0][0].parts[1] == first.parts[1]).all()
    assert (folded[1][0].inputs[0] == begins.inputs[0]).all()
