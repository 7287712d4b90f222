"""What scheduling took and saved over a period, by runs that ended in it or went on in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_rlsched.analysis.savings import Amount, has_target, is_tuned, saving, total
from mlflow_rlsched.analysis.usage import SECONDS_OF_AN_HOUR, cost, device_price, held_s
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.overview.decisions import read
from mlflow_rlsched.store import Attempt, Store, Task

Record = Mapping[str, Any]

BASIS = (
    "Saved is an estimate: what a run had done after its first change of setting, at the speed that"
    " it had at its first setting, less the time that it took; intervals are of 95 %, from the"
    " scatter of that speed. Samples count by what they are worth where gradients tell it, else"
    " alike. What a learning rate is worth is not in it (but on the way to a target of the"
    " objective), nor what the queue and recovery brought.",
    "Energy saved is device-time saved at the mean power of the run's devices; cost saved is that"
    " at the run's `prices`.",
)
"""What the figures rest on, for people."""


@dataclass(frozen=True)
class Row:
    """A run in the period; None is "not known".

    Attributes:
        run_id: The run.
        name: Its name.
        state: Where it stands.
        device_s: Device-seconds that it held in the period.
        tuned: Whether any decision changed anything.
        seconds: Running time that tuning saved.
        saved_s: Device-seconds that tuning saved.
        watts: Mean power of a device.
        cost: What it cost in the period.
        price: Price of a device-hour.
        spoilt: Lines of its decisions that cannot be read.
    """

    run_id: str
    name: str
    state: str
    device_s: float
    tuned: bool
    seconds: Amount | None = None
    saved_s: Amount | None = None
    watts: float | None = None
    cost: float | None = None
    price: float | None = None
    spoilt: int = 0


@dataclass(frozen=True)
class Report:
    """What runs of a period took and what tuning saved; None is "not known".

    Attributes:
        start: Seconds since the epoch.
        end: Seconds since the epoch.
        rows: Runs, those that held most first.
    """

    start: float
    end: float
    rows: Sequence[Row]

    @property
    def device_hours(self) -> float:
        """Device-hours that were held."""
        return sum(row.device_s for row in self.rows) / SECONDS_OF_AN_HOUR

    @property
    def cost(self) -> float | None:
        """What those with `prices` cost."""
        return _sum([row.cost for row in self.rows])

    @property
    def estimated(self) -> Sequence[Row]:
        """Tuned runs of which it can be told what that saved."""
        return [row for row in self.rows if row.saved_s is not None]

    @property
    def tuned(self) -> int:
        """Runs that were tuned."""
        return sum(row.tuned for row in self.rows)

    @property
    def hours_saved(self) -> Amount | None:
        """Running time, hours."""
        return self._saved(lambda row: 1.0, lambda row: row.seconds)

    @property
    def device_hours_saved(self) -> Amount | None:
        """Device-hours."""
        return self._saved(lambda row: 1.0, lambda row: row.saved_s)

    @property
    def kwh_saved(self) -> Amount | None:
        """Energy, of the runs whose power is known."""
        return self._saved(
            lambda row: None if row.watts is None else row.watts / 1000, lambda row: row.saved_s
        )

    @property
    def cost_saved(self) -> Amount | None:
        """Cost, of the runs that have `prices`."""
        return self._saved(lambda row: row.price, lambda row: row.saved_s)

    def _saved(
        self, factor: Callable[[Row], float | None], of: Callable[[Row], Amount | None]
    ) -> Amount | None:
        amounts = [
            amount.times(each / SECONDS_OF_AN_HOUR)
            for row in self.rows
            if (amount := of(row)) is not None and (each := factor(row)) is not None
        ]
        return total(amounts) if amounts else None


def report(
    store: Store,
    start: float,
    end: float,
    known: Mapping[str, Device],
    watts: Callable[[Task, Sequence[Attempt]], float | None],
    of: Callable[[Task], bool] = lambda _: True,
) -> Report:
    """The report of a period.

    Args:
        store: Has the runs.
        start: Seconds since the epoch.
        end: Seconds since the epoch.
        known: Devices of this host by id, for prices.
        watts: Mean power of a device of a run; is asked of tuned runs.
        of: Which runs count.

    Raises:
        StoreError: The store cannot be read.
    """
    rows = []
    for task in store.tasks():
        over = task.ended_at if task.state.final else math.inf
        if not task.attempt or (over or 0.0) < start or task.submitted_at >= end or not of(task):
            continue
        attempts = store.attempts(task.run_id)
        held = sum(held_s(attempt, start, end) for attempt in attempts)
        if held > 0:
            rows.append(_row(task, attempts, held, start, end, known, watts))
    return Report(start, end, sorted(rows, key=lambda row: -row.device_s))


def _row(
    task: Task,
    attempts: Sequence[Attempt],
    held: float,
    start: float,
    end: float,
    known: Mapping[str, Device],
    watts: Callable[[Task, Sequence[Attempt]], float | None],
) -> Row:
    records, spoilt = read(Path(task.spec.run_dir))
    tuned = is_tuned(each for each in records if start <= each["time"] < end)
    saved = saving(records, start, end, to_target=has_target(task)) if is_tuned(records) else None
    return Row(
        run_id=task.run_id,
        name=task.spec.label,
        state=task.state.value,
        device_s=held,
        tuned=tuned or saved is not None,
        seconds=None if saved is None else saved.seconds,
        saved_s=None if saved is None else saved.device_s,
        watts=None if saved is None else watts(task, attempts),
        cost=cost(task, attempts, known, start, end),
        price=device_price(task, attempts, known),
        spoilt=spoilt,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
