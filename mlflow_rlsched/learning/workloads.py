"""Simulated runs like those that were recorded: what decisions have measured, fitted.

A record of a decision holds what its models know of the run so far, so the last one tells the step
times, and all of them the gradient noise scale and the noise of the loss. What no record can tell,
such as the best learning rate, stays as widely drawn as in any simulated run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.advice import Knowledge
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.loss import signals
from mlflow_rlsched.simulator.models import Floats, Throughput
from mlflow_rlsched.simulator.parameters import HORIZON, Effects, Parameters, Ranges, along, nodes
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.simulator.windows import Flags

MOST_DECISIONS = 400
"""Most decisions over the length of a simulated run; beyond, its intervals are longer."""

NEWEST = 20
"""Recorded runs, the newest, that simulated ones are fitted to."""

_ITERATIONS = 20

Record = Mapping[str, Any]
"""A decision, as ``decisions.jsonl`` has it."""


class WorkloadError(ValueError):
    """Nothing can be fitted, and why, in a sentence."""


@dataclass(frozen=True)
class Recorded:
    """What the decisions on a run tell of it; NaN is "not known".

    Attributes:
        throughput: The seven parameters of ``simulator.models.Throughput``.
        error: Root mean square error of the logarithm of the step time.
        settings: Different settings that were measured.
        noise_scale: Median log10 of the gradient noise scale, samples.
        noise_at: Median progress at which that was measured, 0 to 1.
        noise_spread: Standard deviation of that over the run.
        loss_noise: Relative standard deviation of a reported loss at the initial batch.
        batch: Initial batch size, samples.
        gpus: Initial devices.
        gpus_min: Fewest devices that it has held.
        gpus_max: Most devices that it has held.
        sgd: 1 for SGD, 0 for another optimizer.
        price: Price of a device-second.
        interval_s: Usual length of an interval, seconds.
        length_s: Length of the run at its initial setting, seconds.
    """

    throughput: tuple[float, ...]
    error: float
    settings: int
    noise_scale: float
    noise_at: float
    noise_spread: float
    loss_noise: float
    batch: float
    gpus: float
    gpus_min: float
    gpus_max: float
    sgd: float
    price: float
    interval_s: float
    length_s: float


def recorded(records: Sequence[Record]) -> Recorded | None:
    """What the decisions on a run tell of it; None where they do not tell its step time.

    Args:
        records: All of them, in their order.
    """
    if not records:
        return None
    first, last = records[0], records[-1]
    training = last.get("training", {})
    histories = [History.from_json(record["history"]) for record in records]
    known = Knowledge.of(histories[-1].notes)
    batch = training.get("batch_size") or first["before"]["batch_size"]
    if not known.timings.settings[0] or not batch:
        return None
    fitted = goodput.fit(known.parameters, known.timings, iterations=_ITERATIONS)
    held = [max(1, record["before"]["gpus"]) for record in records]
    terms = last["terms"]
    scale, optimizer = terms["scales"], training.get("optimizer")
    return Recorded(
        throughput=tuple(np.exp(fitted[0]).tolist()),
        error=float(goodput.fit_error(fitted, known.timings)[0]),
        settings=int(known.timings.settings[0]),
        **_noise(histories),
        loss_noise=_loss_noise(records, histories, batch),
        batch=batch,
        gpus=held[0],
        gpus_min=min(held),
        gpus_max=max(held),
        sgd=math.nan if optimizer is None else float(optimizer == "sgd"),
        price=terms["cost"] / held[-1] / max(terms["duration_s"], 1e-9),
        interval_s=median(record["terms"]["duration_s"] for record in records),
        length_s=scale["total_s"],
    )


def _noise(histories: Sequence[History]) -> dict[str, float]:
    """The gradient noise scale.

    Estimates of |G|^2 scatter to both sides of 0: the median of all windows' |G|^2 over the noise
    is right where that of its inverse, which only some of them have, is far too low.
    """
    windows = [h for h in histories if h.gradients and h.progress is not None]
    signal = [fmean(g.sqr for g in h.gradients) for h in windows]
    noise = [fmean(g.var for g in h.gradients) for h in windows]
    ratios = [s / n for s, n in zip(signal, noise, strict=True) if n > 0]
    middle = median(ratios) if ratios else 0.0
    if middle <= 0:
        return dict.fromkeys(("noise_scale", "noise_at", "noise_spread"), math.nan)
    return {
        "noise_scale": -math.log10(middle),
        "noise_at": median(h.progress or 0.0 for h in windows),
        "noise_spread": pstdev(math.log10(ratio) for ratio in ratios if ratio > 0),
    }


def _loss_noise(records: Sequence[Record], histories: Sequence[History], batch: float) -> float:
    """Median over the decisions; the noise of a mean over a batch goes with its root."""
    found = []
    for record, history in zip(records, histories, strict=True):
        seen = signals(history.losses)
        size = record["setting"]["batch_size"]
        if seen is not None and seen.level and size:
            found.append(abs(seen.spread / seen.level) * math.sqrt(size / batch))
    return median(found) if found else math.nan


@dataclass(frozen=True)
class Workload:
    """Runs that were recorded, as a source of simulated ones."""

    recorded: Sequence[Recorded]

    @classmethod
    def fit(cls, runs: Iterable[Sequence[Record]]) -> Workload:
        """Fit to the decisions on runs.

        Args:
            runs: All decisions on each, in their order (``decision_log.read``).

        Raises:
            WorkloadError: None of them tells its step time.
        """
        return cls.of([recorded(records) for records in runs])

    @classmethod
    def of(cls, found: Sequence[Recorded | None]) -> Workload:
        """A source of runs like those that told something.

        Raises:
            WorkloadError: None did.
        """
        told = [each for each in found if each is not None]
        if not told:
            raise WorkloadError(
                f"none of {len(found)} runs tells how long its steps take: their trainings have to"
                " call attach(batch_size=…) and session.step(…)"
            )
        return cls(told)

    def figures(self) -> dict[str, float]:
        """How well it fits.

        Returns:
            ``runs`` and ``settings``, what was fitted to; ``step_time_error``, the median relative
            error of the step times; ``noise_scale_spread``, the median standard deviation of the
            noise scale within a run, in powers of ten; ``loss_noise``, its median. Without those
            that are not known.
        """
        told = {
            "runs": float(len(self.recorded)),
            "settings": float(sum(each.settings for each in self.recorded)),
            "step_time_error": math.expm1(self._median("error")),
            "noise_scale_spread": self._median("noise_spread"),
            "loss_noise": self._median("loss_noise"),
        }
        return {name: value for name, value in told.items() if math.isfinite(value)}

    def _median(self, name: str) -> float:
        known = [v for each in self.recorded if math.isfinite(v := getattr(each, name))]
        return median(known) if known else math.nan

    def runs(self, count: int, seed: int = 0, ranges: Ranges | None = None) -> Runs:
        """Simulated runs, each like one of the recorded ones."""
        return FittedRuns(self.recorded, count, seed, ranges)


class FittedRuns(Runs):
    """Drawn like any others, then fitted."""

    def __init__(
        self,
        known: Sequence[Recorded],
        count: int,
        seed: int,
        ranges: Ranges | None = None,
        effects: Effects | None = None,
    ) -> None:
        self._known = known
        super().__init__(count, seed, effects, ranges)
        self.renew(np.ones(count, bool))

    def renew(self, runs: Flags) -> None:
        """Begin new runs in the place of some."""
        super().renew(runs)
        rows = np.flatnonzero(runs)
        drawn = self._random.integers(len(self._known), size=len(rows))
        _fit(self.parameters, rows, [self._known[place] for place in drawn])
        p = self.parameters
        for settings in (self.settings, self._applied):
            settings.gpus[rows] = p.gpus_start[rows]
            settings.batch[rows] = p.bounds.batch_initial[rows]


def _fit(p: Parameters, rows: Array, known: Sequence[Recorded]) -> None:
    """Put what is known in the place of what was drawn; what goes with it keeps its proportion."""
    bounds = p.bounds

    def of(name: str) -> Floats:
        return np.array([getattr(each, name) for each in known], float)

    def put(target: Floats, values: Floats) -> None:
        target[rows] = np.where(np.isnan(values), target[rows], values)

    step, length = _step_seconds(p, rows), p.horizon_s[rows] / HORIZON
    batch, gpus = bounds.batch_initial[rows], p.gpus_start[rows]
    p.throughput[rows] = np.array([each.throughput for each in known])
    put(p.gpus_start, of("gpus"))
    put(bounds.gpus_min, of("gpus_min"))
    put(bounds.gpus_max, of("gpus_max"))
    put(p.gpus_per_node, of("gpus_max"))
    put(bounds.batch_initial, of("batch"))
    more = bounds.batch_initial[rows] / batch
    for sizes in (p.base_batch, bounds.batch_min, bounds.batch_max):
        sizes[rows] = np.rint(sizes[rows] * more).clip(1)
    level = along(p.noise_scale[rows], np.nan_to_num(of("noise_at"), nan=0.5))
    p.noise_scale[rows] += np.nan_to_num(of("noise_scale") - level)[:, None]
    put(p.loss_noise, of("loss_noise"))
    put(bounds.price, of("price"))
    sgd = of("sgd")
    bounds.sgd[rows] = np.where(np.isnan(sgd), bounds.sgd[rows], sgd > 0)
    _lengthen(p, rows, of("length_s"), of("interval_s"))
    longer = p.horizon_s[rows] / HORIZON / length
    quicker = step / _step_seconds(p, rows)
    p.planned[rows] *= longer * quicker * more
    p.input_rate[rows] *= quicker * more
    p.memory_sample[rows] *= p.gpus_start[rows] / gpus / more


def _lengthen(p: Parameters, rows: Array, length: Floats, interval: Floats) -> None:
    """Let runs last so long at their initial settings."""
    bounds = p.bounds
    middle = 10 ** p.noise_scale[rows].mean(1)
    worth = 1 + middle / p.base_batch[rows]
    worth = worth / (1 + middle / bounds.batch_initial[rows])
    p.steps[rows] = length / _step_seconds(p, rows) * worth
    p.horizon_s[rows] = HORIZON * length
    bounds.interval_s[rows] = np.maximum(interval, length / MOST_DECISIONS)


def _step_seconds(p: Parameters, rows: Array) -> Floats:
    """Seconds for a step at the initial settings."""
    gpus, batch = p.gpus_start[rows], p.bounds.batch_initial[rows]
    on = nodes(gpus, p.gpus_per_node[rows])
    return Throughput(*p.throughput[rows].T).step_time(on, gpus, batch / gpus)
