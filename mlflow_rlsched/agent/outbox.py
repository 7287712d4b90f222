"""The durable outbox: what is still to be told to tracking servers, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mlflow_rlsched.store import StoreError

OUTBOX = "outbox.db"
"""Its name in the agent's folder."""

_METADATA = sa.MetaData()
_MESSAGES = sa.Table(
    "messages",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Index("messages_by_run", "run_id", "id"),
)


@dataclass(frozen=True)
class Message:
    """Something to tell the tracking server about a run.

    Attributes:
        run_id: The run.
        kind: ``metrics`` (``[[key, value, timestamp_ms, step], …]``), ``tags``
            (``{key: value}``), ``status`` (``{"status"}``), ``retries_over``
            (``{"attempt"}``: the nested runs of the attempts up to this one failed), ``final``
            (``{"status", "end_time_ms", "tags", "attempt"}``; the run's files are uploaded
            with it, and if an attempt is named, its nested run ends like it) or ``artifacts``
            (``{}``: only upload them).
        body: JSON, as said.
        id: Place in the outbox; 0 before it is there.
    """

    run_id: str
    kind: str
    body: Any
    id: int = 0


class Outbox:
    """Messages in the order in which they were put, on disk until they are delivered.

    Args:
        path: The file, made if absent.

    Raises:
        StoreError: The file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._engine = sa.create_engine(
            f"sqlite:///{path}", poolclass=sa.pool.NullPool, connect_args={"timeout": 30}
        )
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.text("PRAGMA journal_mode=WAL"))
            _METADATA.create_all(self._engine)
        except sa.exc.DatabaseError as error:
            raise StoreError(
                f"outbox {path}: {error.orig}: free some space if the disk is full, else move it "
                "away (what it still had to tell tracking servers is lost then)"
            ) from error

    def put(self, messages: Sequence[Message]) -> None:
        """Add messages in one transaction."""
        rows = [{"run_id": m.run_id, "kind": m.kind, "body": m.body} for m in messages]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(_MESSAGES), rows)

    def runs(self) -> list[str]:
        """Runs with something to be told, the longest waiting first."""
        query = sa.select(_MESSAGES.c.run_id).group_by(_MESSAGES.c.run_id)
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(sa.func.min(_MESSAGES.c.id)))
            return [row.run_id for row in rows]

    def of(self, run_id: str, limit: int = 200) -> list[Message]:
        """The oldest messages of a run, in order."""
        query = sa.select(_MESSAGES).where(_MESSAGES.c.run_id == run_id)
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(_MESSAGES.c.id).limit(limit))
            return [Message(row.run_id, row.kind, row.body, row.id) for row in rows]

    def delivered(self, messages: Sequence[Message]) -> None:
        """Forget messages."""
        if messages:
            ids = [m.id for m in messages]
            with self._engine.begin() as connection:
                connection.execute(sa.delete(_MESSAGES).where(_MESSAGES.c.id.in_(ids)))

    def forget(self, run_id: str) -> None:
        """Forget all messages of a run."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_MESSAGES).where(_MESSAGES.c.run_id == run_id))

    def close(self) -> None:
        """Give back the connection."""
        self._engine.dispose()
