"""How fast a training computes, and how much each sample is worth.

The models of Pollux (Qiao et al. 2021, "Pollux: Co-adaptive Cluster Scheduling for
Goodput-Optimized Deep Learning", OSDI, section 3), on whole arrays: every argument may be a
number or an array, as long as they broadcast.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

Floats: TypeAlias = NDArray[np.float64]

GAMMA_MAX = 10.0
"""Overlap from which computation and synchronisation hide each other but for rounding."""

_LEAST = 1e-8  # seconds; logarithms of the parameters are fitted


@dataclass(frozen=True)
class Throughput:
    """The seven parameters of the time that a step takes (Pollux, section 3.2).

    Attributes:
        alpha_c: Time for a gradient of no sample, seconds.
        beta_c: Time that one more sample on a device adds, seconds.
        alpha_n: Synchronisation of two devices on several nodes, seconds.
        beta_n: What one more device adds to it, seconds.
        alpha_r: Synchronisation of two devices on one node, seconds.
        beta_r: What one more device adds to it, seconds.
        gamma: Overlap of computation and synchronisation: 1 for none, the more the larger.
    """

    alpha_c: ArrayLike
    beta_c: ArrayLike
    alpha_n: ArrayLike
    beta_n: ArrayLike
    alpha_r: ArrayLike
    beta_r: ArrayLike
    gamma: ArrayLike

    def gradient_time(self, local_batch: ArrayLike) -> Floats:
        """Seconds for the gradient of ``local_batch`` samples on each device."""
        batch = np.asarray(local_batch, float)
        return np.asarray(self.alpha_c + np.asarray(self.beta_c) * batch)

    def sync_time(self, nodes: ArrayLike, gpus: ArrayLike) -> Floats:
        """Seconds for the synchronisation of ``gpus`` devices on ``nodes`` nodes."""
        more = np.maximum(np.asarray(gpus, float) - 2, 0)
        within = np.asarray(self.alpha_r) + np.asarray(self.beta_r) * more
        across = np.asarray(self.alpha_n) + np.asarray(self.beta_n) * more
        several = np.where(np.asarray(nodes) > 1, across, within)
        return np.asarray(np.where(np.asarray(gpus) > 1, several, 0.0))

    def step_time(
        self, nodes: ArrayLike, gpus: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> Floats:
        """Seconds for one optimizer step.

        Args:
            nodes: Nodes that the devices are on.
            gpus: Devices.
            local_batch: Samples on a device at once.
            accumulation: Gradients that are summed up before the one that is synchronised.
        """
        gradient = self.gradient_time(local_batch)
        sync = self.sync_time(nodes, gpus)
        gamma = np.asarray(self.gamma)
        # Relative to the larger of both, so that no power overflows.
        most = np.maximum(gradient, sync)
        both = most * ((gradient / most) ** gamma + (sync / most) ** gamma) ** (1 / gamma)
        return np.asarray(np.asarray(accumulation) * gradient + both)


def gain(sqr: ArrayLike, var: ArrayLike, scale: ArrayLike) -> Floats:
    """Progress of a step at ``scale`` times the base batch, in steps at the base batch.

    (var + sqr) / (var / scale + sqr): AdaScale (Johnson et al. 2020, section 3), Pollux (section
    3.1).

    Args:
        sqr: Squared norm of the true gradient.
        var: Variance of the gradient of a base batch.
        scale: Batch size over the base batch size.
    """
    sqr, var = np.asarray(sqr, float), np.asarray(var, float)
    return np.asarray((var + sqr) / (var / np.asarray(scale) + sqr))


def efficiency(sqr: ArrayLike, var: ArrayLike, scale: ArrayLike) -> Floats:
    """Statistical efficiency of a sample against one at the base batch, at most 1 from there on."""
    return np.asarray(gain(sqr, var, scale) / np.asarray(scale))


@dataclass(frozen=True)
class Fit:
    """A fitted model and how well it fits.

    Attributes:
        throughput: The model.
        median_error: Median of the relative errors of the step time.
    """

    throughput: Throughput
    median_error: float


def fit(
    nodes: Floats, gpus: Floats, local_batch: Floats, step_time: Floats, sync_time: Floats
) -> Fit:
    """Fit the step time and the gradient time to measurements, all arrays of one length.

    Least squares of the logarithms, as Pollux (section 4.1) fits them, with a loss that large
    residuals do not govern; the gradient time is what the step takes without its
    synchronisation.

    Args:
        nodes: Nodes of each measurement.
        gpus: Devices.
        local_batch: Samples on a device.
        step_time: Seconds for a step.
        sync_time: Seconds of it that went to synchronisation.
    """
    gradient = np.maximum(step_time - sync_time, _LEAST)

    def residuals(values: Floats) -> Floats:
        model = _model(values)
        steps = np.log(model.step_time(nodes, gpus, local_batch) / step_time)
        gradients = np.log(model.gradient_time(local_batch) / gradient)
        return np.concatenate([steps, gradients])

    typical = float(np.median(gradient))
    sync = max(float(np.median(sync_time[gpus > 1])) if np.any(gpus > 1) else 0.0, _LEAST)
    per_sample = typical / float(np.median(local_batch))
    start = [typical / 2, per_sample / 2, sync, sync / 20, sync / 2, sync / 20]
    bounds = [np.log(_LEAST)] * 6 + [1.0], [np.log(1e4)] * 6 + [GAMMA_MAX]
    first = [*np.log(np.maximum(start, 2 * _LEAST)), 1.5]
    found = least_squares(residuals, first, bounds=bounds, loss="soft_l1", f_scale=0.1)
    model = _model(found.x)
    errors = np.abs(model.step_time(nodes, gpus, local_batch) / step_time - 1)
    return Fit(model, float(np.median(errors)))


def _model(values: Floats) -> Throughput:
    return Throughput(*(float(value) for value in (*np.exp(values[:6]), values[6])))


def parameters(model: Throughput) -> dict[str, Any]:
    """The parameters by name, as JSON values."""
    names = Throughput.__dataclass_fields__
    return {name: float(f"{value:.4g}") for name, value in zip(names, astuple(model), strict=True)}
