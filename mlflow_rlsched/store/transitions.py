"""The transitions of the SQL store, and when it is time to learn from them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, insert, select

from mlflow_rlsched.store.interface import KEPT_TRANSITIONS
from mlflow_rlsched.store.records import State, Transition
from mlflow_rlsched.store.rows import to_text
from mlflow_rlsched.store.schema import LEARNING, TASKS, TRANSITIONS


def add(connection: Connection, transitions: Sequence[Transition]) -> None:
    """Keep what is not there yet; the oldest go (``Store.add_transitions``)."""
    serial = last(connection)
    for item in transitions:
        same = (TRANSITIONS.c.run_id == item.run_id, TRANSITIONS.c.decision == item.decision)
        if connection.scalar(select(TRANSITIONS.c.serial).where(*same)) is None:
            serial += 1
            row = vars(item) | {"serial": serial, "data": to_text(dict(item.data))}
            connection.execute(insert(TRANSITIONS).values(row))
    old = TRANSITIONS.c.serial <= serial - KEPT_TRANSITIONS
    connection.execute(delete(TRANSITIONS).where(old))


def find(
    connection: Connection, run_id: str | None, after: int, limit: int | None
) -> list[tuple[int, Transition]]:
    """Transitions with their serial numbers (``Store.transitions``)."""
    statement = select(TRANSITIONS).where(TRANSITIONS.c.serial > after)
    if run_id is not None:
        statement = statement.where(TRANSITIONS.c.run_id == run_id)
    return [
        (serial, Transition(run, decision, json.loads(data), key, learnable))
        for serial, run, decision, data, key, learnable in connection.execute(
            statement.order_by(TRANSITIONS.c.serial).limit(limit)
        )
    ]


def last(connection: Connection) -> int:
    """The largest serial number; 0 without a transition."""
    return connection.scalar(select(func.max(TRANSITIONS.c.serial))) or 0


def is_time_to_learn(connection: Connection, fewest: int) -> bool:
    """Whether a task that learns may be added (``Store.is_time_to_learn``)."""
    states = [state.value for state in State if not state.final]
    learns = TASKS.c.run_id.in_(select(LEARNING.c.run_id))
    if connection.execute(select(TASKS.c.run_id).where(learns, TASKS.c.state.in_(states))).first():
        return False
    known = connection.scalar(select(func.max(LEARNING.c.serial))) or 0
    new = select(TRANSITIONS.c.serial).where(
        TRANSITIONS.c.serial > known, TRANSITIONS.c.learnable.is_(True)
    )
    return len(connection.execute(new.limit(fewest)).all()) == fewest
