"""What a simulated run is.

``Effects`` switches off what the measurements of ``apps.json`` know nothing of. Each effect is a
model of its own, with its source at ``Parameters``; ``Ranges`` says how widely runs differ.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mlflow_rlsched.simulator.measured import Bounds
from mlflow_rlsched.simulator.models import Floats, Throughput
from mlflow_rlsched.simulator.windows import Flags

CURVE = 33
"""Points of a curve over the progress, equally spaced from 0 to 1."""

REPORTS = 4
"""Most reports of an interval that are looked at."""

HORIZON = 5.0
"""Running time to which a run is followed, over its length at its initial setting."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Effects:
    """What a run is subject to; each may be switched off.

    Attributes:
        learning_rate: The rate has an optimum; else every rate is as good.
        memory: Memory is limited.
        restarts: A change of the devices takes time.
        interference: Others slow the run down now and then.
        input_bound: The input cannot keep up now and then.
        noise: Readings are noisy.
        missing: Some readings are missing.
        late: The training applies a directive late now and then.
        device_loss: Devices fail.
        pressure: Others wait for devices, and free ones are few.
    """

    learning_rate: bool = True
    memory: bool = True
    restarts: bool = True
    interference: bool = True
    input_bound: bool = True
    noise: bool = True
    missing: bool = True
    late: bool = True
    device_loss: bool = True
    pressure: bool = True


@dataclass(frozen=True)
class Ranges:
    """How widely runs differ; drawn uniformly from the logarithm unless it says otherwise.

    Attributes:
        length_s: Length of the run at its initial setting if nothing goes wrong, seconds.
        decisions: Decisions in that time.
        coefficient: Factor on each throughput parameter of an application.
        noise_scale: Factor on its gradient noise scale.
        noise_growth: Power of ten by which the noise scale's growth differs (uniform).
        batch_headroom: Largest batch allowed over the base batch.
        batch_start: Initial batch over the base batch.
        gpus_max: Most devices allowed.
        rigid_gpus: Part of the runs whose devices cannot change.
        rigid_batch: Part of the runs whose batch cannot.
        lr_optimum: Best learning rate over the user's, at the initial batch.
        lr_fall_below: p of 1 / cosh(p ln(rate / best)) below the best rate.
        lr_fall_above: The same above it.
        lr_edge: Rate over the best that diverges, of half of the runs.
        lr_soft: The same of the others.
        memory_use: Memory that the initial batch takes, as part of the device (uniform).
        memory_fixed: Part of that which does not grow with the batch (uniform).
        restart_s: Time that a restart takes, seconds.
        input_share: Speed of the input over that of the initial setting.
        unread: Part of single readings and reports that are missing, where some are.
        failures: Rate of failures of a device where there are any, 1/s.
        price: Price of a device-second.
        plan: Samples that the user plans for, over those that the target takes at the initial
            batch and the best rate.
    """

    length_s: Range = (300.0, 30_000.0)
    decisions: Range = (100.0, 400.0)
    coefficient: Range = (0.5, 2.0)
    noise_scale: Range = (0.2, 5.0)
    noise_growth: Range = (-0.5, 0.5)
    batch_headroom: Range = (8.0, 64.0)
    batch_start: Range = (1.0, 4.0)
    gpus_max: Range = (1.0, 16.0)
    rigid_gpus: float = 0.0
    rigid_batch: float = 0.0
    lr_optimum: Range = (0.05, 20.0)
    lr_fall_below: Range = (0.65, 1.0)
    lr_fall_above: Range = (0.6, 1.6)
    lr_edge: Range = (1.6, 3.2)
    lr_soft: Range = (3.2, 9.0)
    memory_use: Range = (0.1, 0.6)
    memory_fixed: Range = (0.2, 0.8)
    restart_s: Range = (5.0, 90.0)
    input_share: Range = (1.0, 30.0)
    unread: Range = (0.01, 0.2)
    failures: Range = (1e-6, 1e-4)
    price: Range = (0.3, 3.0)
    plan: Range = (1.0, 3.0)


