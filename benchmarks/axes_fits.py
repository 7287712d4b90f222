"""Fits of the simulator's learning-rate model to measured trainings.

Everything is computed from the raw table that ``benchmarks.axes`` writes, a training a row. x is
ln(rate / best rate of the batch size) throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from benchmarks.trainings import Floats, Row, levels, passage
from mlflow_rlsched.policy.loss import TO_SIGMA

_FEWEST = 8


@dataclass(frozen=True)
class Shape:
    """How the speed of a training depends on x.

    Attributes:
        name: Its formula.
        log_speed: ln(speed / best speed) of x, by the two parameters.
        starts: Parameters to begin a fit with.
        low: Smallest parameters.
        high: Largest ones.
    """

    name: str
    log_speed: Callable[[Floats, float, float], Floats]
    starts: tuple[tuple[float, float], ...]
    low: tuple[float, float]
    high: tuple[float, float]


def _gauss(x: Floats, below: float, above: float) -> Floats:
    return np.where(x < 0, -below * x * x, -above * x * x)


def _powers(x: Floats, below: float, above: float) -> Floats:
    """Powers of the rate on both sides, smoothly joined."""
    both = np.logaddexp(np.log(above) - below * x, np.log(below) + above * x)
    return np.asarray(np.log(below + above) - both)


def _edge(x: Floats, power: float, sharpness: float) -> Floats:
    """A power of the rate that ends at an edge.

    With both parameters 1 it is rate x (2 - rate): what a quadratic loss gains of a step
    (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", section 2.2).
    """
    lost = power / (power + sharpness) * np.exp(np.minimum(sharpness * x, 50.0))
    inside = np.where(lost < 0.999, np.log1p(-np.minimum(lost, 0.999)), -6.9 - 5 * (lost - 0.999))
    return np.asarray(power * x + inside - math.log(sharpness / (power + sharpness)))


def edge_of(power: float, sharpness: float) -> float:
    """Rate over the best at which ``_edge`` is 0."""
    return float(((power + sharpness) / power) ** (1 / sharpness))


GAUSS = Shape("exp(-c x^2)", _gauss, ((0.15, 1.0), (0.3, 0.3)), (0.01, 0.01), (3.0, 10.0))
POWERS = Shape("two powers", _powers, ((1.0, 1.0), (0.7, 3.0)), (0.1, 0.1), (3.0, 10.0))
EDGE = Shape("a power with an edge", _edge, ((1.0, 1.0), (0.7, 2.0)), (0.1, 0.2), (3.0, 10.0))
SHAPES = (GAUSS, POWERS, EDGE)


@dataclass(frozen=True)
class Fit:
    """A fitted shape.

    Attributes:
        parameters: The two of the shape.
        errors: Their standard errors.
        best: Best rate by batch size.
        samples: Samples that it takes at the best rate, by batch size.
        rms: Root mean square residual of ln(samples).
        r2: Explained part of the variance of ln(samples).
        count: Passages that were fitted.
    """

    parameters: tuple[float, float]
    errors: tuple[float, float]
    best: dict[int, float]
    samples: dict[int, float]
    rms: float
    r2: float
    count: int

    def x(self, row: Row) -> float:
        """Where a training is on the axis of its batch size."""
        return math.log(row["rate"] / self.best[row["batch"]])


def fit_speed(rows: Sequence[Row], loss: float, shape: Shape) -> Fit:
    """Fit the samples to a loss over the rate, with one shape for all batch sizes.

    A training that did not get there says only that it takes longer than it lasted.
    """
    batches = sorted({row["batch"] for row in rows})
    at = np.array([batches.index(row["batch"]) for row in rows])
    rates = np.log([row["rate"] for row in rows])
    passages = [passage(row, loss) for row in rows]
    reached = np.array([p is not None for p in passages])
    took = np.log([p or row["limit"] for p, row in zip(passages, rows, strict=True)])
    n = len(batches)

    def residuals(values: Floats) -> Floats:
        x = rates - values[2 : 2 + n][at]
        off = values[2 + n :][at] - shape.log_speed(x, *np.exp(values[:2])) - took
        return np.where(reached, off, np.minimum(off, 0))

    quickest = [
        min(zip(took[on], rates[on], strict=True))
        for on in (reached & (at == place) for place in range(n))
    ]
    low = [*np.log(shape.low), *[rates.min()] * n, *[0.0] * n]
    high = [*np.log(shape.high), *[rates.max()] * n, *[30.0] * n]
    fits = [
        least_squares(
            residuals,
            [*np.log(start), *(r - shift for _, r in quickest), *(t for t, _ in quickest)],
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.3,
        )
        for start in shape.starts
        for shift in (0.0, 0.7)
    ]
    found = min(fits, key=lambda fit: fit.cost)
    left = residuals(found.x)[reached]
    spread = took[reached] - took[reached].mean()
    errors = np.sqrt(np.abs(np.diag(np.linalg.pinv(found.jac.T @ found.jac))) * fmean(left**2))
    first, second = map(float, np.exp(found.x[:2]))
    return Fit(
        (first, second),
        (float(first * errors[0]), float(second * errors[1])),
        dict(zip(batches, map(float, np.exp(found.x[2 : 2 + n])), strict=True)),
        dict(zip(batches, map(float, np.exp(found.x[2 + n :])), strict=True)),
        float(np.sqrt(fmean(left**2))),
        float(1 - (left**2).sum() / (spread**2).sum()),
        int(reached.sum()),
    )


def noise_of(losses: Sequence[float]) -> float | None:
    """Relative standard deviation of losses round their course, from second differences.

    None for fewer than eight of them.
    """
    if len(losses) < _FEWEST:
        return None
    logs = np.log(np.maximum(losses, 1e-9))
    bends = logs[1:-1] - (logs[:-2] + logs[2:]) / 2
    return float(TO_SIGMA * np.median(np.abs(bends)) / math.sqrt(1.5))


@dataclass(frozen=True)
class Place:
    """What a training reported while its loss fell from one level to another.

    Attributes:
        batch: Batch size, samples.
        x: Its place on the axis of the rate.
        stepped: Relative standard deviation of the loss of a step.
        reported: The same of a report, a mean over a fixed number of samples; None for too few.
        cosine: Mean cosine of consecutive gradients; None when there was none.
        noise_scale: Gradient noise scale, samples; None when unknown.
    """

    batch: int
    x: float
    stepped: float
    reported: float | None
    cosine: float | None
    noise_scale: float | None


def place_of(row: Row, fit: Fit, first: float, last: float) -> Place | None:
    """The reports between two levels; None when a training did not get there or too quickly."""
    begin, end = passage(row, first), passage(row, last)
    if begin is None or end is None:
        return None
    batch = row["batch"]
    stepped = noise_of(row["steps"][int(begin / batch) : int(end / batch)])
    if stepped is None:
        return None
    told = [r for r in row["reports"] if begin <= r["samples"] <= end]
    gradients = [r for r in told if r.get("grad_norm", 0) > 0]
    cosines = [min(max(r["grad_sqr"] / r["grad_norm"] ** 2, -1.0), 1.0) for r in gradients]
    sqr = sum(r["grad_sqr"] for r in gradients)
    return Place(
        batch,
        fit.x(row),
        stepped,
        noise_of([r["loss"] for r in told if "loss" in r]),
        fmean(cosines) if cosines else None,
        sum(r["grad_var"] for r in gradients) / sqr if sqr > 0 else None,
    )


@dataclass(frozen=True)
class Linear:
    """A linear model, least squares; the constant is the last coefficient.

    Attributes:
        coefficients: In the order of the columns.
        errors: Their standard errors.
        r2: Explained part of the variance.
    """

    coefficients: tuple[float, ...]
    errors: tuple[float, ...]
    r2: float


def linear(columns: Sequence[ArrayLike], values: ArrayLike) -> Linear:
    """Fit values by columns of the same length and a constant."""
    y = np.asarray(values, float)
    matrix = np.column_stack([*columns, np.ones(len(y))])
    found, *_ = np.linalg.lstsq(matrix, y, rcond=None)
    left = y - matrix @ found
    free = max(len(y) - len(found), 1)
    covariance = np.linalg.pinv(matrix.T @ matrix) * (left @ left) / free
    spread = y - y.mean()
    return Linear(
        tuple(map(float, found)),
        tuple(map(float, np.sqrt(np.diag(covariance)))),
        float(1 - (left @ left) / (spread @ spread)) if spread.any() else 0.0,
    )


@dataclass(frozen=True)
class Curve:
    """floor + (1 - floor) (1 + (samples / knee)^delay)^-power, the loss over the first one.

    Attributes:
        floor: What it does not get below.
        delay: 1 for the simulator's power law; the more, the longer the loss stands still first.
        power: Its power, of samples^delay.
        rms: Root mean square residual of its logarithm.
    """

    floor: float
    delay: float
    power: float
    rms: float


def fit_curve(row: Row, delayed: bool) -> Curve:
    """Fit the course of the loss, with or without a delay."""
    points = levels(row)
    samples, losses = np.log(points[:, 0]), np.log(points[:, 1] / points[0, 1])

    def left(values: Floats) -> Floats:
        floor, knee, power, delay = (*values, 1.0)[:4]
        falls = -power * np.logaddexp(0, delay * (samples - knee))
        return np.asarray(np.log(floor + (1 - floor) * np.exp(falls)) - losses)

    free = 3 + delayed
    start = [0.05, float(np.median(samples)), 0.7, 2.0][:free]
    bounds = [0.0, 0.0, 0.05, 1.0][:free], [0.95, 20.0, 8.0, 8.0][:free]
    found = least_squares(left, start, bounds=bounds, loss="soft_l1", f_scale=0.3)
    floor, _, power, delay = (*map(float, found.x), 1.0)[:4]
    return Curve(floor, delay, power, float(np.sqrt(fmean(left(found.x) ** 2))))


@dataclass(frozen=True)
class Response:
    """What a change of the rate did, against the same training without it.

    Attributes:
        x: Place of the rate before.
        part: Part of the training at which it changed.
        factor: Factor on the rate.
        after: ln(loss over what it would have been), at 2, 5 and 10 reports after the change.
        before_slope: Change of ln(loss) a report in the ten before.
        after_slope: The same in the ten after.
        without_slope: The same in the ten after, without the change.
        speed: Speed of the ten after over that without the change, by when both have the same
            loss.
    """

    x: float
    part: float
    factor: float
    after: tuple[float, float, float]
    before_slope: float
    after_slope: float
    without_slope: float
    speed: float


def response(changed: Row, control: Row, fit: Fit) -> Response:
    """Compare two trainings that differ by one change; both see the same samples in one order."""
    at, factor = changed["changes"][0]
    pair = [_losses_by_report(row) for row in (changed, control)]
    place = at // changed["second"]
    gone = pair[0] - pair[1]
    after = tuple(float(np.mean(gone[place + n - 1 : place + n + 2])) for n in (2, 5, 10))
    ahead = slice(place + 1, place + 11)
    return Response(
        fit.x(changed),
        at / changed["limit"],
        factor,
        (after[0], after[1], after[2]),
        _slope(pair[1][max(place - 10, 0) : place]),
        _slope(pair[0][ahead]),
        _slope(pair[1][ahead]),
        _relative_speed(
            *(np.convolve(losses, np.ones(3) / 3, "same")[place:-1] for losses in pair)
        ),
    )


def _losses_by_report(row: Row) -> Floats:
    """ln(loss) at each second of a training's clock; what was not finite counts as the largest."""
    told = np.array([(r["samples"], r["loss"]) for r in row["reports"] if "loss" in r])
    ends = np.arange(row["second"], row["limit"], row["second"])
    return np.asarray(np.interp(ends, told[:, 0], np.log(told[:, 1])))


def _relative_speed(changed: Floats, control: Floats) -> float:
    """How much sooner the quicker of two courses has the loss that the other has at 10."""
    quicker, slower = sorted((changed, control), key=lambda course: float(course[10]))
    end = int(np.flatnonzero(quicker[1:] <= slower[10])[0]) + 1
    way = (quicker[end - 1] - slower[10]) / max(quicker[end - 1] - quicker[end], 1e-9)
    ratio = 10 / float(end - 1 + np.clip(way, 0.1, 1))
    return ratio if quicker is changed else 1 / ratio


def _slope(losses: Floats) -> float:
    return float(np.polyfit(np.arange(len(losses)), losses, 1)[0])
