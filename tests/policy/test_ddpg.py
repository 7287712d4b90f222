from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch

from mlflow_rlsched.policy.ddpg import (
    Learner,
    Settings,
    _scaled,
    cloning_loss,
    critic_loss,
    reinforcement_loss,
    smoothness_loss,
)
from mlflow_rlsched.policy.inputs import ENCODED, FACTORS, INPUTS
from mlflow_rlsched.policy.networks import Critics, Normaliser, gumbel, one_hot
from mlflow_rlsched.policy.replay import Replay, Returns
from mlflow_rlsched.policy.reward import DISCOUNT
from tests.policy.tuning import LENGTH, Tuning, throughput_of, throughput_of_expert


def slope(loss: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Central differences of a plain function."""
    found, tiny = np.zeros_like(at), 1e-6
    for place in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[place] += tiny
        down[place] -= tiny
        found[place] = (loss(up) - loss(down)) / (2 * tiny)
    return found


def gradient(loss: Callable[[torch.Tensor], torch.Tensor], at: np.ndarray) -> np.ndarray:
    variable = torch.tensor(at, requires_grad=True)
    loss(variable).backward()
    return variable.grad.numpy()


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_critics_gradient(random: np.random.Generator) -> None:
    values, target = random.normal(size=(6, 2)), random.normal(size=(6, 1))
    importance = random.uniform(0.1, 1, (6, 1))

    def slow(v: np.ndarray) -> float:
        return sum(
            importance[i, 0] * (v[i, c] - target[i, 0]) ** 2 / 6 for i in range(6) for c in range(2)
        )

    told = (torch.tensor(target), torch.tensor(importance))
    assert critic_loss(torch.tensor(values), *told).item() == pytest.approx(slow(values))
    found = gradient(lambda v: critic_loss(v, *told), values)
    assert found == pytest.approx(slope(slow, values), abs=1e-6)


def test_the_critics_gradient_through_the_network(random: np.random.Generator) -> None:
    torch.manual_seed(0)
    critics = Critics(2).double()
    inputs, action, target = (
        torch.tensor(random.normal(size=(8, width))) for width in (len(INPUTS), ENCODED, 1)
    )
    importance = torch.tensor(random.uniform(0.1, 1, (8, 1)))

    def loss() -> torch.Tensor:
        return critic_loss(critics(inputs, action), target, importance)

    loss().backward()
    for parameter in critics.parameters():
        at = tuple(random.integers(size) for size in parameter.shape)
        value, tiny, found = parameter[at].item(), 1e-5, []
        with torch.no_grad():
            for change in (tiny, -tiny):
                parameter[at] = value + change
                found.append(loss().item())
            parameter[at] = value
        assert parameter.grad[at].item() == pytest.approx(
            (found[0] - found[1]) / (2 * tiny), rel=1e-4, abs=1e-9
        )


def test_the_gradient_of_reinforcement(random: np.random.Generator) -> None:
    values = random.normal(size=(5, 1))
    scale = sum(abs(v) for v in values[:, 0]) / 5

    def slow(v: np.ndarray) -> float:
        return -sum(v[:, 0]) / 5 / scale

    assert gradient(reinforcement_loss, values) == pytest.approx(slope(slow, values), abs=1e-6)


def test_the_gradient_of_smoothness(random: np.random.Generator) -> None:
    choice, factors = np.eye(5)[[0, 3, 2]], random.uniform(-1, 1, (3, 2))
    before = random.uniform(-1, 1, (3, 3))

    def slow(f: np.ndarray) -> float:
        total = 0.0
        for i in range(3):
            delta = (list(choice[i]).index(1) - 2) / 2
            action = (delta, f[i, 0], f[i, 1])
            total += sum((a - b) ** 2 for a, b in zip(action, before[i], strict=True)) / 3
        return total / 3

    def fast(f: torch.Tensor) -> torch.Tensor:
        return smoothness_loss(torch.tensor(choice), f, torch.tensor(before))

    assert fast(torch.tensor(factors)).item() == pytest.approx(slow(factors))
    assert gradient(fast, factors) == pytest.approx(slope(slow, factors), abs=1e-6)


def test_the_gradient_of_cloning(random: np.random.Generator) -> None:
    both = random.normal(size=(4, 7))
    shares, wanted = random.dirichlet(np.ones(5), 4), random.uniform(-1, 1, (4, 2))

    def slow(b: np.ndarray) -> float:
        total = 0.0
        for i in range(4):
            norm = math.log(sum(math.exp(x) for x in b[i, :5]))
            total -= sum(shares[i, k] * (b[i, k] - norm) for k in range(5)) / 4
            total += sum((b[i, 5 + k] - wanted[i, k]) ** 2 for k in range(2)) / 8
        return total

    def fast(b: torch.Tensor) -> torch.Tensor:
        return cloning_loss(b[:, :5], b[:, 5:], torch.tensor(shares), torch.tensor(wanted))

    assert fast(torch.tensor(both)).item() == pytest.approx(slow(both))
    assert gradient(fast, both) == pytest.approx(slope(slow, both), abs=1e-6)


def test_a_choice_is_one_hot_and_has_the_gradient_of_the_softmax(
    random: np.random.Generator,
) -> None:
    logits, worth = random.normal(size=(3, 5)), random.normal(size=(3, 5))
    hard = one_hot(torch.tensor(logits)).numpy()
    assert hard == pytest.approx(np.eye(5)[logits.argmax(1)])

    def slow(x: np.ndarray) -> float:
        soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return float((soft * worth).sum())

    found = gradient(lambda x: (one_hot(x) * torch.tensor(worth)).sum(), logits)
    assert found == pytest.approx(slope(slow, logits), abs=1e-6)


def test_with_gumbel_noise_a_choice_is_a_draw_from_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]]).repeat(20_000, 1)
    drawn = one_hot(logits, gumbel(logits, torch.Generator().manual_seed(0))).mean(0)
    assert drawn.numpy() == pytest.approx(logits[0].softmax(0).numpy(), abs=0.015)


def test_the_critics_are_independent_and_their_first_leads_the_actor() -> None:
    torch.manual_seed(0)
    critics = Critics(2)
    inputs, action = torch.randn(8, len(INPUTS)), torch.randn(8, ENCODED)
    both = critics(inputs, action)
    assert both.shape == (8, 2)
    assert not torch.allclose(both[:, 0], both[:, 1])
    assert torch.equal(critics.first(inputs, action), both[:, :1])


def test_authority_scales_the_gradient_and_leaves_the_value() -> None:
    value = torch.tensor([[0.3, -0.2]], requires_grad=True)
    scaled = _scaled(value, torch.tensor([0.0, 0.25]))
    assert torch.equal(scaled, value)
    scaled.sum().backward()
    assert value.grad.tolist() == [[0, 0.25]]


def test_the_normalisation_is_that_of_all_inputs_so_far() -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(3, 2, (n, 4)).astype(np.float32) for n in (500, 1, 37)]
    normaliser = Normaliser(4, prior=1e-9)
    for part in parts:
        normaliser.update(torch.from_numpy(part))
    whole = np.concatenate(parts)
    assert normaliser.mean.numpy() == pytest.approx(whole.mean(0), abs=1e-4)
    assert normaliser.var.numpy() == pytest.approx(whole.var(0), rel=1e-4)
    assert (normaliser.low.numpy() == whole.min(0)).all()
    assert (normaliser.high.numpy() == whole.max(0)).all()
    seen = normaliser(torch.from_numpy(whole))
    assert seen.mean(0).numpy() == pytest.approx(np.zeros(4), abs=1e-3)
    assert seen.std(0).numpy() == pytest.approx(np.ones(4), abs=1e-2)


def test_an_actor_that_was_taught_nothing_changes_nothing() -> None:
    inputs = np.random.default_rng(0).uniform(-1, 1, (50, len(INPUTS))).astype(np.float32)
    actions = Learner(seed=1).act(inputs)
    assert (actions[:, 2] == 1).all()
    assert np.abs(actions[:, -FACTORS:]).max() < 0.1


def test_noise_draws_the_gpu_delta_and_stays_in_bounds() -> None:
    inputs = np.zeros((500, len(INPUTS)), np.float32)
    actions = Learner().act(inputs, noise=0.5)
    assert (actions[:, :-FACTORS].sum(1) == 1).all()
    assert (actions[:, :-FACTORS].sum(0) > 0).all()
    assert np.abs(actions).max() <= 1
    assert actions[:, -1].std() > 0.3


def collect(learner: Learner, replay: Replay, episodes: int, seed: int) -> None:
    world, returns = Tuning(32, seed), Returns(3)
    for _ in range(episodes):
        inputs = world.reset()
        for place in range(LENGTH):
            learner.observe(inputs)
            step, _ = world.take(learner.act(inputs, noise=0.5))
            inputs = step.next_inputs
            ended = np.full(32, place == LENGTH - 1)
            for folded, key in returns.push(step, ended, np.zeros(32, bool), np.ones(32, bool)):
                replay.add(folded, key)


def trained(settings: Settings, seed: int, rounds: int, updates: int) -> Learner:
    learner, replay = Learner(settings, seed), Replay(20_000, seed=seed)
    for number in range(rounds):
        collect(learner, replay, 2, seed + number)
        learner.update(replay, updates)
    return learner


QUICK = Settings(batch_size=64, actor_rate=1e-3, critic_rate=1e-3, target_rate=0.02)


def test_it_learns() -> None:
    before = throughput_of(Learner(QUICK))
    after = throughput_of(trained(QUICK, seed=0, rounds=20, updates=30))
    best = throughput_of_expert()
    assert before < 0.5 * best
    assert after > 0.9 * best


def test_the_same_seed_gives_the_same_policy() -> None:
    first, second, other = (trained(QUICK, seed, 2, 5).arrays() for seed in (3, 3, 4))
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_the_target_is_the_reward_and_the_lowest_value_that_follows() -> None:
    learner = Learner(Settings(target_noise=0.0))
    inputs = torch.randn(5, len(INPUTS))
    reward, discount = torch.randn(5, 1), torch.tensor([[0.9], [0.0], [0.5], [1.0], [0.99]])
    with torch.no_grad():
        learner.actor.body[-1].bias[0] = 100  # one delta is certain: nothing is left to chance
        learner._actor_target.body[-1].bias[0] = 100
        _, factors = learner.actor(learner.normaliser(inputs))
        action = torch.cat([torch.eye(5)[:1].repeat(5, 1), factors], 1)
        low = learner.critics(learner.normaliser(inputs), action).min(1).values
    found = learner._target(reward, discount, inputs)
    expected = (1 - DISCOUNT) * reward[:, 0] + discount[:, 0] * low
    assert found[:, 0].numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_without_authority_the_reference_holds_the_actor() -> None:
    held = Learner(Settings(batch_size=64, authority=(0, 0, 0), smoothness=0, cloning=1), 0)
    free = Learner(Settings(batch_size=64, authority=(1, 1, 1), smoothness=0, cloning=0), 0)
    inputs = np.random.default_rng(0).uniform(-1, 1, (200, len(INPUTS))).astype(np.float32)
    moved = []
    for learner in (held, free):
        learner.hold_here()
        replay = Replay(10_000)
        collect(learner, replay, 2, 0)
        before = learner.actor(learner.normaliser(torch.from_numpy(inputs)))[1].detach()
        learner.update(replay, 60)
        after = learner.actor(learner.normaliser(torch.from_numpy(inputs)))[1].detach()
        moved.append(float((after - before).abs().mean()))
    assert moved[0] < 0.1 * moved[1]


def test_a_learner_goes_on_exactly_where_it_was_stopped() -> None:
    whole, replay = Learner(QUICK, 1), Replay(5000)
    collect(whole, replay, 2, 0)
    whole.hold_here()
    whole.update(replay, 5)
    state = whole.state()
    again = Learner(QUICK, 7)
    again.resume(state)
    twin = deepcopy(replay)
    whole.update(replay, 3)
    again.update(twin, 3)
    first, second = whole.state(), again.state()
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)


def test_both_rates_are_lowered() -> None:
    learner = Learner(Settings(actor_rate=1e-3, critic_rate=4e-3))
    learner.slow_down()
    assert learner.state()["actor_adam.rate"] == pytest.approx([5e-4])
    assert learner.state()["critic_adam.rate"] == pytest.approx([2e-3])


def test_the_actor_waits_until_the_critics_know_something() -> None:
    learner, replay = Learner(Settings(batch_size=32, actor_after=6)), Replay(5000)
    collect(learner, replay, 2, 0)
    before = learner.arrays()
    assert math.isnan(learner.update(replay, 6).actor)
    assert (learner.arrays()["actor.body.4.bias"] == before["actor.body.4.bias"]).all()
    assert (learner.arrays()["critics.bodies.0.4.bias"] != before["critics.bodies.0.4.bias"]).all()
    assert math.isfinite(learner.update(replay, 2).actor)
    assert (learner.arrays()["actor.body.4.bias"] != before["actor.body.4.bias"]).any()
