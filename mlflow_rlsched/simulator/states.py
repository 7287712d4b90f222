"""The states of many runs at once, by the one definition in ``policy.state.FIELDS``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mlflow_rlsched.policy.action import FACTOR_MAX, GPU_DELTAS
from mlflow_rlsched.policy.state import FIELDS
from mlflow_rlsched.simulator.histories import Histories
from mlflow_rlsched.simulator.measured import Bounds, Measured
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.windows import mean


class Known(NamedTuple):
    """What the fields are computed from."""

    history: Histories
    seen: Measured
    bounds: Bounds


def states(history: Histories, seen: Measured, bounds: Bounds) -> Floats:
    """States of runs x fields, each value in [-1, 1] (``policy.state.build_state``)."""
    known = Known(history, seen, bounds)
    columns = np.stack([_VALUES[field.name](known) for field in FIELDS], axis=1)
    values = np.where(np.isfinite(columns), columns, _MISSING)
    return np.asarray(np.clip(2 * (values - _LOW) / (_HIGH - _LOW) - 1, -1, 1))


def _log(values: Floats, base: float) -> Floats:
    """Logarithm; NaN for what has none."""
    out = np.full(len(values), np.nan)
    return np.asarray(np.log(values, out=out, where=values > 0) / np.log(base))


def _ratio(values: Floats, whole: Floats) -> Floats:
    nothing = np.full(len(values), np.nan)
    return np.asarray(np.divide(values, whole, out=nothing, where=whole != 0))


def _oscillation(known: Known) -> Floats:
    tiny = 1e-12
    spread, usual = known.history.signals.spread, known.history.spread_usual
    return _log((spread + tiny) / (usual + tiny), 2)


_HALF = FACTOR_MAX - 1  # of the range of a factor: encoded as 1

_VALUES: dict[str, Callable[[Known], Floats]] = {
    "gpu_utilisation": lambda k: k.seen.mean_use,
    "gpu_utilisation_spread": lambda k: np.where(
        k.seen.settings.gpus > 1,
        np.abs(k.seen.use - k.seen.use_straggler),
        0 * k.seen.use_straggler,
    ),
    "memory_used": lambda k: k.history.memory_fraction,
    "memory_slope": lambda k: k.history.memory_slope,
    "power": lambda k: k.seen.power / k.seen.power_limit,
    "network_rate": lambda k: _ratio(k.seen.network_rate, k.history.network_max),
    "input_wait": lambda k: mean(np.clip(k.seen.input_wait, 0, 1)),
    "progress": lambda k: k.history.progress,
    "loss": lambda k: _ratio(k.history.loss_level, k.history.loss_first),
    "loss_slope": lambda k: k.history.signals.change,
    "loss_oscillation": _oscillation,
    "noise_scale": lambda k: _log(k.history.noise_scale, 10),
    "gradient_variance_trend": lambda k: _log(
        _ratio(mean(k.history.grad_var), k.history.var_usual), 2
    ),
    "throughput": lambda k: _ratio(k.history.throughput, k.history.throughput_best),
    "throughput_trend": lambda k: _ratio(k.history.throughput, k.history.throughput_before) - 1,
    "gpus": lambda k: k.seen.settings.gpus / k.bounds.gpus_max,
    "batch_size": lambda k: _log(k.seen.settings.batch / k.bounds.batch_initial, 2),
    "lr_scale": lambda k: _log(k.seen.settings.lr_scale, 2),
    "last_gpu_delta": lambda k: k.history.action[:, 0] * GPU_DELTAS[-1],
    "last_batch_factor": lambda k: 1 + k.history.action[:, 1] * _HALF,
    "last_lr_factor": lambda k: 1 + k.history.action[:, 2] * _HALF,
    "since_gpu_change": lambda k: k.seen.elapsed - k.history.gpus_changed_at,
    "pressure": lambda k: k.seen.pressure,
}

_LOW = np.array([field.low for field in FIELDS])
_HIGH = np.array([field.high for field in FIELDS])
_MISSING = np.array([field.missing for field in FIELDS])
