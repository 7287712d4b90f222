"""Where the time of a run went: its wall time cut into stretches that meet, so that all adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlflow_rlsched.agent.ranking import RESIZED
from mlflow_rlsched.analysis.recorded import Launch, RunRecord, Told

WORDS = {
    "queue": "waiting in the queue",
    "over": "over, until it was retried",
    "start": "starting up, to the training's first step",
    "restart": "restarting",
    "repeated": "work done twice, after a crash",
    "compute": "computing",
    "communication": "communication between devices",
    "input": "waiting for input",
    "ending": "ending, after the training's last word",
    "silent": "running, but the training told nothing of it",
}
"""The parts of a run's time, in their order, for people."""

AT_ONCE = (RESIZED, "oom")
"""Endings of an attempt after which it goes on at once: the pause is a restart, no waiting."""


@dataclass(frozen=True)
class Stretch:
    """A part of a run's time.

    Attributes:
        part: One of ``WORDS``.
        start: Seconds since the epoch.
        end: Seconds since the epoch.
        attempt: Number of the attempt, 0 where none ran.
        input_wait: Part of it in which the training waited for its input; None where it was not
            told.
    """

    part: str
    start: float
    end: float
    attempt: int = 0
    input_wait: float | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def stretches(record: RunRecord) -> list[Stretch]:
    """The time of a run from its submission to its end, without gaps or overlaps.

    What trains is ``compute`` here, input and communication included.
    """
    found: list[Stretch] = []
    submitted, done = record.task.submitted_at, -1.0
    at = min([submitted, *(launch.attempt.started_at for launch in record.launches[:1])])
    before = ""
    for launch in record.launches:
        started = _within(launch.attempt.started_at, at, record.end)
        found += _gap(at, started, submitted, before)
        ended = _within(launch.attempt.ended_at or record.end, started, record.end)
        found += _attempt(launch, started, ended, done)
        done = max([done, *(_position(told) for told in launch.told)])
        at, before = ended, launch.attempt.reason
    found += _gap(at, record.end, submitted, before)
    return [stretch for stretch in found if stretch.seconds > 0]


def seconds_by_part(
    found: Sequence[Stretch], communication: Mapping[int, float] | None = None
) -> dict[str, float]:
    """Seconds of each part; they add up to the length of all stretches.

    Args:
        found: Of ``stretches``.
        communication: Part of the time of a step that synchronisation takes, by attempt, as far as
            it is known.
    """
    parts = dict.fromkeys(WORDS, 0.0)
    for stretch in found:
        if stretch.part != "compute":
            parts[stretch.part] += stretch.seconds
            continue
        waited = stretch.seconds * (stretch.input_wait or 0.0)
        left = stretch.seconds - waited
        sent = left * (communication or {}).get(stretch.attempt, 0.0)
        parts["input"] += waited
        parts["communication"] += sent
        parts["compute"] += left - sent
    return parts


def device_seconds_by_part(
    record: RunRecord, found: Sequence[Stretch], communication: Mapping[int, float] | None = None
) -> dict[str, float]:
    """Device-seconds of each part; they add up to what the run held."""
    devices = {launch.attempt.number: launch.devices for launch in record.launches}
    total = dict.fromkeys(WORDS, 0.0)
    for number, held in devices.items():
        own = [stretch for stretch in found if stretch.attempt == number]
        for part, seconds in seconds_by_part(own, communication).items():
            total[part] += held * seconds
    return total


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), max(low, high))


def _gap(start: float, end: float, submitted: float, before: str) -> Iterator[Stretch]:
    """The time in which no attempt ran; a run that was retried was over until then."""
    waits = _within(submitted, start, end)
    yield Stretch("over", start, waits)
    yield Stretch("restart" if before in AT_ONCE and waits == start else "queue", waits, end)


def _attempt(launch: Launch, start: float, end: float, done: float) -> Iterator[Stretch]:
    number = launch.attempt.number
    told = [each for each in launch.trained if start <= each.time <= end]
    starting = "start" if number == 1 else "restart"
    if len(launch.told) < 2 or not told:
        spoke = told[0].time if told else start
        yield Stretch(starting, start, spoke, number)
        yield Stretch("silent", spoke, end, number)
        return
    yield Stretch(starting, start, told[0].time, number)
    for before, after in pairwise(told):
        again = _again(before, after, done)
        waited = None if after.input_wait is None else _within(after.input_wait, 0.0, 1.0)
        yield Stretch("repeated", before.time, again, number)
        yield Stretch("compute", again, after.time, number, waited)
    is_over = launch.attempt.ended_at is not None
    yield Stretch("ending" if is_over else "silent", told[-1].time, end, number)


def _position(told: Told) -> float:
    """How far it had come: samples where they are told, else steps."""
    return next((at for at in (told.samples, told.step) if at is not None), -1.0)


def _again(before: Told, after: Told, done: float) -> float:
    """Until when, between two reports, what was done had been done before."""
    first, last = _position(before), _position(after)
    if first >= done or last <= first:
        return after.time if last <= first < done else before.time
    part = min((done - first) / (last - first), 1.0)
    return before.time + part * (after.time - before.time)
