"""What a policy may do, and the setting that results.

The learning-rate scale is always computed from the base value: the batch rule for the ratio of
the batch to the initial one, times the product of the policy's own factors. So it is the same
however often a run was stopped and resumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GPU_DELTAS = (-2, -1, 0, 1, 2)
FACTOR_MIN = 0.8
FACTOR_MAX = 1.2


@dataclass(frozen=True)
class Action:
    """A change of the setting.

    Attributes:
        gpu_delta: Devices more or fewer, one of ``GPU_DELTAS``.
        batch_factor: Factor on the batch size, in [0.8, 1.2].
        lr_factor: Factor on the learning rate, in [0.8, 1.2], apart from the batch rule.
    """

    gpu_delta: int = 0
    batch_factor: float = 1.0
    lr_factor: float = 1.0

    def clipped(self) -> Action:
        """The nearest action inside the ranges; what is not finite changes nothing."""
        delta = self.gpu_delta if math.isfinite(self.gpu_delta) else 0
        return Action(
            round(min(max(delta, GPU_DELTAS[0]), GPU_DELTAS[-1])),
            _clipped_factor(self.batch_factor),
            _clipped_factor(self.lr_factor),
        )

    def encoded(self) -> tuple[float, float, float]:
        """Each part mapped to [-1, 1], 0 for no change (GPU delta / 2)."""
        half = (FACTOR_MAX - FACTOR_MIN) / 2
        return (
            self.gpu_delta / GPU_DELTAS[-1],
            (self.batch_factor - 1) / half,
            (self.lr_factor - 1) / half,
        )


NO_CHANGE = Action()


def _clipped_factor(factor: float) -> float:
    return min(max(factor, FACTOR_MIN), FACTOR_MAX) if math.isfinite(factor) else 1.0


@dataclass(frozen=True)
class Setting:
    """What a run trains with.

    Attributes:
        gpus: Devices held; 0 on CPU slots.
        batch_size: Global batch size in samples, or None when the training told none.
        lr_factor: Product of the policy's own factors on the learning rate.
        lr_scale: Final factor on the user's learning rate: the batch rule times ``lr_factor``.
    """

    gpus: int = 1
    batch_size: int | None = None
    lr_factor: float = 1.0
    lr_scale: float = 1.0


def batch_rule(batch_size: int | None, initial: int | None, optimizer: str | None) -> float:
    """Factor on the learning rate that goes with a batch size.

    Linear for SGD (Goyal et al. 2017, section 2.1); the square root for Adam-like optimizers
    (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms") and
    for those that are unknown, where the smaller change is the safer one.

    Args:
        batch_size: Batch size in force, in samples; None when unknown.
        initial: The batch size that the base learning rate was chosen for.
        optimizer: ``sgd``, ``adam`` (Adam-like) or another name; None when unknown.
    """
    if not batch_size or not initial:
        return 1.0
    ratio = batch_size / initial
    return ratio if optimizer == "sgd" else math.sqrt(ratio)


def resize(
    setting: Setting, batch_size: int | None, initial: int | None, optimizer: str | None
) -> Setting:
    """``setting`` with another batch size and the learning-rate scale that goes with it."""
    scale = batch_rule(batch_size, initial, optimizer) * setting.lr_factor
    return Setting(setting.gpus, batch_size, setting.lr_factor, scale)


def apply(action: Action, setting: Setting, initial: int | None, optimizer: str | None) -> Setting:
    """The setting that an action leads to, before the guard.

    A batch factor other than 1 moves the batch by at least one sample, so that small batches
    are not held back by rounding.

    Args:
        action: What to change; clipped to its ranges first.
        setting: What is in force.
        initial: The batch size that the base learning rate was chosen for, in samples.
        optimizer: Kind of the optimizer, see ``batch_rule``.
    """
    action = action.clipped()
    changed = Setting(
        max(0, setting.gpus + action.gpu_delta),
        setting.batch_size,
        setting.lr_factor * action.lr_factor,
    )
    return resize(changed, _moved(setting.batch_size, action.batch_factor), initial, optimizer)


def _moved(batch_size: int | None, factor: float) -> int | None:
    if batch_size is None or factor == 1:
        return batch_size
    rounded = round(batch_size * factor)
    return max(rounded, batch_size + 1) if factor > 1 else max(1, min(rounded, batch_size - 1))
