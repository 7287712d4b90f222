"""Trainings in lockstep in which only the learning rate matters, in closed form.

Each begins ``offset`` steps of 20 % away from its best learning rate, which its state shows as
``lr_scale``; its useful throughput is exp(-offset^2 / 8). It stands for the simulator.
"""

from __future__ import annotations

import numpy as np

from mlflow_rlsched.policy.ddpg import Learner
from mlflow_rlsched.policy.inputs import FACTORS, INPUTS, LAST_ACTION, WEIGHTS_AT, Array, encode
from mlflow_rlsched.policy.replay import Transitions

WEIGHTS = (1.0, 0.5, 1.0, 0.1)
LENGTH = 20
SHOWN = INPUTS.index("lr_scale")
DISCOUNT = 0.99


class Tuning:
    def __init__(self, count: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.offset = np.zeros(count)
        self.last = np.zeros((count, 3), np.float32)
        self.step = 0

    def reset(self) -> Array:
        self.offset = self.random.uniform(-6, 6, len(self.offset))
        self.last[:] = 0
        self.step = 0
        return self.inputs()

    def inputs(self) -> Array:
        found = np.zeros((len(self.offset), len(INPUTS)), np.float32)
        found[:, SHOWN] = self.offset / 10
        found[:, LAST_ACTION] = self.last
        found[:, WEIGHTS_AT] = WEIGHTS
        return found

    def take(self, actions: Array) -> tuple[Transitions, Array]:
        """Act; the transitions, and the mean useful throughput of each environment."""
        before, last = self.inputs(), self.last.copy()
        self.step += 1
        deltas = actions[:, :-FACTORS] @ np.linspace(-1, 1, 5)
        self.last = np.column_stack([deltas, actions[:, -FACTORS:]]).astype(np.float32)
        self.offset = self.offset + actions[:, -1]
        throughput = np.exp(-(self.offset**2) / 8)
        change = ((self.last - last) ** 2).mean(1)
        nothing = np.zeros_like(throughput)
        parts = np.column_stack([throughput, nothing, nothing, -change, nothing])
        discount = np.full((len(parts), 1), DISCOUNT)
        rows = (before, actions, parts, discount, self.inputs())
        return Transitions(*(row.astype(np.float32) for row in rows)), throughput

    def expert(self) -> Array:
        rate = 1 + 0.2 * np.clip(-self.offset, -1, 1)
        return encode(np.zeros(len(rate), int), np.ones(len(rate)), rate)


def throughput_of(learner: Learner) -> float:
    """Mean useful throughput of trainings that no learner has seen."""
    world = Tuning(200, 99)
    inputs, found = world.reset(), []
    for _ in range(LENGTH):
        step, throughput = world.take(learner.act(inputs))
        inputs = step.next_inputs
        found.append(throughput.mean())
    return float(np.mean(found))


def throughput_of_expert() -> float:
    """What the expert reaches there."""
    world = Tuning(200, 99)
    world.reset()
    return float(np.mean([world.take(world.expert())[1].mean() for _ in range(LENGTH)]))
