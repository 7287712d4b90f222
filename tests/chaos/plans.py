"""What is submitted and killed, and when: drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow_rlsched.agent.preemption import PREEMPTED
from mlflow_rlsched.agent.ranking import RESIZED

MOMENTS = {
    "any": 0.8,
    "claimed": 0.04,
    "launched": 0.3,
    "saving": 0.004,
    "ending": 0.03,
    "announced": 0.5,
    "made": 0.03,
}
"""What is waited for before a kill, and the longest delay in seconds after it."""


@dataclass(frozen=True)
class Submit:
    """A run that is submitted.

    Attributes:
        entry_point: ``count`` or ``script`` of projects/faulty.
        params: Its parameters.
        slots: CPU slots that it asks for.
        by_process: Whether a process of its own submits it and waits for it.
        config: More of its configuration.
    """

    entry_point: str
    params: dict[str, float]
    slots: int
    by_process: bool
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kill:
    """A kill -9.

    Attributes:
        victim: ``training``, ``shim``, ``agent``, ``submitter`` or ``all``.
        moment: A key of ``MOMENTS``.
        delay_s: Seconds after that moment.
        restart: Whether a person starts an agent right after it.
        which: Place of the one process that is killed among those; None for all of them.
    """

    victim: str
    moment: str
    delay_s: float
    restart: bool
    which: int | None = None


@dataclass(frozen=True)
class Change:
    """What a person does to a run that was submitted.

    Attributes:
        run: Its place among those that were submitted.
        priority: Its new priority, or None to cancel it.
    """

    run: int
    priority: int | None


@dataclass(frozen=True)
class Restart:
    """A person stops the agent and starts it again."""


@dataclass(frozen=True)
class Await:
    """Nothing happens until an attempt ended so.

    Attributes:
        reason: Class of its ending.
    """

    reason: str


Event = Submit | Kill | Change | Restart | Await


@dataclass(frozen=True)
class Plan:
    """What happens in one repetition.

    Attributes:
        events: In their order.
        pauses: Seconds after each event.
        patience_s: Seconds that a dead agent is left to shims and waiting submitters at the end, if
            there are any.
    """

    events: tuple[Event, ...]
    pauses: tuple[float, ...]
    patience_s: float


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(seed)
    events: list[Submit | Kill] = [_kill(rng) for _ in range(rng.randint(2, 5))]
    for submission in [_submit(rng) for _ in range(rng.randint(1, 2))]:
        events.insert(rng.randint(0, len(events) - 1), submission)
    events.insert(0, _submit(rng))
    if rng.random() < 0.7:
        at = rng.randint(0, len(events))
        events.insert(at, _submit(rng, by_process=True))
        if rng.random() < 0.8:
            moment = rng.choice(["announced", "made", "made"])
            events.insert(at + 1, _kill(rng, "submitter", moment))
    pauses = tuple(_pause(rng, event) for event in events)
    return Plan(tuple(events), pauses, 10.0 if rng.random() < 0.15 else 0.0)


CROWD = 12
"""Runs of a crowd."""

SLOTS = 4
"""CPU slots of a crowd's host."""


def draw_crowd(seed: int, seconds: float) -> Plan:
    """The plan of a seed for a crowd: many runs at once, and trouble for so many seconds.

    Before that a run that is alone is resized, and makes way for one that needs all there is. It
    goes on until it is cancelled at the end, or before.
    """
    rng = random.Random(seed)
    runs: list[Event] = [_member(rng, number, seconds) for number in range(2, CROWD)]
    rng.shuffle(runs)
    late = [runs.pop(), runs.pop()]
    events = [_alone(), Await(RESIZED), _urgent(), Await(PREEMPTED), *runs]
    pauses = [0.0] * len(events)
    while sum(pauses) < seconds:
        events.append(_trouble(rng))
        pauses.append(rng.uniform(0.2, 2.0))
        if late and rng.random() < 0.2:
            events.append(late.pop())
            pauses.append(0.0)
    last = [*late, Change(0, None)]
    return Plan((*events, *last), (*pauses, *[0.0] * len(last)), 0.0)


_ELASTIC = {"initial": 1, "min": 1, "max": 3}


def _alone() -> Submit:
    config = {"gpus": _ELASTIC, "decision_interval_s": 0.5}
    return Submit("count", {"steps": 100_000, "step_s": 0.25, "every": 2}, 1, False, config)


def _urgent() -> Submit:
    params = {"steps": 4, "step_s": 0.25, "every": 2}
    return Submit("count", params, SLOTS, False, {"priority": 9})


def _member(rng: random.Random, number: int, seconds: float) -> Submit:
    """A run of a crowd: two of ten are elastic, two run out of memory, one fails."""
    steps = {"steps": rng.randint(4, 10), "step_s": seconds / 60}
    config: dict[str, Any] = {"priority": rng.randint(-1, 2), "decision_interval_s": 0.5}
    if number < 4:
        config["gpus"] = {**_ELASTIC, "initial": rng.randint(1, 2)}
        steps["steps"] = rng.randint(20, 30)  # so that there is time for a change
        return Submit("count", steps | {"every": 2}, 1, False, config)
    if number < 6:
        return Submit("count", steps | {"every": 3, "fits": 60}, 1, False, config)
    if number < 9:
        return Submit("count", steps | {"every": 3}, rng.randint(1, 3), False, config)
    return Submit("script", steps | {"exit_code": 3 * (number == 9)}, 1, False, config)


def _trouble(rng: random.Random) -> Event:
    drawn = rng.random()
    if drawn < 0.25:
        return Change(rng.randrange(CROWD), rng.randint(-2, 5))
    if drawn < 0.32:
        return Change(rng.randrange(CROWD), None)
    if drawn < 0.4:
        return Restart()
    victim = rng.choice(["training", "training", "shim", "agent"])
    return replace(_kill(rng, victim), which=rng.randrange(8))


def _submit(rng: random.Random, by_process: bool = False) -> Submit:
    slots = rng.choice([1, 1, 2])
    if rng.random() < 0.6:
        params = {"steps": rng.randint(20, 60), "step_s": 0.02, "every": rng.randint(3, 10)}
        return Submit("count", params, slots, by_process)
    params = {"steps": rng.randint(5, 30), "step_s": 0.02, "exit_code": rng.choice([0, 0, 3])}
    return Submit("script", params, slots, by_process)


def _kill(rng: random.Random, victim: str = "", moment: str = "") -> Kill:
    victim = victim or rng.choice(["training", "training", "shim", "shim", "agent", "all"])
    moment = moment or rng.choice(["any", "claimed", "launched", "saving", "ending"])
    return Kill(victim, moment, rng.uniform(0, MOMENTS[moment]), rng.random() < 0.5)


def _pause(rng: random.Random, event: Submit | Kill) -> float:
    if isinstance(event, Submit) and event.by_process:
        return 0.0  # its kill may come at once
    return rng.choice([0.0, rng.uniform(0, 0.3)])
