"""What bounds a run's setting: its configuration and what its training said of itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlflow_rlsched.config import RunConfig

LR_SCALE_MIN = 1e-4
LR_SCALE_MAX = 1e4
"""Bounds of the learning-rate scale where the configuration has none: it can never underflow."""

_GIGA = 1e9


@dataclass(frozen=True)
class Limits:
    """The limits of a run, fixed for one attempt.

    Attributes:
        gpus_min: Fewest devices.
        gpus_max: Most devices.
        gpus_are_live: Whether the number of devices can change at all after the start.
        restart_cost_s: What a change of devices costs, seconds.
        batch_initial: Batch size that the base learning rate was chosen for, samples.
        batch_min: Smallest global batch, samples.
        batch_max: Largest global batch, samples.
        lr_scale_min: Smallest factor on the user's learning rate.
        lr_scale_max: Largest factor on the user's learning rate.
        optimizer: ``sgd``, ``adam`` (Adam-like), another name, or None when unknown.
        dataset_size: Samples of an epoch, or None when unknown.
        drop_last: Whether a smaller last batch is left out, or None when unknown.
        memory_cap_bytes: Most memory of each device, or None for the device's own.
        objective_mode: ``min`` or ``max``.
        objective_target: Value at which the run is done, or None.
        price: Price of a device-second.
        interval_s: Length of a decision interval that is fixed, or None for ``auto``.
    """

    gpus_min: int = 1
    gpus_max: int = 1
    gpus_are_live: bool = False
    restart_cost_s: float = 30.0
    batch_initial: int | None = None
    batch_min: int = 1
    batch_max: int = 2**31 - 1
    lr_scale_min: float = LR_SCALE_MIN
    lr_scale_max: float = LR_SCALE_MAX
    optimizer: str | None = None
    dataset_size: int | None = None
    drop_last: bool | None = None
    memory_cap_bytes: float | None = None
    objective_mode: str = "min"
    objective_target: float | None = None
    price: float = 1.0
    interval_s: float | None = None


def limits_of(
    config: RunConfig,
    *,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimizer: str | None = None,
    dataset_size: int | None = None,
    drop_last: bool | None = None,
    gpus_are_live: bool = False,
    restart_cost_s: float = 30.0,
    price: float = 1.0,
) -> Limits:
    """The limits of a run.

    Args:
        config: The run's configuration.
        batch_size: Batch size that the training starts with when nothing is scheduled; the
            configuration's initial one counts when it is None.
        learning_rate: Base learning rate (``lr_scale`` 1); without it the configured bounds of
            the rate cannot be expressed as bounds of the scale and only the general ones hold.
        optimizer: Kind of the optimizer as the training said.
        dataset_size: Samples of an epoch as the training said.
        drop_last: Whether the training leaves out a smaller last batch.
        gpus_are_live: Whether the number of devices can change after the start.
        restart_cost_s: What a change of devices costs, seconds.
        price: Price of a device-second.
    """
    initial = batch_size or config.initial_batch_size
    low, high = _scale_bounds(config.learning_rate.min, config.learning_rate.max, learning_rate)
    batch_max = config.batch_size.max or 2**31 - 1
    if dataset_size:
        batch_max = min(batch_max, max(dataset_size, initial or 1))
    every = config.decision_interval_s
    return Limits(
        gpus_min=max(config.gpus.min, min(1, config.gpus.initial)),
        gpus_max=config.gpus.max,
        gpus_are_live=gpus_are_live,
        restart_cost_s=restart_cost_s,
        batch_initial=initial,
        batch_min=min(config.batch_size.min or 1, batch_max),
        batch_max=batch_max,
        lr_scale_min=low,
        lr_scale_max=high,
        optimizer=optimizer,
        dataset_size=dataset_size or None,
        drop_last=drop_last,
        memory_cap_bytes=None if config.memory_cap_gb is None else config.memory_cap_gb * _GIGA,
        objective_mode=config.objective.mode,
        objective_target=config.objective.target,
        price=price,
        interval_s=None if isinstance(every, str) else every,
    )


def _scale_bounds(
    lowest: float | None, highest: float | None, base: float | None
) -> tuple[float, float]:
    low, high = LR_SCALE_MIN, LR_SCALE_MAX
    if base is not None and math.isfinite(base) and base > 0:
        if lowest is not None:
            low = max(low, lowest / base)
        if highest is not None:
            high = min(high, highest / base)
    # A base outside the configured bounds: the nearer bound is the only rate that is left.
    return min(low, high), high
