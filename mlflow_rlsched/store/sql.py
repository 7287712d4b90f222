"""The store in a SQL database, through SQLAlchemy Core."""

# The interface documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from mlflow_rlsched.store import schema
from mlflow_rlsched.store.interface import LEARNING_PRIORITY, Store
from mlflow_rlsched.store.records import (
    AgentRecord,
    Attempt,
    DeviceShare,
    Ending,
    Lease,
    Quarantine,
    State,
    Task,
    TaskSpec,
    Transition,
)
from mlflow_rlsched.store.rows import (
    TaskReader,
    change_task,
    next_order,
    put,
    select_tasks,
    task_row,
    to_text,
)
from mlflow_rlsched.store.schema import (
    AGENTS,
    ATTEMPTS,
    LEARNING,
    LEASES,
    QUARANTINE,
    TASKS,
)
from mlflow_rlsched.store.sqlite import SqliteDatabase
from mlflow_rlsched.store.transitions import add, find, is_time_to_learn, last

P = ParamSpec("P")
T = TypeVar("T")

FINAL = tuple(state for state in State if state.final)
UNFINISHED = tuple(state for state in State if not state.final)


def _transaction(
    write: bool,
) -> Callable[
    [Callable[Concatenate[SqlStore, Connection, P], T]], Callable[Concatenate[SqlStore, P], T]
]:
    """Run a method in a transaction of its own, whose connection becomes its first argument."""

    def decorate(
        method: Callable[Concatenate[SqlStore, Connection, P], T],
    ) -> Callable[Concatenate[SqlStore, P], T]:
        @functools.wraps(method)
        def run(self: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return self._database.transact(
                lambda connection: method(self, connection, *args, **kwargs), write=write
            )

        return run

    return decorate


_reads = _transaction(write=False)
_writes = _transaction(write=True)


class SqlStore(Store):
    """A store in a SQL database.

    Args:
        url: ``sqlite:///<absolute path>``; the file and its folder are made when absent.

    Raises:
        StoreError: The database cannot be opened or is of a newer version.
    """

    def __init__(self, url: str) -> None:
        self._database = SqliteDatabase(url)
        self._read = TaskReader()
        try:
            if not self._database.transact(schema.current, write=False):
                with self._database.migrating():
                    self._database.transact(schema.migrate, write=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    # Tasks

    @_writes
    def submit(self, connection: Connection, spec: TaskSpec, priority: int, now: float) -> Task:
        return self._submit(connection, spec, priority, now)

    @_writes
    def submit_learning(
        self, connection: Connection, spec: TaskSpec, now: float, fewest: int
    ) -> Task | None:
        if not is_time_to_learn(connection, fewest):
            return None
        task = self._submit(connection, spec, LEARNING_PRIORITY, now)
        row = {"run_id": spec.run_id, "serial": last(connection)}
        put(connection, LEARNING, ("run_id",), row)
        return task

    @_reads
    def is_time_to_learn(self, connection: Connection, fewest: int) -> bool:
        return is_time_to_learn(connection, fewest)

    def _submit(self, connection: Connection, spec: TaskSpec, priority: int, now: float) -> Task:
        before = self._read.one(connection, spec.run_id)
        if before is not None and not before.state.final:
            return before
        task = Task(spec, State.QUEUED, priority, submitted_at=now, order=next_order(connection))
        if before is not None:
            task = replace(
                task,
                attempt=before.attempt,
                started_at=before.started_at,
                samples=before.samples,
            )
        put(connection, TASKS, ("run_id",), task_row(task))
        return task

    @_reads
    def get(self, connection: Connection, run_id: str) -> Task | None:
        return self._read.one(connection, run_id)

    @_reads
    def tasks(
        self,
        connection: Connection,
        states: Iterable[State] | None = None,
        host: str | None = None,
        limit: int | None = None,
    ) -> list[Task]:
        statement = select_tasks()
        if states is not None:
            statement = statement.where(TASKS.c.state.in_([state.value for state in states]))
        if host is not None:
            statement = statement.where(or_(TASKS.c.host.is_(None), TASKS.c.host == host))
        if limit is not None:
            final = TASKS.c.state.in_([state.value for state in FINAL])
            statement = statement.order_by(
                case((final, 1), else_=0),
                case((final, -TASKS.c.order), else_=-TASKS.c.priority),
                TASKS.c.order,
            ).limit(limit)
        return sorted(self._read.all(connection, statement), key=lambda t: (-t.priority, t.order))

    @_reads
    def untracked(self, connection: Connection, host: str) -> list[Task]:
        ran_here = exists().where(ATTEMPTS.c.run_id == TASKS.c.run_id, ATTEMPTS.c.host == host)
        statement = select_tasks().where(
            TASKS.c.tracked.is_(False),
            TASKS.c.state.in_([state.value for state in FINAL]),
            or_(TASKS.c.host == host, ran_here),
        )
        return self._read.all(connection, statement.order_by(TASKS.c.order))

    @_writes
    def end_queued(self, connection: Connection, run_id: str, ending: Ending, now: float) -> bool:
        return change_task(
            connection,
            run_id,
            [State.QUEUED],
            state=ending.state.value,
            exit_reason=ending.reason,
            message=ending.message,
            ended_at=now,
        )

    @_writes
    def mark_tracked(self, connection: Connection, run_id: str) -> None:
        change_task(connection, run_id, FINAL, tracked=True)

    @_writes
    def request_cancel(self, connection: Connection, run_id: str, by: str) -> bool:
        first = func.coalesce(TASKS.c.cancel_by, by)
        return change_task(connection, run_id, UNFINISHED, cancel_by=first)

    @_writes
    def prioritize(self, connection: Connection, run_id: str, priority: int) -> bool:
        return change_task(connection, run_id, UNFINISHED, priority=priority)

    @_writes
    def retry(self, connection: Connection, run_id: str, now: float) -> bool:
        return change_task(
            connection,
            run_id,
            [State.FAILED, State.KILLED],
            state=State.QUEUED.value,
            submitted_at=now,
            retries=0,
            ooms=0,
            not_before=0.0,
            cancel_by=None,
            exit_reason="",
            message="",
            ended_at=None,
            tracked=False,
        )

    # Attempts and leases

    @_writes
    def claim(
        self,
        connection: Connection,
        run_id: str,
        host: str,
        shares: Sequence[DeviceShare],
        now: float,
    ) -> Attempt | None:
        task = self._read.one(connection, run_id)
        if task is None or task.state is not State.QUEUED or task.cancel_by is not None:
            return None
        if task.not_before > now or task.spec.host not in (None, host):
            return None
        wanted: Counter[str] = Counter()
        for share in shares:
            wanted[share.device] += share.amount
        leased = (
            select(LEASES.c.device, func.sum(LEASES.c.amount))
            .where(LEASES.c.host == host, LEASES.c.device.in_(wanted))
            .group_by(LEASES.c.device)
        )
        used: dict[str, int] = dict(list(connection.execute(leased)))
        if any(used.get(device, 0) + amount > 100 for device, amount in wanted.items()):
            return None
        attempt = Attempt(run_id, task.attempt + 1, host, tuple(shares), now, now)
        row = asdict(attempt) | {"devices": to_text([asdict(share) for share in shares])}
        connection.execute(insert(ATTEMPTS).values(row))
        for device, amount in wanted.items():
            holder = {"run_id": run_id, "attempt": attempt.number, "since": now}
            share_row = {"host": host, "device": device, "amount": amount}
            connection.execute(insert(LEASES).values(holder | share_row))
        change_task(
            connection,
            run_id,
            [State.QUEUED],
            state=State.RUNNING.value,
            attempt=attempt.number,
            started_at=now if task.started_at is None else task.started_at,
        )
        return attempt

    @_writes
    def end_attempt(
        self, connection: Connection, run_id: str, attempt: int, ending: Ending, now: float
    ) -> bool:
        task = self._read.one(connection, run_id)
        if task is None or task.state is not State.RUNNING or task.attempt != attempt:
            return False
        state, reason, message = ending.state, ending.reason, ending.message
        if state is State.QUEUED and task.cancel_by is not None:
            state, reason, message = State.KILLED, "cancelled", f"cancelled by {task.cancel_by}"
        change_task(
            connection,
            run_id,
            [State.RUNNING],
            state=state.value,
            retries=task.retries + ending.counts,
            ooms=task.ooms + ending.oom,
            not_before=ending.not_before,
            batch_size=task.batch_size if ending.batch_size is None else ending.batch_size,
            gpus=task.gpus if ending.gpus is None else ending.gpus,
            order=next_order(connection) if ending.is_last else task.order,
            exit_reason=reason,
            message=message,
            ended_at=now if state.final else None,
        )
        connection.execute(
            update(ATTEMPTS)
            .where(ATTEMPTS.c.run_id == run_id, ATTEMPTS.c.number == attempt)
            .values(
                ended_at=now,
                exit_code=ending.exit_code,
                reason=ending.reason,
                message=ending.message,
            )
        )
        return True

    @_writes
    def release(
        self,
        connection: Connection,
        run_id: str,
        attempt: int,
        devices: Sequence[str] | None = None,
    ) -> None:
        statement = delete(LEASES).where(LEASES.c.run_id == run_id, LEASES.c.attempt == attempt)
        if devices is not None:
            statement = statement.where(LEASES.c.device.in_(devices))
        connection.execute(statement)

    @_reads
    def leases(self, connection: Connection, host: str | None = None) -> list[Lease]:
        statement = select(LEASES).order_by(LEASES.c.since, LEASES.c.run_id, LEASES.c.device)
        if host is not None:
            statement = statement.where(LEASES.c.host == host)
        return [
            Lease(row.host, DeviceShare(row.device, row.amount), row.run_id, row.attempt, row.since)
            for row in connection.execute(statement)
        ]

    @_reads
    def attempts(self, connection: Connection, run_id: str) -> list[Attempt]:
        statement = select(ATTEMPTS).where(ATTEMPTS.c.run_id == run_id).order_by(ATTEMPTS.c.number)
        attempts = []
        for row in connection.execute(statement):
            shares = tuple(DeviceShare(**share) for share in json.loads(row.devices))
            attempts.append(Attempt(**row._asdict() | {"devices": shares}))
        return attempts

    @_reads
    def endings(self, connection: Connection, reason: str) -> Mapping[str, int]:
        statement = (
            select(ATTEMPTS.c.run_id, func.count())
            .where(
                ATTEMPTS.c.run_id == TASKS.c.run_id,
                TASKS.c.state == State.RUNNING.value,
                ATTEMPTS.c.reason == reason,
            )
            .group_by(ATTEMPTS.c.run_id)
        )
        return dict(list(connection.execute(statement)))

    @_writes
    def heartbeat(
        self, connection: Connection, host: str, samples: Mapping[str, int], now: float
    ) -> None:
        if not samples:
            return
        alive = and_(
            ATTEMPTS.c.run_id == bindparam("run"),
            ATTEMPTS.c.host == host,
            ATTEMPTS.c.ended_at.is_(None),
        )
        rows = [{"run": run_id, "count": count} for run_id, count in samples.items()]
        connection.execute(
            update(TASKS)
            .where(TASKS.c.run_id == bindparam("run"), exists().where(alive))
            .values(samples=bindparam("count")),
            rows,
        )
        connection.execute(update(ATTEMPTS).where(alive).values(heartbeat_at=now), rows)

    # Agents and devices

    @_writes
    def register_agent(self, connection: Connection, record: AgentRecord, now: float) -> None:
        devices = to_text([dict(device) for device in record.devices])
        row = asdict(record) | {"heartbeat_at": now, "devices": devices}
        put(connection, AGENTS, ("host", "user"), row)

    @_writes
    def unregister_agent(self, connection: Connection, host: str, user: str) -> None:
        connection.execute(delete(AGENTS).where(AGENTS.c.host == host, AGENTS.c.user == user))

    @_reads
    def agents(self, connection: Connection) -> list[AgentRecord]:
        statement = select(AGENTS).order_by(AGENTS.c.host, AGENTS.c.user)
        return [
            AgentRecord(**row._asdict() | {"devices": tuple(json.loads(row.devices))})
            for row in connection.execute(statement)
        ]

    @_writes
    def quarantine(self, connection: Connection, item: Quarantine) -> None:
        put(connection, QUARANTINE, ("host", "device"), asdict(item))

    @_writes
    def end_quarantine(self, connection: Connection, host: str, device: str) -> None:
        connection.execute(
            delete(QUARANTINE).where(QUARANTINE.c.host == host, QUARANTINE.c.device == device)
        )

    @_reads
    def quarantined(self, connection: Connection, host: str | None = None) -> list[Quarantine]:
        statement = select(QUARANTINE).order_by(QUARANTINE.c.host, QUARANTINE.c.device)
        if host is not None:
            statement = statement.where(QUARANTINE.c.host == host)
        return [Quarantine(**row._asdict()) for row in connection.execute(statement)]

    # Transitions

    @_writes
    def add_transitions(self, connection: Connection, transitions: Sequence[Transition]) -> None:
        add(connection, transitions)

    @_reads
    def transitions(
        self,
        connection: Connection,
        run_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[tuple[int, Transition]]:
        return find(connection, run_id, after, limit)
