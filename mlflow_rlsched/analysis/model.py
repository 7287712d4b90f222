"""A model of one run, fitted to what was recorded of it, and simulated runs by that model.

Its step times are those of the goodput model (Pollux: Qiao et al. 2021, section 3.2), fitted to the
settings that the run was seen at. How unsure that leaves it is drawn by fitting it again and again
to what might have been measured and assumed instead (randomize-then-optimize: Bardsley et al. 2014,
SIAM J. Sci. Comput. 36), so that settings that are far from all that was seen come out uncertain.

A run goes on until it has seen the samples that its plan has, as real ones do. What another
learning rate is worth cannot be told from one run, and is not in the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from mlflow_rlsched.agent.tuning import RESTART_COST_S
from mlflow_rlsched.analysis.recorded import Record, RunRecord
from mlflow_rlsched.analysis.steps import Step, steps
from mlflow_rlsched.analysis.timeline import seconds_by_part, stretches
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.learning.workloads import FittedRuns, Recorded, recorded
from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.limits import Limits, limits_of
from mlflow_rlsched.policy.memory import bytes_per_sample
from mlflow_rlsched.simulator.measured import Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.parameters import CURVE, Effects
from mlflow_rlsched.simulator.run import Speed

LONGEST = 10.0
"""Running time to which simulated runs are followed, over that at the run's first setting."""

MOST_PACE = 0.5
"""Largest relative scatter of the speed that is believed."""

WIDER = 2.0
"""How unsure the assumptions on step times are here, over what policies take them for: from steps
that hardly depend on the batch to those that take as long as they have samples."""

_ITERATIONS = 40

_QUIET = Effects(
    learning_rate=False,
    interference=False,
    input_bound=False,
    missing=False,
    late=False,
    device_loss=False,
    pressure=False,
)


class ModelError(ValueError):
    """No model can be fitted to a run, and why, in a sentence."""


@dataclass(frozen=True)
class Model:
    """A model of a run.

    Attributes:
        told: What its decisions tell of it.
        measured: The settings that were measured.
        parameters: (1, 7) its step times (``goodput``).
        timings: What these were fitted to; one row.
        limits: What bounds its setting.
        can: What its training can change.
        samples: Samples that its plan has.
        start_s: Time from its start to the training's first word.
        ending_s: Time from the training's last word to its end.
        restart_s: What a change of the devices takes, seconds.
        noise_scale: (``CURVE``,) gradient noise scale over the plan, log10 samples; None where it
            was never known.
        pace: Relative standard deviation of the speed between intervals of one setting.
        memory: Bytes without a sample, of a sample and of a device; None where not measured.
    """

    told: Recorded
    measured: Sequence[Step]
    parameters: Floats
    timings: goodput.Timings
    limits: Limits
    can: frozenset[str]
    samples: float
    start_s: float
    ending_s: float
    restart_s: float
    noise_scale: Floats | None
    pace: float
    memory: tuple[float, float, float] | None

    @property
    def step_error(self) -> float:
        """Root mean square of the relative errors of the step times that it was fitted to."""
        return float(math.expm1(goodput.fit_error(self.parameters, self.timings)[0]))

    @property
    def foretold_error(self) -> float | None:
        """Median relative error of each setting's step time when fitted to the others.

        The first setting is always fitted to: assumptions are relative to it. None for one setting.
        """
        errors = []
        for place in range(1, min(int(self.timings.settings[0]), goodput.SLOTS)):
            others = deepcopy(self.timings)
            others.count[0, place] = 0
            fitted = goodput.fit(goodput.assumed(others), others, iterations=_ITERATIONS)
            at = slice(place, place + 1)
            gpus, batch = self.timings.gpus[:, at], self.timings.batch[:, at]
            foretold = goodput.step_seconds(fitted, gpus, batch, math.inf)[0, 0]
            errors.append(abs(float(foretold / self.timings.seconds[0, place]) - 1))
        return median(errors) if errors else None

    def draws(self, count: int, seed: int = 0) -> Floats:
        """(count, 7) parameters that would be as likely, as those of ``goodput``.

        By the middle of them, what was trained at the settings seen takes as long as it took.
        """
        random = np.random.default_rng(seed)
        columns = ("gpus", "batch", "seconds", "count", "settings")
        many = goodput.Timings(*(np.repeat(getattr(self.timings, c), count, 0) for c in columns))
        noise = max(goodput.NOISE, math.log1p(self.step_error))
        many.seconds *= np.exp(noise * random.standard_normal(many.seconds.shape))
        prior = goodput.supposed(many, random, WIDER)
        drawn = goodput.fit(prior, many, iterations=_ITERATIONS, prior=prior)
        drawn[:, :-1] += math.log(self._took)  # all but gamma are times
        return drawn

    @property
    def _took(self) -> float:
        """Time of what was trained at the settings seen, over what the model makes of it."""
        gpus = np.array([[float(step.gpus) for step in self.measured]])
        batch = np.array([[step.batch for step in self.measured]])
        seconds = goodput.step_seconds(self.parameters, gpus, batch, math.inf)[0]
        modelled = sum(
            step.samples / step.batch * each
            for step, each in zip(self.measured, seconds.tolist(), strict=True)
        )
        took = sum(step.seconds for step in self.measured)
        return took / float(modelled)

    def runs(self, draws: Floats, seed: int = 0) -> PlannedRuns:
        """Simulated runs, one by each of the parameters drawn."""
        return PlannedRuns(self, draws, seed)