@dataclass
class Parameters:
    """Arrays with a value a run; those that nothing can be measured of are the truth.

    Attributes:
        throughput: The seven parameters of ``Throughput``, runs x 7.
        gpus_per_node: Devices of a node.
        base_batch: Batch at which a step is worth one, samples.
        gpus_start: Initial devices.
        steps: Length of the training, steps at the base batch and the best rate.
        planned: Samples after which the training says that it is done by its plan; it goes on to
            its target, and its progress says nothing of how near that is.
        noise_scale: Gradient noise scale over the progress, runs x ``CURVE``, log10 samples
            (McCandlish et al. 2018).
        grad_sqr: Squared norm of the gradient over the progress, runs x ``CURVE``, natural log.
        loss_floor: Loss that cannot be got below, over the first loss.
        loss_knee: Progress at which the loss begins to fall by its power law, with loss_delay
            as its sharpness: floor + (1 - floor) (1 + (progress / knee)^delay)^-power, a plateau
            and then a power (Hestness et al. 2017; the plateau measured, ``benchmarks.axes``).
        loss_delay: That sharpness.
        loss_power: That power.
        loss_noise: Relative standard deviation of a reported loss, a mean over many steps.
        loss_excess: Part by which the loss is larger at the best rate than at none, as noise
            that grows with the rate and follows it within some reports; measured.
        loss_top: Highest loss over the first one of a training whose rate is too large: most
            fall back to where they began and stay there; infinite for one whose loss explodes.
        lr_optimum: Best rate at the initial batch over the user's; at others by section 2.2 of
            McCandlish et al. 2018, 1 / (1 + noise scale / batch), its root for Adam.
        lr_drift: Power with which the best rate follows the noise scale's drift in the same way;
            1 by that section, assumed to be less as most users' schedules lower the rate.
        lr_fall_below: p of progress / cosh(p ln(rate / best)) below the best: far below it the
            speed grows with the power p of the rate. Measured (``benchmarks.axes``).
        lr_fall_above: The same above it; measured.
        lr_diverges: Rate over the best from which what was learnt is lost; measured: an edge at
            about twice the best rate, or none up to several times it.
        reports: Reports in an interval.
        memory_base: Memory without a sample, bytes.
        memory_sample: Memory that a sample takes, bytes.
        memory_total: Memory of a device, bytes.
        power_idle: Power of an idle device over its limit.
        power_limit: Power limit, watts.
        gradient_bytes: Bytes that a device sends to synchronise.
        input_rate: Most samples a second that the input delivers in a slow phase.
        slow_input: Part of the time in slow phases.
        interference: Part of the speed that others take while they interfere (Pollux, figure
            8c, goes to a half).
        interfered: Part of the time in which they do.
        phase_s: Mean length of a slow or interfered phase, seconds.
        reading_noise: Relative standard deviation of readings.
        unread: Part of single readings and reports that are missing.
        has_devices: Whether device readings exist at all.
        has_gradients: Whether gradient statistics are reported.
        has_progress: Whether the progress is reported.
        late: Part of the directives that are applied an interval late.
        failures: Rate of failures of a device, 1/s.
        demand: Mean of the waiting demand over the pool's devices.
        horizon_s: Running time to which a run is followed, seconds.
        bounds: The limits.
    """

    throughput: Floats
    gpus_per_node: Floats
    base_batch: Floats
    gpus_start: Floats
    steps: Floats
    planned: Floats
    noise_scale: Floats
    grad_sqr: Floats
    loss_floor: Floats
    loss_knee: Floats
    loss_delay: Floats
    loss_power: Floats
    loss_noise: Floats
    loss_excess: Floats
    loss_top: Floats
    lr_optimum: Floats
    lr_drift: Floats
    lr_fall_below: Floats
    lr_fall_above: Floats
    lr_diverges: Floats
    reports: Floats
    memory_base: Floats
    memory_sample: Floats
    memory_total: Floats
    power_idle: Floats
    power_limit: Floats
    gradient_bytes: Floats
    input_rate: Floats
    slow_input: Floats
    interference: Floats
    interfered: Floats
    phase_s: Floats
    reading_noise: Floats
    unread: Floats
    has_devices: Flags
    has_gradients: Flags
    has_progress: Flags
    late: Floats
    failures: Floats
    demand: Floats
    horizon_s: Floats
    bounds: Bounds

    def replace(self, runs: Flags, others: Parameters) -> None:
        """Put other runs in the place of some, as many as there are ``runs``."""
        _put(self, others, runs)

    @property
    def model(self) -> Throughput:
        """The throughput of each run."""
        return Throughput(*self.throughput.T)


def _put(target: Any, source: Any, runs: Flags) -> None:
    for f in fields(target):
        old, new = getattr(target, f.name), getattr(source, f.name)
        if f.name == "bounds":
            _put(old, new, runs)
        elif isinstance(old, np.ndarray):
            old[runs] = new


def along(curves: Floats, progress: Floats) -> Floats:
    """Curves at each run's progress, linearly interpolated."""
    place = np.clip(progress, 0, 1) * (CURVE - 1)
    low = np.minimum(place.astype(int), CURVE - 2)
    rows = np.arange(len(curves))
    share = place - low
    return np.asarray((1 - share) * curves[rows, low] + share * curves[rows, low + 1])


def nodes(gpus: Floats, gpus_per_node: ArrayLike) -> Floats:
    """Nodes that so many devices take."""
    return np.asarray(np.ceil(gpus / np.asarray(gpus_per_node)))
