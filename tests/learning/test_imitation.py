from __future__ import annotations

import numpy as np

from mlflow_rlsched.learning.imitation import dagger
from mlflow_rlsched.policy.ddpg import Learner
from tests.policy.tuning import Tuning, throughput_of, throughput_of_expert


def teach(seed: int) -> tuple[Learner, list[float]]:
    learner, world = Learner(seed=seed), Tuning(64, seed)
    taught = dagger(learner, world, world.expert, rounds=4, steps=20, passes=8, seed=seed)
    return learner, list(taught)


def test_the_actor_does_as_well_as_the_expert() -> None:
    learner, losses = teach(0)
    assert throughput_of(learner) > 0.95 * throughput_of_expert()
    assert losses[-1] < 0.5 * losses[0]


def test_the_same_seed_teaches_the_same() -> None:
    first, second = (teach(1)[0].arrays() for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)


def test_the_expert_is_asked_where_the_actor_leads() -> None:
    """In the first round the expert acts; later ones see what only the actor's actions lead to."""
    learner, world = Learner(), Tuning(16, 0)
    learner.actor.body[-1].bias.data[-1] = 5  # it always raises the rate
    shown: list[float] = []

    def expert() -> np.ndarray:
        shown.append(float(np.abs(world.offset).mean()))
        return world.expert()

    steps = 20
    list(dagger(learner, world, expert, rounds=2, steps=steps, passes=0, mixing=0.0))
    assert np.mean(shown[10:steps]) < 1 < 5 < np.mean(shown[steps + 10 :])
