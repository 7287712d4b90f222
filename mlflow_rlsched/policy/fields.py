"""The 23 fields of the state: the one definition of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval, bounded
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.loss import Signals, level
from mlflow_rlsched.policy.measuring import mean_utilisation
from mlflow_rlsched.policy.stability import noise_scale


class Known(NamedTuple):
    """What the fields are computed from."""

    history: History
    interval: Interval
    limits: Limits
    losses: Signals | None


@dataclass(frozen=True)
class Field:
    """One number of the state.

    Attributes:
        name: Its name.
        group: ``hardware``, ``task`` or ``setting``.
        meaning: What it is, for people.
        unit: Its unit.
        source: Where it comes from.
        low: The value that is mapped to -1.
        high: The value that is mapped to 1; beyond both it is clipped.
        missing: The value that stands for one that is not known.
        compute: The value; None when it is not known.
    """

    name: str
    group: str
    meaning: str
    unit: str
    source: str
    low: float
    high: float
    missing: float
    compute: Callable[[Known], float | None]

    def normalised(self, value: float) -> float:
        """``value`` mapped from [low, high] to [-1, 1] and clipped."""
        share = (value - self.low) / (self.high - self.low)
        return min(max(2 * share - 1, -1.0), 1.0)


def _log(value: float | None, base: float) -> float | None:
    return math.log(value, base) if value is not None and 0 < value < math.inf else None


def _ratio(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _utilisation_spread(known: Known) -> float | None:
    use = [u for d in known.interval.devices if (u := bounded(d.utilisation)) is not None]
    return max(use) - min(use) if use else None


def _power(known: Known) -> float | None:
    shares = [
        power / limit
        for device in known.interval.devices
        if (power := bounded(device.power)) is not None
        and (limit := bounded(device.power_limit)) is not None
        and limit > 0
    ]
    return fmean(shares) if shares else None


def _input_wait(known: Known) -> float | None:
    told = [r.numbers["input_wait"] for r in known.interval.reports if "input_wait" in r.numbers]
    return fmean(map(_clipped, told)) if told else known.interval.host_cpu


def _clipped(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _loss(known: Known) -> float | None:
    now = level([loss for _, loss in known.history.losses])
    return _ratio(now, known.history.loss_first)


def _oscillation(known: Known) -> float | None:
    usual = known.history.spread_usual
    if known.losses is None or usual is None:
        return None
    tiny = 1e-12  # a loss that does not move at all has no spread, and does not oscillate
    return _log((known.losses.spread + tiny) / (usual + tiny), 2)


def _variance_trend(known: Known) -> float | None:
    gradients = known.history.gradients
    if not gradients:
        return None
    return _log(_ratio(fmean(g.var for g in gradients), known.history.var_usual), 2)


def _throughput_trend(known: Known) -> float | None:
    now, before = known.history.throughput, known.history.throughput_before
    ratio = _ratio(now, before)
    return None if ratio is None else ratio - 1


def _since_gpu_change(known: Known) -> float | None:
    at = known.history.gpus_changed_at
    return None if at is None else known.interval.elapsed_s - at


FIELDS: tuple[Field, ...] = (
    Field(
        "gpu_utilisation",
        "hardware",
        "mean utilisation of the leased devices",
        "0 to 1",
        "device readings",
        0,
        1,
        0.5,
        lambda k: mean_utilisation(tuple(k.interval.devices)),
    ),
    Field(
        "gpu_utilisation_spread",
        "hardware",
        "utilisation of the busiest device less that of the idlest",
        "0 to 1",
        "device readings",
        0,
        1,
        0,
        _utilisation_spread,
    ),
    Field(
        "memory_used",
        "hardware",
        "used part of the memory of the fullest device",
        "0 to 1",
        "device readings, peak",
        0,
        1,
        0.5,
        lambda k: k.history.memory_fraction,
    ),
    Field(
        "memory_slope",
        "hardware",
        "change of `memory_used`",
        "1/min",
        "last two intervals",
        -0.1,
        0.1,
        0,
        lambda k: k.history.memory_slope,
    ),
    Field(
        "power",
        "hardware",
        "mean power over the enforced limit",
        "0 to 1",
        "device readings",
        0,
        1,
        0.5,
        _power,
    ),
    Field(
        "network_rate",
        "hardware",
        "network traffic over the most seen in this run",
        "0 to 1",
        "host counters",
        0,
        1,
        0,
        lambda k: _ratio(bounded(k.interval.network_rate), k.history.network_max),
    ),
    Field(
        "input_wait",
        "hardware",
        "part of the time that the training waits for its input",
        "0 to 1",
        "`input_wait` of the reports, else the use of the CPU slots held",
        0,
        1,
        0,
        _input_wait,
    ),
    Field(
        "progress",
        "task",
        "part of the training that is done",
        "0 to 1",
        "`progress` of the reports, else the objective's way to its target",
        0,
        1,
        0,
        lambda k: k.history.progress,
    ),
    Field(
        "loss",
        "task",
        "level of the loss (median of the last five) over the first loss",
        "ratio",
        "`loss` of the reports",
        0,
        2,
        1,
        _loss,
    ),
    Field(
        "loss_slope",
        "task",
        "change of the loss along its trend over the window, relative to its level",
        "ratio",
        "the last twelve losses, Theil-Sen",
        -1,
        1,
        0,
        lambda k: None if k.losses is None else k.losses.change,
    ),
    Field(
        "loss_oscillation",
        "task",
        "spread of the loss round its trend over its usual spread",
        "log2",
        "the last twelve losses, median deviation",
        -3,
        3,
        0,
        _oscillation,
    ),
    Field(
        "noise_scale",
        "task",
        "gradient noise scale: the batch size at which noise and gradient are equal",
        "log10 samples",
        "`grad_var` over `grad_sqr` of the reports, ratio of means",
        0,
        6,
        3,
        lambda k: _log(noise_scale(k.history.gradients), 10),
    ),
    Field(
        "gradient_variance_trend",
        "task",
        "variance of the gradient now over its slow average",
        "log2",
        "`grad_var` of the reports",
        -2,
        2,
        0,
        _variance_trend,
    ),
    Field(
        "throughput",
        "task",
        "samples a second over the best seen in this run",
        "0 to 1",
        "`samples` and `time` of the reports",
        0,
        1,
        0.5,
        lambda k: _ratio(k.history.throughput, k.history.throughput_best),
    ),
    Field(
        "throughput_trend",
        "task",
        "change of the throughput against the interval before",
        "ratio",
        "`samples` and `time` of the reports",
        -0.5,
        0.5,
        0,
        _throughput_trend,
    ),
    Field(
        "gpus",
        "setting",
        "devices held over the most allowed",
        "0 to 1",
        "the lease and `gpus.max`",
        0,
        1,
        1,
        lambda k: _ratio(k.interval.setting.gpus, k.limits.gpus_max),
    ),
    Field(
        "batch_size",
        "setting",
        "batch size over the initial one",
        "log2",
        "the setting in force",
        -6,
        6,
        0,
        lambda k: _log(_ratio(k.interval.setting.batch_size, k.limits.batch_initial), 2),
    ),
    Field(
        "lr_scale",
        "setting",
        "factor on the user's learning rate",
        "log2",
        "the setting in force",
        -10,
        10,
        0,
        lambda k: _log(k.interval.setting.lr_scale, 2),
    ),
    Field(
        "last_gpu_delta",
        "setting",
        "devices added by the last action",
        "devices",
        "the last decision, after the guard",
        GPU_DELTAS[0],
        GPU_DELTAS[-1],
        0,
        lambda k: k.history.action.gpu_delta,
    ),
    Field(
        "last_batch_factor",
        "setting",
        "factor of the last action on the batch size",
        "ratio",
        "the last decision, after the guard",
        FACTOR_MIN,
        FACTOR_MAX,
        1,
        lambda k: k.history.action.batch_factor,
    ),
    Field(
        "last_lr_factor",
        "setting",
        "factor of the last action on the learning rate",
        "ratio",
        "the last decision, after the guard",
        FACTOR_MIN,
        FACTOR_MAX,
        1,
        lambda k: k.history.action.lr_factor,
    ),
    Field(
        "since_gpu_change",
        "setting",
        "running time since the number of devices last changed",
        "s",
        "earlier decisions",
        0,
        600,
        600,
        _since_gpu_change,
    ),
    Field(
        "pressure",
        "setting",
        "devices that waiting tasks ask for, over the devices of the pool",
        "ratio",
        "the queue",
        0,
        4,
        0,
        lambda k: k.interval.pressure,
    ),
)
