"""A closed-form training on a simulated clock: SGD on a quadratic with noisy gradients.

loss(x) = sum(h x^2) / 2 with curvatures h from 0.002 to 1; the gradient of a sample has noise of
standard deviation ``NOISE`` in each direction. The best constant learning rate is about 0.3, from
2 on it diverges. It stands for a real training in tests of the policies alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlflow_rlsched.policy.action import Setting
from mlflow_rlsched.policy.decision import Decider, Decision
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.protocol import Report

DIRECTIONS = 20
NOISE = 0.3
BATCH = 8
STEPS_PER_S = 5
LIMITS = Limits(batch_initial=BATCH, optimizer="sgd")
CAN = frozenset({"batch_size", "learning_rate", "resume"})


@dataclass
class Quadratic:
    """One training; ``report`` makes a second of steps and says what a session would say."""

    rate: float
    seed: int
    target: float
    seconds: float = 0.0
    samples: int = 0
    samples_to_target: int | None = None
    curvature: np.ndarray = field(default_factory=lambda: np.geomspace(0.002, 1, DIRECTIONS))

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.x = np.ones(DIRECTIONS)
        self.start = self.loss

    @property
    def loss(self) -> float:
        """The true loss."""
        return float(np.sum(self.curvature * self.x**2) / 2)

    def report(self, setting: Setting) -> Report:
        """A second of steps at ``setting``."""
        batch = setting.batch_size or BATCH
        losses, gradients = [], []
        for _ in range(STEPS_PER_S):
            noise = self.random.normal(0, NOISE / np.sqrt(batch), DIRECTIONS)
            gradient = self.curvature * self.x + noise
            losses.append(self.loss + self.random.normal(0, 0.3 / np.sqrt(batch)) * self.loss)
            gradients.append(gradient)
            self.x = np.clip(self.x - self.rate * setting.lr_scale * gradient, -1e6, 1e6)
            self.samples += batch
            if self.samples_to_target is None and self.loss < self.target * self.start:
                self.samples_to_target = self.samples
        self.seconds += 1
        first, second = gradients[-2:]
        return Report(
            numbers={
                "time": self.seconds,
                "step": self.samples / batch,
                "samples": float(self.samples),
                "loss": float(np.mean(losses)),
                "batch_size": batch,
                "grad_sqr": float(first @ second),
                "grad_var": float(batch * np.sum((first - second) ** 2) / 2),
                "grad_norm": float(np.linalg.norm(second)),
            }
        )


def train(
    policy: Policy,
    rate: float,
    seed: int,
    interval_s: int = 5,
    most_s: int = 6000,
    target: float = 0.02,
) -> tuple[Quadratic, list[Decision]]:
    """Train until the target is reached, at most ``most_s`` simulated seconds."""
    training = Quadratic(rate, seed, target)
    setting = Setting(1, BATCH)
    decider = Decider(LIMITS, policy)
    decisions: list[Decision] = []
    while training.samples_to_target is None and training.seconds < most_s:
        reports = [training.report(setting) for _ in range(interval_s)]
        decision = decider.decide(
            Interval(
                duration_s=interval_s,
                elapsed_s=training.seconds,
                setting=setting,
                reports=reports,
                can=CAN,
                pressure=0.0,
            )
        )
        decisions.append(decision)
        setting = decision.setting
    return training, decisions
