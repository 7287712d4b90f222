"""Rows of the SQL store to tasks and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, and_, func, insert, select, update
from sqlalchemy.sql.expression import TableClause

from mlflow_rlsched.store.records import State, Task, TaskSpec
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
        return [
            Task(specs[order], State(state), priority, submitted_at, order, *rest)
            for _, state, priority, submitted_at, order, *rest in rows
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
    return vars(task) | spec | {"state": task.state.value}


def change_task(
    connection: Connection, run_id: str, states: Sequence[State], **values: Any
) -> bool:
    """Set columns of a task that is in one of ``states``; False when it is in none."""
    statement = update(TASKS).where(
        TASKS.c.run_id == run_id, TASKS.c.state.in_([state.value for state in states])
    )
    return connection.execute(statement.values(values)).rowcount == 1


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
