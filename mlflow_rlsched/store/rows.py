"""Rows of the SQL store to tasks and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, and_, func, insert, select, update
from sqlalchemy.sql.expression import TableClause

from mlflow_rlsched.store.interface import StoreError
from mlflow_rlsched.store.records import Attempt, DeviceShare, Outlook, State, Task, TaskSpec
from mlflow_rlsched.store.schema import TASKS

MAX_CACHED_SPECS = 10_000
MAX_VARIABLES = 500  # of one statement; old SQLite allows 999


class TaskReader:
    """Makes tasks of rows, and keeps their specifications.

    A specification belongs to one submission (``order``) and never changes, and to parse it
    costs more than all the rest of a task. Those that were not asked for since ``MAX_CACHED_SPECS``
    others were are forgotten.
    """

    def __init__(self) -> None:
        self._specs: dict[int, TaskSpec] = {}
        self._older: dict[int, TaskSpec] = {}

    def one(self, connection: Connection, run_id: str) -> Task | None:
        """The task of a run, or None."""
        found = self.all(connection, select_tasks().where(TASKS.c.run_id == run_id))
        return found[0] if found else None

    def all(self, connection: Connection, statement: Select[Any]) -> list[Task]:
        """The tasks that a narrowed ``select_tasks()`` finds, in its order."""
        rows = connection.execute(statement).all()
        specs = self._load(connection, [row.order for row in rows])
        with understood():
            for row in rows:
                _check_times(row.submitted_at, row.not_before, row.started_at, row.ended_at)
            return [
                Task(specs[row.order], State(row.state), *[*row[2:-1], _proofs(row.proofs)])
                for row in rows
            ]

    def _load(self, connection: Connection, orders: Sequence[int]) -> Mapping[int, TaskSpec]:
        if len(self._specs) > MAX_CACHED_SPECS:
            self._specs, self._older = {}, self._specs
        specs, older = self._specs, self._older
        specs.update((order, older[order]) for order in orders if order in older)
        missing = [order for order in orders if order not in specs]
        for start in range(0, len(missing), MAX_VARIABLES):
            some = TASKS.c.order.in_(missing[start : start + MAX_VARIABLES])
            for order, text in connection.execute(select(TASKS.c.order, TASKS.c.spec).where(some)):
                with understood():
                    specs[order] = TaskSpec(**json.loads(text))
        return specs


def select_tasks() -> Select[Any]:
    """Selects the columns that ``TaskReader`` makes a task of."""
    return select(*(column for column in TASKS.c if column.name not in ("host", "spec")))


def next_order(connection: Connection) -> int:
    """What makes a task the youngest."""
    return (connection.scalar(select(func.max(TASKS.c.order))) or 0) + 1


def task_row(task: Task) -> dict[str, Any]:
    """All columns of a task."""
    spec = {"run_id": task.run_id, "host": task.spec.host, "spec": to_text(asdict(task.spec))}
    return vars(task) | spec | {"state": task.state.value, "proofs": to_text(dict(task.proofs))}


def change_task(
    connection: Connection, run_id: str, states: Sequence[State], **values: Any
) -> bool:
    """Set columns of a task that is in one of ``states``; False when it is in none."""
    statement = update(TASKS).where(
        TASKS.c.run_id == run_id, TASKS.c.state.in_([state.value for state in states])
    )
    return connection.execute(statement.values(values)).rowcount == 1


def read_attempts(connection: Connection, statement: Select[Any]) -> list[Attempt]:
    """The attempts that a selection of their table finds, in its order."""
    attempts = []
    with understood():
        for row in connection.execute(statement):
            _check_times(row.started_at, row.heartbeat_at, row.ended_at, row.way_at)
            shares = tuple(DeviceShare(**share) for share in json.loads(row.devices))
            outlook = None if row.outlook is None else _outlook(**json.loads(row.outlook))
            attempts.append(Attempt(**row._asdict() | {"devices": shares, "outlook": outlook}))
    return attempts


def _outlook(least: Any, resumes: Any, leaves: Any, ends_at: Any, basis: Any) -> Outlook:
    ends_at = None if ends_at is None else float(ends_at)
    return Outlook(int(least), bool(resumes), bool(leaves), ends_at, str(basis))


def _proofs(text: str) -> dict[str, str]:
    return dict(json.loads(text))


def _check_times(*times: Any) -> None:
    """Check times of a row, which a file that others write may have as anything.

    Raises:
        TypeError, ValueError: One of them is neither absent nor a finite number.
    """
    for time in times:
        if time is not None and not math.isfinite(time):
            raise ValueError(f"{time} is no time")


@contextmanager
def understood() -> Iterator[None]:
    """Say so when a row is not as this version writes them."""
    try:
        yield
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise StoreError(
            f"the store holds what no mlflow-rlsched wrote ({error}): find out who did, and move"
            " its file away to begin anew"
        ) from error


def put(
    connection: Connection, table: TableClause, keys: Sequence[str], row: Mapping[str, Any]
) -> None:
    """Insert a row, or update the one with the same ``keys``."""
    same = and_(*(table.c[key] == row[key] for key in keys))
    if connection.execute(update(table).where(same).values(row)).rowcount == 0:
        connection.execute(insert(table).values(row))


def to_text(value: Any) -> str:
    """The JSON text of a column."""
    return json.dumps(value, separators=(",", ":"))
