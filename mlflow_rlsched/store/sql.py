"""The store in a SQL database, through SQLAlchemy Core."""

# The interface documents the methods.
# ruff: noqa: D102

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from sqlalchemy import (
    Connection,
    case,
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
    Attempt,
    DeviceShare,
    Ending,
    State,
    Task,
    TaskSpec,
    Transition,
)
from mlflow_rlsched.store.rows import (
    change_task,
    next_order,
    put,
    select_tasks,
    task_row,
    to_text,
)
from mlflow_rlsched.store.schema import (
    ATTEMPTS,
    LEARNING,
    LEASES,
    TASKS,
)
from mlflow_rlsched.store.sql_base import reads, writes
from mlflow_rlsched.store.sql_hosts import SqlHosts
from mlflow_rlsched.store.transitions import add, find, is_time_to_learn, last

FINAL = tuple(state for state in State if state.final)
UNFINISHED = tuple(state for state in State if not state.final)


class SqlStore(SqlHosts, Store):
    """A store in a SQL database.

    Args:
        url: ``sqlite:///<absolute path>``; the file and its folder are made when absent.

    Raises:
        StoreError: The database cannot be opened or is of a newer version.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
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

    @writes
    def submit(
        self,
        connection: Connection,
        spec: TaskSpec,
        priority: int,
        now: float,
        proofs: Mapping[str, str] | None = None,
    ) -> Task:
        return self._submit(connection, spec, priority, now, proofs or {})

    @writes
    def submit_learning(
        self, connection: Connection, spec: TaskSpec, now: float, fewest: int
    ) -> Task | None:
        if not is_time_to_learn(connection, fewest):
            return None
        task = self._submit(connection, spec, LEARNING_PRIORITY, now, {})
        row = {"run_id": spec.run_id, "serial": last(connection)}
        put(connection, LEARNING, ("run_id",), row)
        return task

    @reads
    def is_time_to_learn(self, connection: Connection, fewest: int) -> bool:
        return is_time_to_learn(connection, fewest)

    def _submit(
        self,
        connection: Connection,
        spec: TaskSpec,
        priority: int,
        now: float,
        proofs: Mapping[str, str],
    ) -> Task:
        before = self._read.one(connection, spec.run_id)
        if before is not None and not before.state.final:
            return before
        order = next_order(connection)
        task = Task(spec, State.QUEUED, priority, submitted_at=now, order=order, proofs=proofs)
        if before is not None:
            task = replace(
                task,
                attempt=before.attempt,
                started_at=before.started_at,
                samples=before.samples,
            )
        put(connection, TASKS, ("run_id",), task_row(task))
        return task

    @reads
    def get(self, connection: Connection, run_id: str) -> Task | None:
        return self._read.one(connection, run_id)

    @reads
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

    @reads
    def untracked(self, connection: Connection, host: str) -> list[Task]:
        ran_here = exists().where(ATTEMPTS.c.run_id == TASKS.c.run_id, ATTEMPTS.c.host == host)
        statement = select_tasks().where(
            TASKS.c.tracked.is_(False),
            TASKS.c.state.in_([state.value for state in FINAL]),
            or_(TASKS.c.host == host, ran_here),
        )
        return self._read.all(connection, statement.order_by(TASKS.c.order))

    @writes
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

    @writes
    def mark_tracked(self, connection: Connection, run_id: str) -> None:
        change_task(connection, run_id, FINAL, tracked=True)

    @writes
    def request_cancel(self, connection: Connection, run_id: str, by: str, proof: str = "") -> bool:
        task = self._read.one(connection, run_id)
        if task is None:
            return False
        proofs = to_text({**task.proofs, "cancel": proof})
        return change_task(connection, run_id, UNFINISHED, cancel_by=by, proofs=proofs)

    @writes
    def dismiss_cancel(self, connection: Connection, task: Task) -> None:
        now = self._read.one(connection, task.run_id)
        if now is not None and _cancellation(now) == _cancellation(task):
            change_task(connection, task.run_id, UNFINISHED, cancel_by=None)

    @writes
    def prioritize(
        self, connection: Connection, run_id: str, priority: int, proof: str = ""
    ) -> bool:
        task = self._read.one(connection, run_id)
        if task is None:
            return False
        proofs = to_text({**task.proofs, "priority": proof})
        return change_task(connection, run_id, UNFINISHED, priority=priority, proofs=proofs)

    @writes
    def retry(
        self,
        connection: Connection,
        run_id: str,
        now: float,
        proofs: Mapping[str, str] | None = None,
    ) -> bool:
        task = self._read.one(connection, run_id)
        if task is None:
            return False
        kept = {what: proof for what, proof in task.proofs.items() if what != "cancel"}
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
            proofs=to_text(kept | dict(proofs or {})),
        )

    @writes
    def replace_proof(self, connection: Connection, task: Task, what: str, proof: str) -> None:
        now = self._read.one(connection, task.run_id)
        if now is not None and now.proofs.get(what) == task.proofs.get(what):
            proofs = to_text({**now.proofs, what: proof})
            change_task(connection, task.run_id, UNFINISHED, proofs=proofs)

    # Attempts

    @writes
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
        row = vars(attempt) | {"devices": to_text([asdict(share) for share in shares])}
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

    @writes
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

    # Transitions

    @writes
    def add_transitions(self, connection: Connection, transitions: Sequence[Transition]) -> None:
        add(connection, transitions)

    @reads
    def transitions(
        self,
        connection: Connection,
        run_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[tuple[int, Transition]]:
        return find(connection, run_id, after, limit)


def _cancellation(task: Task) -> tuple[str | None, str | None]:
    """Who asked for a task's end, and what proves it."""
    return task.cancel_by, task.proofs.get("cancel")
