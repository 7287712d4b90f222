"""The store in a SQL database: attempts that run, their leases, agents and devices."""

# The interface documents the methods.
# ruff: noqa: D102

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, or_, select, update

from mlflow_rlsched.store.records import (
    AgentRecord,
    Attempt,
    DeviceShare,
    Lease,
    Outlook,
    Quarantine,
    State,
)
from mlflow_rlsched.store.rows import put, read_attempts, to_text, understood
from mlflow_rlsched.store.schema import AGENTS, ATTEMPTS, LEASES, QUARANTINE, TASKS
from mlflow_rlsched.store.sql_base import SqlBase, reads, writes


class SqlHosts(SqlBase):
    """What hosts hold and run."""

    @writes
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

    @reads
    def leases(self, connection: Connection, host: str | None = None) -> list[Lease]:
        statement = select(LEASES).order_by(LEASES.c.since, LEASES.c.run_id, LEASES.c.device)
        if host is not None:
            statement = statement.where(LEASES.c.host == host)
        return [
            Lease(row.host, DeviceShare(row.device, row.amount), row.run_id, row.attempt, row.since)
            for row in connection.execute(statement)
        ]

    @reads
    def attempts(self, connection: Connection, run_id: str) -> list[Attempt]:
        statement = select(ATTEMPTS).where(ATTEMPTS.c.run_id == run_id).order_by(ATTEMPTS.c.number)
        return read_attempts(connection, statement)

    @reads
    def running_attempts(self, connection: Connection, host: str) -> list[Attempt]:
        running = and_(ATTEMPTS.c.host == host, ATTEMPTS.c.ended_at.is_(None))
        return read_attempts(connection, select(ATTEMPTS).where(running))

    @writes
    def tell_outlooks(
        self, connection: Connection, host: str, outlooks: Mapping[str, Outlook]
    ) -> None:
        rows = [{"run": run_id, "text": to_text(asdict(o))} for run_id, o in outlooks.items()]
        if rows:
            connection.execute(
                update(ATTEMPTS)
                .where(
                    ATTEMPTS.c.run_id == bindparam("run"),
                    ATTEMPTS.c.host == host,
                    ATTEMPTS.c.ended_at.is_(None),
                )
                .values(outlook=bindparam("text")),
                rows,
            )

    @writes
    def ask_way(
        self, connection: Connection, run_id: str, attempt: int, way_for: str, now: float
    ) -> bool:
        unasked = and_(
            ATTEMPTS.c.run_id == run_id,
            ATTEMPTS.c.number == attempt,
            ATTEMPTS.c.ended_at.is_(None),
            or_(ATTEMPTS.c.way_for.is_(None), ATTEMPTS.c.way_for != way_for),
        )
        asked = update(ATTEMPTS).where(unasked).values(way_for=way_for, way_at=now)
        return connection.execute(asked).rowcount == 1

    @reads
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

    @writes
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

    @writes
    def register_agent(self, connection: Connection, record: AgentRecord, now: float) -> None:
        devices = to_text([dict(device) for device in record.devices])
        row = asdict(record) | {"heartbeat_at": now, "devices": devices}
        put(connection, AGENTS, ("host", "user"), row)

    @writes
    def unregister_agent(self, connection: Connection, host: str, user: str) -> None:
        connection.execute(delete(AGENTS).where(AGENTS.c.host == host, AGENTS.c.user == user))

    @reads
    def agents(self, connection: Connection) -> list[AgentRecord]:
        statement = select(AGENTS).order_by(AGENTS.c.host, AGENTS.c.user)
        with understood():
            return [
                AgentRecord(
                    **row._asdict()
                    | {
                        "heartbeat_at": float(row.heartbeat_at),
                        "devices": tuple(json.loads(row.devices)),
                    }
                )
                for row in connection.execute(statement)
            ]

    @writes
    def quarantine(self, connection: Connection, item: Quarantine) -> None:
        put(connection, QUARANTINE, ("host", "device"), asdict(item))

    @writes
    def end_quarantine(self, connection: Connection, host: str, device: str) -> None:
        connection.execute(
            delete(QUARANTINE).where(QUARANTINE.c.host == host, QUARANTINE.c.device == device)
        )

    @reads
    def quarantined(self, connection: Connection, host: str | None = None) -> list[Quarantine]:
        statement = select(QUARANTINE).order_by(QUARANTINE.c.host, QUARANTINE.c.device)
        if host is not None:
            statement = statement.where(QUARANTINE.c.host == host)
        with understood():
            return [
                Quarantine(**row._asdict() | {"until": float(row.until)})
                for row in connection.execute(statement)
            ]
