"""What stands out in a profile, in plain words: each finding with its evidence and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlflow_rlsched.agent.ranking import RESIZED
from mlflow_rlsched.agent.recovery import RETRIED
from mlflow_rlsched.analysis.profile import Profile
from mlflow_rlsched.analysis.timeline import WORDS
from mlflow_rlsched.policy.measuring import IDLE
from mlflow_rlsched.policy.memory import SHARE
from mlflow_rlsched.store import State
from mlflow_rlsched.words import duration

NOTABLE = 0.1
"""Part of the wall time from which what is no training is a finding."""

LOST = 0.02
"""The same of work that was done twice."""

BUSY = 0.6
"""Utilisation of the devices below which they could do more."""

ROOMY = 0.5
"""Part of the memory below which there is room for a larger batch."""

WELL = 0.7
"""Efficiency of more devices over fewer below which they do not pay."""

THROTTLED = 0.05
"""Part of the readings with the clocks held down from which it is a finding."""


@dataclass(frozen=True)
class Finding:
    """Something that stands out.

    Attributes:
        what: In a sentence.
        evidence: The numbers that it rests on.
        setting: What to try, or "".
    """

    what: str
    evidence: str
    setting: str = ""


def findings(found: Profile) -> list[Finding]:
    """What stands out in a profile, what cost most time first as far as it cost time."""
    return [finding for look in _LOOKS for finding in look(found)]


def unknown(found: Profile) -> list[str]:
    """What is not recorded of a run, and what would record it; a sentence each."""
    readings = found.readings
    named = {
        "waiting for input is not told: it is part of the computing (`ElasticDataLoader` measures"
        " it; `session.report(input_wait=…)` tells what another loader takes)": found.parts[
            "compute"
        ]
        > 0
        and not found.input_told,
        "communication is not known, and part of the computing: it can be read off only once steps"
        " on one device and on several were measured": any(
            launch.gpus > 1 for launch in found.record.launches
        )
        and found.communication_error is None,
        "the devices' utilisation is not recorded": found.utilisation is None,
        "memory is not recorded": found.memory is None,
        "scaling is not known: only one number of devices was seen": len(found.scaling) == 1,
        "scaling is not known: no step times were told": not found.scaling,
        "energy is not known: no reading of power or energy is recorded": readings.energy_j is None,
        "throttling is not known: no such reading is recorded": readings.throttled is None,
        "cost is not known: set `prices`": found.cost is None,
    }
    return [*found.record.spoilt, *(sentence for sentence, is_so in named.items() if is_so)]


def _never(found: Profile) -> Iterator[Finding]:
    if not found.record.launches:
        task = found.record.task
        why = task.message or task.exit_reason or f"it is {task.state.value}"
        yield Finding("it never started", why, "`rlsched queue` says what a run waits for")


def _failure(found: Profile) -> Iterator[Finding]:
    task = found.record.task
    if task.state is State.FAILED and found.record.launches:
        evidence = task.message or task.exit_reason
        yield Finding(f"it failed ({task.exit_reason})", evidence, "`rlsched logs` has its output")


def _queue(found: Profile) -> Iterator[Finding]:
    if found.record.launches and found.share("queue") >= NOTABLE:
        yield Finding(
            "much of its time it waited for devices",
            _time(found, "queue"),
            "`priority`, fewer `gpus.min` or `gpus.initial`, or a `timeout_s`, with which it may"
            " pass a larger run that waits",
        )


def _start(found: Profile) -> Iterator[Finding]:
    if found.share("start") >= NOTABLE:
        yield Finding(
            "starting took long",
            _time(found, "start"),
            "`--env-manager local` with an environment that is there, data that is cached on this"
            " host, fewer imports",
        )


def _restart(found: Profile) -> Iterator[Finding]:
    if found.share("restart") < NOTABLE:
        return
    reasons = [launch.attempt.reason for launch in found.record.launches[:-1]]
    counts = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    told = ", ".join(f"{count} after {reason}" for reason, count in counts.items())
    if RESIZED in counts:
        setting = "a smaller range of `gpus.min` to `gpus.max`, or a longer `decision_interval_s`"
    elif "oom" in counts:
        setting = "a smaller `batch_size.max`, or the batch size that it went on with"
    else:
        setting = "a shorter way to the training's first step: cached data, fewer imports"
    yield Finding("restarts took much of its time", f"{_time(found, 'restart')}: {told}", setting)


def _repeated(found: Profile) -> Iterator[Finding]:
    if found.share("repeated") >= LOST:
        lost = [x.attempt.reason for x in found.record.launches if x.attempt.reason in RETRIED]
        yield Finding(
            "work was lost and done again",
            f"{_time(found, 'repeated')}, after {', '.join(dict.fromkeys(lost)) or 'a restart'}",
            "save more often (`session.save`)",
        )


def _input(found: Profile) -> Iterator[Finding]:
    if found.share("input") >= NOTABLE:
        yield Finding(
            "it waited for its input",
            _time(found, "input"),
            "more loader workers, with as many `cpu_slots` where there is no GPU",
        )


def _communication(found: Profile) -> Iterator[Finding]:
    if found.share("communication") >= 2 * NOTABLE:
        error = found.communication_error or 0.0
        yield Finding(
            "much of its time its devices talked to each other",
            f"{_time(found, 'communication')}, by a model of its steps that is off by {error:.0%}",
            "a smaller `gpus.max`, or a larger `batch_size.max`",
        )


def _ending(found: Profile) -> Iterator[Finding]:
    if found.share("ending") >= NOTABLE:
        yield Finding(
            "it went on long after the training's last word",
            _time(found, "ending"),
            "look at what it does at its end: evaluation, uploads",
        )


def _silent(found: Profile) -> Iterator[Finding]:
    if found.share("silent") >= NOTABLE and not found.record.is_gone:
        yield Finding(
            "the training told nothing of much of its time",
            _time(found, "silent"),
            "`attach()` and `session.step(…)` in its code",
        )


def _idle(found: Profile) -> Iterator[Finding]:
    use, memory = found.utilisation, found.memory
    if use is None or use >= BUSY:
        return
    evidence = f"mean utilisation {use:.0%}"
    if found.record.on_slots:
        setting = (
            "faster input, fewer `cpu_slots`, or fewer other programs on this host: slots are"
            " counted, not pinned"
        )
    elif memory is not None and memory.peak < ROOMY:
        size = f", about {memory.batch} at most" if memory.batch else ""
        setting = f"a larger batch (`batch_size.max`{size}): memory is at most {memory.peak:.0%}"
    elif use < IDLE:
        setting = "`gpu_fraction`, so that several runs share a device, or fewer `gpus`"
    else:
        setting = "faster input, or `gpu_fraction`, so that several runs share a device"
    yield Finding("its devices had little to do", evidence, setting)


def _memory(found: Profile) -> Iterator[Finding]:
    memory = found.memory
    if memory is not None and memory.peak > SHARE:
        size = f" of about {memory.batch}" if memory.batch else ""
        yield Finding(
            "memory is nearly full",
            f"at most {memory.peak:.0%} of the fullest device",
            f"a `batch_size.max`{size}",
        )


def _scaling(found: Profile) -> Iterator[Finding]:
    poor = [each for each in found.scaling if each.efficiency < WELL]
    if poor:
        told = ", ".join(f"{x.gpus}: {x.rate:.4g} samples/s" for x in found.scaling)
        good = max(each.gpus for each in found.scaling if each.efficiency >= WELL)
        yield Finding(
            "more devices paid little",
            f"by devices {told}; efficiency {poor[-1].efficiency:.0%} on {poor[-1].gpus}",
            f"`gpus.max` {good}, or a larger `batch_size.max`",
        )


def _throttled(found: Profile) -> Iterator[Finding]:
    readings = found.readings
    if readings.throttled is not None and readings.throttled >= THROTTLED:
        heat = f", at most {readings.celsius:.0f} °C" if readings.celsius is not None else ""
        yield Finding(
            "something held the devices' clocks down",
            f"in {readings.throttled:.0%} of the readings{heat}",
            "`nvidia-smi -q -d PERFORMANCE` names the reason: heat, or the limit of power",
        )


def _warned(found: Profile) -> Iterator[Finding]:
    for warning in found.record.warnings:
        yield Finding(f"a warning: {warning['text']}", f"attempt {warning['attempt']}")


def _time(found: Profile, part: str) -> str:
    return f"{WORDS[part]}: {duration(found.parts[part])}, {found.share(part):.0%} of its time"


_LOOKS: tuple[Callable[[Profile], Iterator[Finding]], ...] = (
    _never,
    _failure,
    _queue,
    _start,
    _restart,
    _repeated,
    _input,
    _communication,
    _ending,
    _silent,
    _idle,
    _memory,
    _scaling,
    _throttled,
    _warned,
)