class PlannedRuns(FittedRuns):
    """Runs like a recorded one that end when they have seen the samples of its plan."""

    def __init__(self, model: Model, draws: Floats, seed: int) -> None:
        self._planned, self._pace = model.samples, model.pace
        self._now = np.ones(len(draws))
        known = [replace(model.told, throughput=tuple(np.exp(row).tolist())) for row in draws]
        super().__init__(known, len(known), seed, effects=_QUIET)
        p, bounds, limits = self.parameters, self.bounds, model.limits
        p.throughput[:] = np.exp(draws)
        gpus, batch = (
            np.full((len(draws), 1), each) for each in (model.told.gpus, model.told.batch)
        )
        step_s = goodput.step_seconds(draws, gpus, batch, math.inf)[:, 0]
        p.horizon_s[:] = LONGEST * model.samples / model.told.batch * step_s
        p.planned[:] = model.samples
        p.has_gradients[:] = model.noise_scale is not None
        if model.noise_scale is not None:
            p.noise_scale[:] = model.noise_scale
        bounds.restart_s[:] = model.restart_s
        bounds.gpus_min[:] = limits.gpus_min if limits.gpus_are_live else model.told.gpus
        bounds.gpus_max[:] = limits.gpus_max if limits.gpus_are_live else model.told.gpus
        p.gpus_per_node[:] = bounds.gpus_max
        changes = "batch_size" in model.can
        bounds.batch_min[:] = limits.batch_min if changes else model.told.batch
        bounds.batch_max[:] = limits.batch_max if changes else model.told.batch
        rates = (limits.lr_scale_min, limits.lr_scale_max)
        bounds.lr_scale_min, bounds.lr_scale_max = (
            rates if "learning_rate" in model.can else (1.0, 1.0)
        )
        if model.memory is None:
            p.memory_sample[:] = 0.0
        else:
            p.memory_base[:], p.memory_sample[:], p.memory_total[:] = model.memory

    def advance(self, wanted: Settings) -> Measured:
        """Train for an interval, somewhat faster or slower than the last."""
        spread = self._pace * self._random.standard_normal(len(self._now))
        self._now = np.exp(spread - self._pace**2 / 2)  # 1 in the mean
        return super().advance(wanted)

    def speed(self, settings: Settings) -> Speed:
        """What settings come to now: progress is the part of the plan's samples."""
        found = super().speed(settings)
        rate = found.rate * self._now
        return found._replace(rate=rate, progress=rate / self._planned)


