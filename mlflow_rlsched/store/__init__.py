"""Where tasks, attempts, leases and transitions are kept."""

from __future__ import annotations

from mlflow_rlsched.store.interface import LEARNING_PRIORITY, Store, StoreError, StoreGone
from mlflow_rlsched.store.records import (
    AgentRecord,
    Attempt,
    DeviceShare,
    Ending,
    Lease,
    Outlook,
    Quarantine,
    State,
    Task,
    TaskSpec,
    Transition,
)

__all__ = [
    "LEARNING_PRIORITY",
    "AgentRecord",
    "Attempt",
    "DeviceShare",
    "Ending",
    "Lease",
    "Outlook",
    "Quarantine",
    "State",
    "Store",
    "StoreError",
    "StoreGone",
    "Task",
    "TaskSpec",
    "Transition",
    "open_store",
]


def open_store(url: str) -> Store:
    """Open the store at an absolute URL, making or migrating it if needed.

    Args:
        url: ``sqlite:///<absolute path>``.

    Raises:
        StoreError: It cannot be opened (unknown scheme, network file system, read-only or full
            disk, no database, written by a newer version); the text says what to do.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from mlflow_rlsched.store.sql import SqlStore

        return SqlStore(url)
    raise StoreError(f"store {url!r} is not supported: write sqlite:///<absolute path>")
