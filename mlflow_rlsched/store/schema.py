"""Tables of the SQL store, and how an older schema becomes the present one.

A migration is a list of statements in the SQL that SQLite and PostgreSQL share. It is never
edited once released: a change of the tables is one more entry, and the constructs below it
describe what the last entry leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Boolean, Connection, column, insert, inspect, select, table, text, update

from mlflow_rlsched.store.interface import StoreError

VERSION_1 = (
    """CREATE TABLE tasks (
        run_id TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        priority INTEGER NOT NULL,
        submitted_at DOUBLE PRECISION NOT NULL,
        "order" BIGINT NOT NULL UNIQUE,
        attempt INTEGER NOT NULL,
        retries INTEGER NOT NULL,
        ooms INTEGER NOT NULL,
        not_before DOUBLE PRECISION NOT NULL,
        batch_size INTEGER,
        cancel_by TEXT,
        exit_reason TEXT NOT NULL,
        message TEXT NOT NULL,
        started_at DOUBLE PRECISION,
        ended_at DOUBLE PRECISION,
        samples BIGINT NOT NULL,
        tracked BOOLEAN NOT NULL,
        host TEXT,
        spec TEXT NOT NULL
    )""",
    'CREATE INDEX tasks_by_rank ON tasks (state, priority, "order")',
    "CREATE INDEX tasks_by_tracking ON tasks (tracked, state)",
    """CREATE TABLE attempts (
        run_id TEXT NOT NULL REFERENCES tasks,
        number INTEGER NOT NULL,
        host TEXT NOT NULL,
        devices TEXT NOT NULL,
        started_at DOUBLE PRECISION NOT NULL,
        heartbeat_at DOUBLE PRECISION NOT NULL,
        ended_at DOUBLE PRECISION,
        exit_code INTEGER,
        reason TEXT NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (run_id, number)
    )""",
    """CREATE TABLE leases (
        host TEXT NOT NULL,
        device TEXT NOT NULL,
        run_id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        amount INTEGER NOT NULL CHECK (amount BETWEEN 1 AND 100),
        since DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (host, device, run_id, attempt),
        FOREIGN KEY (run_id, attempt) REFERENCES attempts
    )""",
    "CREATE INDEX leases_by_attempt ON leases (run_id, attempt)",
    """CREATE TABLE agents (
        host TEXT NOT NULL,
        "user" TEXT NOT NULL,
        version TEXT NOT NULL,
        started_at DOUBLE PRECISION NOT NULL,
        heartbeat_at DOUBLE PRECISION NOT NULL,
        devices TEXT NOT NULL,
        PRIMARY KEY (host, "user")
    )""",
    """CREATE TABLE quarantine (
        host TEXT NOT NULL,
        device TEXT NOT NULL,
        reason TEXT NOT NULL,
        until DOUBLE PRECISION NOT NULL,
        failures INTEGER NOT NULL,
        PRIMARY KEY (host, device)
    )""",
    """CREATE TABLE transitions (
        serial BIGINT PRIMARY KEY,
        run_id TEXT NOT NULL,
        decision BIGINT NOT NULL,
        data TEXT NOT NULL,
        "key" BOOLEAN NOT NULL,
        UNIQUE (run_id, decision)
    )""",
)

VERSION_2 = (
    "ALTER TABLE transitions ADD COLUMN learnable BOOLEAN NOT NULL DEFAULT FALSE",
    """CREATE TABLE learning (
        run_id TEXT PRIMARY KEY REFERENCES tasks,
        serial BIGINT NOT NULL
    )""",
)

VERSION_3 = ("ALTER TABLE tasks ADD COLUMN gpus INTEGER",)

VERSION_4 = (
    "ALTER TABLE tasks ADD COLUMN proofs TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE attempts ADD COLUMN outlook TEXT",
    "ALTER TABLE attempts ADD COLUMN way_for TEXT",
    "ALTER TABLE attempts ADD COLUMN way_at DOUBLE PRECISION",
)

MIGRATIONS: Sequence[Sequence[str]] = (VERSION_1, VERSION_2, VERSION_3, VERSION_4)

# The first columns are the fields of ``Task`` after ``spec``, in their order.
TASKS = table(
    "tasks",
    column("run_id"),
    column("state"),
    column("priority"),
    column("submitted_at"),
    column("order"),
    column("attempt"),
    column("retries"),
    column("ooms"),
    column("not_before"),
    column("batch_size"),
    column("gpus"),
    column("cancel_by"),
    column("exit_reason"),
    column("message"),
    column("started_at"),
    column("ended_at"),
    column("samples"),
    column("tracked", Boolean),
    column("proofs"),
    column("host"),
    column("spec"),
)
ATTEMPTS = table(
    "attempts",
    column("run_id"),
    column("number"),
    column("host"),
    column("devices"),
    column("started_at"),
    column("heartbeat_at"),
    column("ended_at"),
    column("exit_code"),
    column("reason"),
    column("message"),
    column("outlook"),
    column("way_for"),
    column("way_at"),
)
LEASES = table(
    "leases",
    column("host"),
    column("device"),
    column("run_id"),
    column("attempt"),
    column("amount"),
    column("since"),
)
AGENTS = table(
    "agents",
    column("host"),
    column("user"),
    column("version"),
    column("started_at"),
    column("heartbeat_at"),
    column("devices"),
)
QUARANTINE = table(
    "quarantine",
    column("host"),
    column("device"),
    column("reason"),
    column("until"),
    column("failures"),
)
TRANSITIONS = table(
    "transitions",
    column("serial"),
    column("run_id"),
    column("decision"),
    column("data"),
    column("key", Boolean),
    column("learnable", Boolean),
)
LEARNING = table("learning", column("run_id"), column("serial"))
"""Tasks that learn, each with the last transition that was there when it was added."""

TABLES = (TASKS, ATTEMPTS, LEASES, AGENTS, QUARANTINE, TRANSITIONS, LEARNING)

_VERSION = table("rlsched_schema", column("version"))


def current(connection: Connection) -> bool:
    """Whether the database has the present schema.

    Raises:
        StoreError: A newer mlflow-rlsched wrote it, or something else did.
    """
    return _version(connection) == len(MIGRATIONS)


def migrate(connection: Connection) -> None:
    """Bring the database to the present schema within the caller's transaction.

    Raises:
        StoreError: As for ``current``.
    """
    version = _version(connection)
    if version == 0:
        connection.execute(text("CREATE TABLE rlsched_schema (version INTEGER NOT NULL)"))
        connection.execute(insert(_VERSION).values(version=0))
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(text(statement))
    connection.execute(update(_VERSION).values(version=len(MIGRATIONS)))


def _version(connection: Connection) -> int:
    """Version of the schema; 0 in an empty database."""
    tables = inspect(connection).get_table_names()
    if _VERSION.name not in tables:
        if tables:
            raise StoreError(
                f"the database belongs to something else (it has a table {tables[0]!r}): "
                "give the store a database of its own"
            )
        return 0
    version = int(connection.scalars(select(_VERSION.c.version)).one())
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store was written by a newer mlflow-rlsched (schema {version}, this one knows "
            f"{len(MIGRATIONS)}): upgrade mlflow-rlsched"
        )
    return version