def fit(record: RunRecord) -> Model:
    """Fit a model to a run.

    Raises:
        ModelError: Too little is recorded of it.
    """
    decisions = record.decisions
    if not record.launches:
        raise ModelError("it never started, so nothing was measured of it")
    if record.is_gone:
        raise ModelError("its directory is gone, or another user's")
    if not any(launch.told for launch in record.launches):
        raise ModelError(
            "its training told nothing: it has to call attach(batch_size=…) and session.step(…)"
        )
    if not decisions:
        raise ModelError(
            "no decision was made on it that can be read: it was too short, or decisions.jsonl is"
            " spoilt"
        )
    training = decisions[-1].get("training", {})
    can = frozenset(training.get("can", ()))
    config = RunConfig.model_validate(record.task.spec.config)
    measured = steps(record)
    told = recorded(decisions)
    if told is None or not measured:
        raise ModelError(
            "it tells no step times: its training was too short, or does not tell its batch size"
            " (attach(batch_size=…))"
        )
    limits = limits_of(
        config,
        batch_size=training.get("batch_size"),
        learning_rate=training.get("learning_rate"),
        optimizer=training.get("optimizer"),
        dataset_size=training.get("dataset_size"),
        gpus_are_live=config.gpus.are_elastic and "resume" in can,
    )
    if not can & {"batch_size", "learning_rate"} and not limits.gpus_are_live:
        raise ModelError("nothing of it could be changed, so every policy would do the same")
    timings, planned = _timings(measured, told), _planned(record)
    parts = seconds_by_part(stretches(record))
    return Model(
        told=told,
        measured=measured,
        parameters=goodput.fit(goodput.assumed(timings), timings, iterations=_ITERATIONS),
        timings=timings,
        limits=limits,
        can=can,
        samples=planned,
        start_s=parts["start"],
        ending_s=parts["ending"],
        restart_s=float(training.get("restart_s", RESTART_COST_S)),
        noise_scale=_noise_scale(decisions, planned),
        pace=min(decisions[-1]["history"]["throughput_noise"] or 0.0, MOST_PACE),
        memory=_memory(decisions[-1]),
    )


def _timings(measured: Sequence[Step], told: Recorded) -> goodput.Timings:
    """The settings with most time, the first one in the first place: assumptions are to it."""
    first = [s for s in measured if (s.gpus, s.batch) == (told.gpus, told.batch)]
    rest = [step for step in measured if step not in first]
    found = goodput.Timings.none(1)
    for step in [*first, *rest][: goodput.SLOTS]:
        found.add(
            np.zeros(1, int),
            np.array([float(step.gpus)]),
            np.array([step.batch]),
            np.array([step.step_s]),
        )
    return found


def _planned(record: RunRecord) -> float:
    """Samples of the whole training."""
    lines = [told for launch in record.launches for told in launch.told]
    seen = max((told.samples for told in lines if told.samples is not None), default=0.0)
    if record.task.exit_reason == "finished":
        return seen
    progress = record.decisions[-1]["history"]["progress"]
    samples = record.decisions[-1]["history"]["samples"]
    if not progress or not samples:
        raise ModelError(
            "it did not come to its end, and its training does not tell its progress: how long it"
            " would have been is not known"
        )
    return float(samples / progress)


def _noise_scale(decisions: Sequence[Record], planned: float) -> Floats | None:
    """The gradient noise scale over the plan, as decisions knew it.

    Where they did not, no gradient stood out from the noise: there it is as large as it ever was.
    """
    kept = [
        (record["history"]["samples"] / planned, record["state"]["noise_scale"])
        for record in decisions
        if record["history"]["gradients"]
        and record["history"]["samples"]
        and "noise_scale" in record["state"]
    ]
    told = sorted(kept, key=lambda each: each[0])
    known = [each["value"] for _, each in told if not each["missing"]]
    if not known:
        return None
    values = [max(known) if each["missing"] else each["value"] for _, each in told]
    near = [median(values[max(0, at - 2) : at + 3]) for at in range(len(values))]
    return np.asarray(np.interp(np.linspace(0, 1, CURVE), [at for at, _ in told], near))


def _memory(record: Record) -> tuple[float, float, float] | None:
    history = History.from_json(record["history"])
    each = bytes_per_sample(history)
    if each is None or history.memory_total is None:
        return None
    now = history.memory[-1]
    return max(0.0, now.peak - each * now.batch), each, history.memory_total
