"""What other policies would have made of a run, by the model that was fitted to it.

Each policy decides on simulated runs by the agent's own code, once for each of the models that
would be as likely. Where these do not agree on how long steps take at the setting that the policy
goes to, the model is too thin, and that is said instead of a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.analysis.model import Model
from mlflow_rlsched.analysis.recorded import RunRecord
from mlflow_rlsched.analysis.timeline import seconds_by_part, stretches
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.config.keys import Objective
from mlflow_rlsched.learning.evaluation import decisions, follow
from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.simulator.measured import Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.versions import Versions

DRAWS = 24
"""Models of a run that would be as likely; each policy is played on all of them."""

TOO_WIDE = 1.5
"""Upper over lower end of the interval of a step time from which the model is too thin for it."""

ENDS = (0.05, 0.5, 0.95)
"""Quantiles of an interval: 90 %, and the middle."""

RUNNING = ("start", "restart", "repeated", "compute", "communication", "input", "ending", "silent")
"""Parts of a run's time in which it held devices."""

Ways: TypeAlias = "list[tuple[Floats, Floats, Settings]]"
"""By interval: running time and part of the plan at its end, and its settings, of each run."""


@dataclass(frozen=True)
class Range:
    """A median and its 90 % interval over the models."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> Range:
        """Of (N,) values."""
        low, middle, high = np.quantile(values, ENDS).tolist()
        return cls(middle, low, high)


@dataclass(frozen=True)
class Outcome:
    """What a policy would have made of a run; None where that cannot be told.

    Attributes:
        policy: Its name.
        version: Its version.
        seconds: Running time to the end of the plan, starts and ends included.
        device_s: Device-seconds over that time.
        target_s: Running time to the target of the objective.
        metric: Final value of the objective's metric.
        batch: Batch size at the end.
        gpus: Devices at the end.
        refused: Why the time cannot be told, in a sentence, or "".
    """

    policy: str
    version: str
    seconds: Range | None = None
    device_s: Range | None = None
    target_s: Range | None = None
    metric: float | None = None
    batch: float | None = None
    gpus: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Happened:
    """What really became of a run; None where it did not, or was not told.

    Attributes:
        policy: The policy that decided last.
        seconds: Time in which it held devices.
        device_s: Device-seconds.
        target_s: Running time to the target.
        metric: Final value of the objective's metric.
        is_whole: Whether it came to the end of its plan.
    """

    policy: str
    seconds: float
    device_s: float
    target_s: float | None
    metric: float | None
    is_whole: bool


@dataclass(frozen=True)
class Course:
    """The objective of a run over what it did.

    Attributes:
        metric: Name of the metric.
        samples: Samples seen when a value was told.
        batch: Batch size then.
        values: The values.
        target: Place of the first that reached the target, or None.
        seconds: Running time when a value was told.
        trouble: Why it says nothing of other policies, in a sentence, or "".
    """

    metric: str
    samples: Sequence[float]
    batch: Sequence[float]
    values: Sequence[float]
    target: int | None
    seconds: Sequence[float] = field(default_factory=list)
    trouble: str = ""


def happened(record: RunRecord) -> Happened:
    """What became of a run."""
    parts = seconds_by_part(stretches(record))
    course = course_of(record)
    last = record.decisions[-1] if record.decisions else {}
    reached = None if course.target is None else course.seconds[course.target]
    return Happened(
        policy=str(last.get("policy", "")),
        seconds=sum(parts[part] for part in RUNNING),
        device_s=record.device_s,
        target_s=reached,
        metric=course.values[-1] if course.values else None,
        is_whole=record.task.exit_reason == "finished",
    )


def course_of(record: RunRecord) -> Course:
    """The objective over the samples, in their order; work that was done twice counts once."""
    objective = Objective.model_validate(record.task.spec.config.get("objective", {}))
    samples: list[float] = []
    batch: list[float] = []
    values: list[float] = []
    seconds: list[float] = []
    ran = 0.0
    for launch in record.launches:
        for told in launch.told:
            value = told.metrics.get(objective.metric)
            if value is None or told.samples is None or not told.batch:
                continue
            if not samples or told.samples > samples[-1]:
                samples.append(told.samples)
                batch.append(told.batch)
                values.append(value)
                seconds.append(ran + told.time - launch.attempt.started_at)
        ran += (launch.attempt.ended_at or record.now) - launch.attempt.started_at
    sign = 1 if objective.mode == "min" else -1
    target = None
    if objective.target is not None:
        aim = sign * objective.target
        target = next((i for i, value in enumerate(values) if sign * value <= aim), None)
    turned = any(each["setting"]["lr_factor"] != 1 for each in record.decisions)
    trouble = ""
    if turned:
        trouble = (
            "its learning rate was changed, and what that was worth cannot be told from one run:"
            " what other policies do is told to the end of its plan, not to a target or a metric"
        )
    return Course(objective.metric, samples, batch, values, target, seconds, trouble)


def policies_for(record: RunRecord, names: Sequence[str]) -> dict[str, Policy]:
    """The policies of these names as they are now, as far as there are any, ``fixed`` first."""
    config = RunConfig.model_validate(record.task.spec.config)
    known = Policies(Versions(), math.inf).others(Fixed(), config)
    found: dict[str, Policy] = {"fixed": Fixed()}
    return found | {policy.name: policy for policy in known if policy.name in names}


def play(record: RunRecord, model: Model, policies: Mapping[str, Policy]) -> list[Outcome]:
    """What each policy would have made of a run."""
    config = RunConfig.model_validate(record.task.spec.config)
    draws, course = model.draws(DRAWS), course_of(record)
    return [_outcome(model, draws, course, policy, config) for policy in policies.values()]


def _outcome(
    model: Model, draws: Floats, course: Course, policy: Policy, config: RunConfig
) -> Outcome:
    runs = model.runs(draws)
    ways: Ways = []
    ask = decisions(runs, lambda _: policy, config.reward)

    def decide(seen: Measured) -> Settings:
        ways.append((seen.elapsed, runs.progress.copy(), seen.settings))
        return ask(seen)

    played = follow(runs, decide)
    last = ways[-1][2]
    outcome = Outcome(
        *(policy.name, policy.version),
        batch=float(np.median(last.batch)),
        gpus=float(np.median(last.gpus)),
    )
    apart_s = model.start_s + model.ending_s
    gpus, batch = (float(np.quantile(each, ENDS[-1])) for each in (last.gpus, last.batch))
    held, size = (np.full((len(draws), 1), each) for each in (gpus, batch))
    steps = Range.of(goodput.step_seconds(draws, held, size, math.inf)[:, 0])
    if steps.high > TOO_WIDE * steps.low:
        return replace(outcome, refused=_refused(model, steps, batch, gpus))
    if not played.reached.all():
        return replace(outcome, refused="it would not come to its end")
    seconds = Range.of(played.seconds + apart_s)
    device_s = Range.of(played.device_seconds + apart_s * runs.parameters.gpus_start)
    target, metric = _objective(model, ways, course)
    return replace(outcome, seconds=seconds, device_s=device_s, target_s=target, metric=metric)


def _refused(model: Model, steps: Range, batch: float, gpus: float) -> str:
    seen = sorted({(step.gpus, step.batch) for step in model.measured})
    told = ", ".join(f"{held} x {size:g}" for held, size in seen[:4])
    more = f" and {len(seen) - 4} more" if len(seen) > 4 else ""
    return (
        f"the fit is too thin: it may go to {gpus:.0f} x {batch:.0f} (devices x batch), where a"
        f" step may take {steps.low:.3g} to {steps.high:.3g} s for all that is known; measured were"
        f" {told}{more} alone. A run that is somewhere near tells more"
    )


def _objective(model: Model, ways: Ways, course: Course) -> tuple[Range | None, float | None]:
    """Time to the target and final metric: a sample is worth what the noise scale makes of it.

    That holds for one learning rate and what the rule for the batch makes of it.
    """
    rates = np.stack([settings.lr_factor for _, _, settings in ways])
    kept = np.flatnonzero((rates == 1).all(0))
    if course.trouble or not course.values or 2 * len(kept) < rates.shape[1]:
        return None, None
    seconds, values = np.array([_followed(model, ways, course, run) for run in kept.tolist()]).T
    return (
        None if np.isnan(seconds).any() else Range.of(seconds + model.start_s),
        None if np.isnan(values).any() else float(np.median(values)),
    )


def _followed(model: Model, ways: Ways, course: Course, run: int) -> tuple[float, float]:
    """Time to the target and final metric of a simulated run; NaN where it cannot be told."""
    sizes = np.array([settings.batch[run] for _, _, settings in ways])
    initial = model.told.batch
    scale: float | None = None
    if model.noise_scale is not None:
        scale = float(np.mean(10**model.noise_scale))
    elif (sizes != initial).any():
        return math.nan, math.nan
    seen = np.array([0.0, *(model.samples * progress[run] for _, progress, _ in ways)])
    useful = np.cumsum(np.diff(seen) * _worth(sizes, initial, scale))
    known = _useful(course, initial, scale)
    value = math.nan
    if useful[-1] <= 1.02 * known[-1]:  # else it is beyond what was seen
        value = float(np.interp(useful[-1], known, course.values))
    if course.target is None or known[course.target] > 1.001 * useful[-1]:
        return math.nan, value
    times = [0.0, *(elapsed[run] for elapsed, _, _ in ways)]
    return float(np.interp(known[course.target], [0.0, *useful], times)), value


def _useful(course: Course, initial: float, scale: float | None) -> Floats:
    """What a run had done when each value was told, in samples at its first batch."""
    parts = [
        (after - before) * float(_worth(np.array(size), initial, scale))
        for (before, after), size in zip(
            pairwise([0.0, *course.samples]), course.batch, strict=True
        )
    ]
    return np.cumsum(parts)


def _worth(batch: Floats, initial: float, scale: float | None) -> Any:
    """What a sample is worth at a batch over one at the first one (Pollux, section 3.1)."""
    return np.ones_like(batch) if scale is None else (initial + scale) / (batch + scale)
