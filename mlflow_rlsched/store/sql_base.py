"""How the methods of the SQL store become transactions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from mlflow_rlsched.store.rows import TaskReader
from mlflow_rlsched.store.sqlite import SqliteDatabase

P = ParamSpec("P")
S = TypeVar("S", bound="SqlBase")
T = TypeVar("T")


class SqlBase:
    """A database, and what reads its tasks.

    Args:
        url: ``sqlite:///<absolute path>``.
    """

    def __init__(self, url: str) -> None:
        self._database = SqliteDatabase(url)
        self._read = TaskReader()


def reads(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method in a transaction that changes nothing; its connection is the first argument."""
    return _transaction(method, write=False)


def writes(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method in a transaction of its own, whose connection becomes its first argument."""
    return _transaction(method, write=True)


def _transaction(
    method: Callable[Concatenate[S, Connection, P], T], write: bool
) -> Callable[Concatenate[S, P], T]:
    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.transact(
            lambda connection: method(self, connection, *args, **kwargs), write=write
        )

    return run
