"""How many devices each run may have whose number can change (pure).

The pool level of two: it shares this host's devices by what they bring to all runs' ends
(``policy.allocation``), and each run's own policy decides within what it is given. It decides on
nothing else. Who starts, and who makes way for a higher priority or another user, is the business
of ``placement`` and ``preemption``; while somebody waits nobody is given more than they hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from mlflow_rlsched.agent.forecast import left_of
from mlflow_rlsched.policy.advice import Knowledge
from mlflow_rlsched.policy.allocation import (
    IMPOSSIBLE,
    Batches,
    fastest,
    flow_time_worth,
    horizon,
    keeping,
    shares,
)
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.interval import Budget
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.stability import noise_scale
from mlflow_rlsched.policy.weighing import Weighing

BUDGET_S = 60.0
"""Time between two looks at the budgets."""

_FAR = 16.0  # times the batch in force that a larger one is looked at, as in ``goodput.advise``
_SLOWEST = 1e-3  # speed with fewer devices than are held, at least: they are always possible


@dataclass(frozen=True)
class Prospect:
    """A running run whose number of ``gpus`` can change.

    Attributes:
        run_id: The run.
        priority: Its priority.
        weight: Its user's share.
        each: Devices of each of its ``gpus``.
        held: ``gpus`` that it holds.
        least: Fewest ``gpus`` that it can go on with.
        most: Most ``gpus`` of its configuration.
        speed: (N,) expected speed on 1, 2, ... ``gpus`` over that on one; 0 for a number that it
            shall not be given now.
        left_s: Seconds that it is expected to take as it is.
        restart_s: Seconds that a change costs it.
    """

    run_id: str
    priority: int
    weight: float
    each: int
    held: int
    least: int
    most: int
    speed: Array
    left_s: float
    restart_s: float


@dataclass(frozen=True)
class Asking:
    """A task that waits for devices.

    Attributes:
        priority: Its priority, with what waiting adds to it.
        amount: Hundredths of devices that it needs to start; infinite where no number of devices
            is sure to be enough, as not all of them suit it.
    """

    priority: float
    amount: float


def expected_s(record: Mapping[str, Any] | None, now: float) -> float:
    """Seconds that a running task is expected to take: as long as it ran, if it does not tell.

    Args:
        record: Its last decision.
        now: Seconds since the epoch.
    """
    left_s, _ = left_of(record, None, now)
    if math.isfinite(left_s):
        return left_s
    return 0.0 if record is None else float(record["elapsed_s"])


def speeds(
    history: History, limits: Limits, held: int, batch: int | None, batch_is_live: bool
) -> Array:
    """(N,) a run's expected speed on 1, 2, ... ``gpus`` over that on one, for ``Prospect``.

    By the run's own goodput model, for up to ``Weighing.growth`` times the devices that it
    measured. Where it has none, the speed is the number to the power of the concavity, for what it
    holds and less.

    Args:
        history: What is remembered of it.
        limits: Its limits.
        held: ``gpus`` that it holds.
        batch: Global batch size, samples.
        batch_is_live: Whether that can change.
    """
    weighing = Weighing()
    known = Knowledge.of(history.notes)
    if batch is None or not known.timings.settings[0]:
        return np.arange(1.0, held + 1) ** weighing.concavity
    tried = known.timings.gpus[0][known.timings.count[0] > 0].max()
    most = min(max(held, int(weighing.growth * tried)), limits.gpus_max)
    scale = noise_scale(history.gradients)
    largest = min(limits.batch_max, _FAR * batch) if batch_is_live else batch
    base = min(limits.batch_initial or batch, batch)
    batches = Batches(*(np.array([float(size)]) for size in (base, max(largest, batch), 1)))
    noise = np.array([math.nan if scale is None else scale])
    options = range(1, max(most, held) + 1)
    # All devices are of one node.
    rates, _ = fastest(known.parameters, noise, batches, options, len(options))
    found: Array = (rates / rates[:, :1])[0]
    found[:held] = np.maximum(found[:held], _SLOWEST)
    return found


def budgets(
    runs: Sequence[Prospect], asking: Iterable[Asking], waiting: int, room: int, devices: int
) -> dict[str, Budget]:
    """How many ``gpus`` each run may have from now on.

    Higher priorities come first, and no run has less than its ``least``. Those who wait count in
    their order, as far as room can be made for them by runs that are not above them; while they
    do, no run is given more than it holds. If nobody waits, what nobody is given may be taken by
    whoever wants it.

    Args:
        runs: The runs, which hold ``Prospect.least`` or more.
        asking: Who waits for devices, in the order in which they start; taken only as far as room
            can be made.
        waiting: How many these are.
        room: Devices that the runs hold and that are free.
        devices: Devices of the pool, for people.
    """
    queue = iter(asking)
    first = next(queue, None)
    if waiting:
        runs = [replace(run, speed=run.speed[: run.held]) for run in runs]
    ordered = sorted(runs, key=lambda run: -run.priority)
    kept = sum(run.least * run.each for run in runs)  # by those who were not looked at yet
    asked = 0.0
    given: dict[str, int] = {}
    for priority, group in groupby(ordered, key=lambda run: run.priority):
        equals = list(group)
        while first is not None and first.priority >= priority:
            fits = asked + first.amount <= 100 * (room - kept)
            asked += first.amount if fits else 0.0
            first = next(queue, None) if fits else None  # who is behind it cannot start either
        kept -= sum(run.least * run.each for run in equals)
        counts = _shared(equals, room - kept - math.ceil(asked / 100))
        room -= sum(counts)
        given |= {r.run_id: n // r.each for r, n in zip(equals, counts, strict=True)}
    spare = 0 if waiting else room
    found = {}
    for run in runs:
        most = min(given[run.run_id] + spare // run.each, run.most)
        found[run.run_id] = Budget(most, _why(run, most, devices, waiting))
    return found


def _shared(runs: Sequence[Prospect], devices: int) -> list[int]:
    """Devices for each of the runs that are worth most together."""
    weighing = Weighing()
    options = range(1, max(len(run.speed) * run.each for run in runs) + 1)
    speed = np.array([_by_devices(run, len(options)) for run in runs])
    alone = np.array([run.speed[run.held - 1] for run in runs])
    left_s = np.array([run.left_s for run in runs]) * alone
    restart_s = np.array([[run.restart_s] for run in runs])
    held = [run.held * run.each for run in runs]
    until_s = horizon(speed, left_s, BUDGET_S, weighing)
    kept = keeping(options, held, restart_s, until_s)
    worth = flow_time_worth(speed, kept, left_s, options, weighing)
    worth[:, 0] = IMPOSSIBLE
    users = np.array([[run.weight] for run in runs])
    possible = np.isfinite(worth)
    worth[possible] = (users * np.where(possible, worth, 0.0))[possible]
    return shares(worth, options, devices)


def _by_devices(run: Prospect, most: int) -> Array:
    """(most,) its speed by number of devices; 0 where that is no number of ``gpus`` it can have."""
    found = np.zeros(most)
    for gpus in range(run.least, len(run.speed) + 1):
        found[gpus * run.each - 1] = run.speed[gpus - 1]
    return found


def _why(run: Prospect, gpus: int, devices: int, waiting: int) -> str:
    text = f"the pool gives this run at most {gpus * run.each} of {devices} devices"
    if waiting:
        return f"{text} while {waiting} {'waits' if waiting == 1 else 'wait'}"
    return f"{text}, as others end sooner with more" if gpus < run.held else text
