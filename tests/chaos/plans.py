"""What is submitted and killed, and when: drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
    """

    entry_point: str
    params: dict[str, float]
    slots: int
    by_process: bool


@dataclass(frozen=True)
class Kill:
    """A kill -9.

    Attributes:
        victim: ``training``, ``shim``, ``agent``, ``submitter`` or ``all``.
        moment: A key of ``MOMENTS``.
        delay_s: Seconds after that moment.
        restart: Whether a person starts an agent right after it.
    """

    victim: str
    moment: str
    delay_s: float
    restart: bool


@dataclass(frozen=True)
class Plan:
    """What happens in one repetition.

    Attributes:
        events: In their order.
        pauses: Seconds after each event.
        patience_s: Seconds that a dead agent is left to shims and waiting submitters at the end, if
            there are any.
    """

    events: tuple[Submit | Kill, ...]
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
