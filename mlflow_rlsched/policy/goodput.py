"""The goodput model, fitted while runs go on (Pollux: Qiao et al. 2021, section 3).

Everything here works on many runs at once, one a row, so that a simulator can afford it.

The step time of K devices at a batch of b samples each is ``(G^gamma + S^gamma)^(1/gamma)``: G, the
gradients, takes ``alpha_c + beta_c b``; S, their synchronisation, nothing on one device and
``alpha_r + beta_r (K - 2)`` on one node or ``alpha_n + beta_n (K - 2)`` on several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS
from mlflow_rlsched.policy.inputs import Array

PerNode: TypeAlias = "float | Array"

PARAMETERS = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")

SLOTS = 16
"""Settings whose step time is remembered."""

WORTH = 0.03
"""Relative gain in what is maximised below which nothing is proposed."""

NOISE = 0.05
"""Usual relative error of a measured step time."""

_SAME = 0.02  # relative difference of batch sizes that count as one setting
_MEMORY = 8  # measurements of a setting that its mean goes back
_OUTLIER = 0.3  # error from which a measurement counts less (Huber 1964)
_STEP = 1.0  # largest change of a parameter's logarithm an iteration
_LOWEST, _HIGHEST = np.log(1e-10), np.log(1e6)
_GAMMA = (0.0, np.log(10.0))

# What is assumed before anything else was seen, as parts of the first step time, and how unsure
# that is (standard deviation of the logarithm): about the middle of the six applications that
# Pollux measured. gamma is absolute.
_ASSUMED = np.log([0.3, 0.7, 0.3, 0.01, 0.1, 0.003, 1.6])
_UNSURE = np.array([1.5, 1.0, 1.5, 2.0, 1.5, 2.0, 0.4])


@dataclass
class Timings:
    """Step times by setting, ``SLOTS`` a run; those with count 0 are free.

    Attributes:
        gpus: (R, 16) devices.
        batch: (R, 16) global batch, samples.
        seconds: (R, 16) mean step time.
        count: (R, 16) measurements, up to ``_MEMORY``.
        settings: (R,) different settings seen so far.
    """

    gpus: Array
    batch: Array
    seconds: Array
    count: Array
    settings: Array

    @classmethod
    def none(cls, runs: int) -> Timings:
        """Nothing measured yet."""
        gpus, batch, seconds = (np.ones((runs, SLOTS)) for _ in range(3))
        return cls(gpus, batch, seconds, np.zeros((runs, SLOTS)), np.zeros(runs, int))

    def add(self, rows: Array, gpus: Array, batch: Array, seconds: Array) -> None:
        """Take in a measurement for each of ``rows`` (n,), no row twice; all arrays (n,).

        A setting that is new takes the place of the oldest, but the first one stays: it is what
        the model's assumptions are relative to.
        """
        same = (
            (self.count[rows] > 0)
            & (self.gpus[rows] == gpus[:, None])
            & (np.abs(self.batch[rows] / batch[:, None] - 1) < _SAME)
        )
        known = same.any(1)
        seen = self.settings[rows]
        fresh = np.where(seen < SLOTS, seen, 1 + (seen - 1) % (SLOTS - 1))
        slots = np.where(known, same.argmax(1), fresh)
        at = (rows, slots)
        count = np.minimum(np.where(known, self.count[at], 0) + 1, _MEMORY)
        before = np.where(known, self.seconds[at], seconds)
        self.gpus[at] = gpus
        self.batch[at] = np.where(known, self.batch[at], batch)
        self.seconds[at] = before + (seconds - before) / count
        self.count[at] = count
        self.settings[rows] += ~known

    def forget(self, rows: Array) -> None:
        """Other runs begin in these rows."""
        self.count[rows] = 0
        self.settings[rows] = 0


def assumed(timings: Timings) -> Array:
    """(R, 7) logarithms of the parameters that are assumed before a fit."""
    found = np.tile(_ASSUMED, (len(timings.gpus), 1))
    first = np.log(timings.seconds[:, :1])
    found[:, :-1] += first
    found[:, 1] -= np.log(timings.batch[:, 0] / timings.gpus[:, 0])
    return found


def supposed(timings: Timings, random: np.random.Generator, wider: float = 1.0) -> Array:
    """(R, 7) what might as well have been assumed, drawn.

    Args:
        timings: What was measured.
        random: Draws it.
        wider: How unsure that is, over how unsure the assumptions are taken to be.
    """
    center = assumed(timings)
    found: Array = center + wider * _UNSURE * random.standard_normal(center.shape)
    found[:, -1] = np.clip(found[:, -1], *_GAMMA)
    return found


def step_seconds(parameters: Array, gpus: Array, batch: Array, per_node: PerNode) -> Array:
    """Predicted step times.

    Args:
        parameters: (R, 7) logarithms, in the order of ``PARAMETERS``.
        gpus: (R, N) devices.
        batch: (R, N) global batches, samples.
        per_node: Devices of a node, of all runs or (R, 1).

    Returns:
        (R, N) seconds.
    """
    return np.exp(_log_seconds(parameters, gpus, batch, per_node)[0])


def _log_seconds(
    parameters: Array, gpus: Array, batch: Array, per_node: PerNode, slopes: bool = False
) -> tuple[Array, Array | None]:
    """Logarithm of the step time, and its derivatives (R, N, 7) by the parameters."""
    p = np.exp(parameters)[:, :, None]
    each, more = batch / gpus, np.maximum(gpus - 2, 0)
    many, alone = gpus > per_node, gpus < 2
    growing = p[:, 1] * each
    gradients = p[:, 0] + growing
    start, slope = np.where(many, p[:, 2], p[:, 4]), np.where(many, p[:, 3], p[:, 5])
    sync = start + slope * more
    gamma = p[:, 6]
    log_g, log_s = np.log(gradients), np.log(sync)
    # T = G (1 + (S/G)^gamma)^(1/gamma), and nothing but G on one device.
    ratio = np.where(alone, 0.0, np.exp(np.minimum(gamma * (log_s - log_g), 700.0)))
    logs = log_g + np.log1p(ratio) / gamma
    if not slopes:
        return logs, None
    of_g, of_s = 1 / (1 + ratio), ratio / (1 + ratio)
    by_start, by_slope = of_s * start / sync, of_s * slope * more / sync
    found = np.stack(
        [
            of_g * p[:, 0] / gradients,
            of_g * growing / gradients,
            np.where(many, by_start, 0),
            np.where(many, by_slope, 0),
            np.where(many, 0, by_start),
            np.where(many, 0, by_slope),
            of_g * log_g + of_s * log_s - logs,
        ],
        2,
    )
    return logs, found


def fit(
    parameters: Array,
    timings: Timings,
    per_node: PerNode = np.inf,
    iterations: int = 4,
    prior: Array | None = None,
) -> Array:
    """Improve the parameters: damped Gauss-Newton steps towards the likeliest ones.

    Minimises the Huber loss of the logarithmic errors over ``NOISE``, plus the squared distance to
    what is assumed over how unsure that is, within the parameters' bounds; so few measurements move
    only what they say something of.

    Args:
        parameters: (R, 7) logarithms to start from: ``assumed`` or the last fit.
        timings: What was measured.
        per_node: Devices of a node, of all runs or (R, 1).
        iterations: Steps.
        prior: (R, 7) what is assumed; ``assumed`` by default.

    Returns:
        (R, 7).
    """
    prior, trust = assumed(timings) if prior is None else prior, _UNSURE**-2
    measured, known = np.log(timings.seconds), timings.count > 0
    for _ in range(iterations):
        logs, slopes = _log_seconds(parameters, timings.gpus, timings.batch, per_node, slopes=True)
        assert slopes is not None
        errors = measured - logs
        weights = known * np.minimum(1, _OUTLIER / np.maximum(np.abs(errors), 1e-9)) / NOISE**2
        weighted = slopes.transpose(0, 2, 1) * weights[:, None]
        left = weighted @ slopes + np.diag(trust * 1.1)
        right = (weighted @ errors[:, :, None])[:, :, 0] + trust * (prior - parameters)
        step = np.linalg.solve(left, right[:, :, None])[:, :, 0]
        parameters = np.clip(parameters + np.clip(step, -_STEP, _STEP), _LOWEST, _HIGHEST)
        parameters[:, -1] = np.clip(parameters[:, -1], *_GAMMA)
    return parameters


def fit_error(parameters: Array, timings: Timings, per_node: PerNode = np.inf) -> Array:
    """(R,) root mean square of the logarithmic errors; 1 without a measurement."""
    logs, _ = _log_seconds(parameters, timings.gpus, timings.batch, per_node)
    known = timings.count > 0
    squares = (known * (np.log(timings.seconds) - logs) ** 2).sum(1)
    some = known.any(1)
    return np.where(some, np.sqrt(squares / np.maximum(known.sum(1), 1)), 1.0)


@dataclass(frozen=True)
class Situation:
    """Where runs stand and what bounds them; (R,) each.

    Attributes:
        gpus: Devices held, at least 1.
        batch: Global batch, samples.
        gpus_min: Fewest devices.
        gpus_max: Most devices; where they cannot change, both are those held.
        batch_min: Smallest batch.
        batch_max: Largest batch; where it cannot change, both are the one in force.
        noise_scale: Gradient noise scale, samples; NaN where it is unknown, and with it what a
            larger batch is worth: then the batch stays.
        alpha: The reward's weight of throughput.
        beta: The reward's weight of cost.
    """

    gpus: Array
    batch: Array
    gpus_min: Array
    gpus_max: Array
    batch_min: Array
    batch_max: Array
    noise_scale: Array
    alpha: Array
    beta: Array


@dataclass(frozen=True)
class Advised:
    """What the model proposes to runs; (R,) each, as ``inputs.Advice``."""

    gpu_delta: Array
    batch_factor: Array
    gain: Array


_FAR_GPUS = 2.0 ** np.arange(8)
_FAR_BATCH = 2.0 ** (np.arange(-8, 9) / 4)


def advise(parameters: Array, situation: Situation, per_node: PerNode = np.inf) -> Advised:
    """The step towards the best setting that is in reach.

    The best has the highest alpha log(goodput) - beta log(devices): whatever the run's scale, a
    device more must raise the goodput by at least beta/alpha of what it raises the cost. Few more
    and many more devices are looked at, as a few may pay only together.

    Args:
        parameters: (R, 7) logarithms.
        situation: Where the runs stand.
        per_node: Devices of a node, of all runs or (R, 1).
    """
    s = situation
    deltas = s.gpus[:, None] + np.array(GPU_DELTAS)
    gpus = np.hstack([deltas, np.tile(_FAR_GPUS, (len(deltas), 1))])
    gpus = np.clip(gpus, s.gpus_min[:, None], s.gpus_max[:, None])
    batches = np.where(np.isnan(s.noise_scale)[:, None], 1.0, _FAR_BATCH) * s.batch[:, None]
    batches = np.clip(batches, s.batch_min[:, None], s.batch_max[:, None])
    shape = (len(gpus), gpus.shape[1], batches.shape[1])
    all_gpus = np.broadcast_to(gpus[:, :, None], shape).reshape(len(gpus), -1)
    all_batches = np.broadcast_to(batches[:, None], shape).reshape(len(gpus), -1)
    scores = _score(parameters, all_gpus, all_batches, s, per_node)
    now = _score(parameters, s.gpus[:, None], s.batch[:, None], s, per_node)[:, 0]
    rows = np.arange(len(gpus))
    best = scores.argmax(1)
    worth = scores[rows, best] - now > WORTH
    reach = GPU_DELTAS[-1]
    delta = np.where(worth, np.clip(all_gpus[rows, best] - s.gpus, -reach, reach), 0).astype(int)
    factor = np.clip(all_batches[rows, best] / s.batch, FACTOR_MIN, FACTOR_MAX)
    factor = np.where(worth, factor, 1.0)
    return Advised(delta, factor, gain(parameters, s, delta, factor, per_node))


def gain(
    parameters: Array, situation: Situation, delta: Array, factor: Array, per_node: PerNode = np.inf
) -> Array:
    """(R,) relative gain in goodput of changing devices by ``delta`` and batch by ``factor``."""
    s = situation
    after = _log_goodput(
        parameters, (s.gpus + delta)[:, None], (s.batch * factor)[:, None], s, per_node
    )
    before = _log_goodput(parameters, s.gpus[:, None], s.batch[:, None], s, per_node)
    found: Array = np.expm1(np.clip(after - before, -20, 20))[:, 0]
    return found


def gains_measured(
    parameters: Array, timings: Timings, situation: Situation, per_node: PerNode = np.inf
) -> Array:
    """(R, 16) relative gain in goodput of going to each setting that was measured."""
    s = situation
    logs = np.log(timings.seconds)
    after = _log_worth(timings.batch, logs, s)
    before = _log_goodput(parameters, s.gpus[:, None], s.batch[:, None], s, per_node)
    found: Array = np.expm1(np.clip(after - before, -20, 20))
    return np.where(timings.count > 0, found, -1.0)


def _score(parameters: Array, gpus: Array, batch: Array, s: Situation, per_node: PerNode) -> Array:
    goodput = _log_goodput(parameters, gpus, batch, s, per_node)
    score: Array = s.alpha[:, None] * goodput - s.beta[:, None] * np.log(gpus)
    return score


def _log_goodput(
    parameters: Array, gpus: Array, batch: Array, s: Situation, per_node: PerNode
) -> Array:
    """Of samples a second times efficiency 1 / (scale + batch), but for a constant."""
    logs, _ = _log_seconds(parameters, np.maximum(gpus, 1), batch, per_node)
    return _log_worth(batch, logs, s)


def _log_worth(batch: Array, log_seconds: Array, s: Situation) -> Array:
    """The goodput of batches whose steps take so long."""
    scale = s.noise_scale[:, None]
    efficiency = np.where(np.isnan(scale), 0.0, -np.log(scale + batch))
    goodput: Array = np.log(batch) - log_seconds + efficiency
    return goodput
