"""What the store and the run directories tell: tasks, devices, queue, decisions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mlflow_rlsched.sharing import SQLITE
from mlflow_rlsched.store import Attempt, State, Store, Task, open_store

T = TypeVar("T")


class Scheduler:
    """Reads one store.

    Args:
        url: Absolute URL of the store, which need not exist yet.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._store: Store | None = None

    def _ask(self, question: Callable[[Store], T], otherwise: T) -> T:
        """The store's answer; ``otherwise`` while there is no store.

        Raises:
            StoreError: It cannot be read; the text says why and what to do.
        """
        with self._lock:
            if self._store is None:
                if not Path(self.url.removeprefix(SQLITE)).exists():
                    return otherwise
                self._store = open_store(self.url)
        return question(self._store)

    def tasks(
        self, states: Sequence[State] | None = None, limit: int | None = None
    ) -> Sequence[Task]:
        """Tasks by rank: see ``Store.tasks``."""
        return self._ask(lambda store: store.tasks(states, limit=limit), [])

    def task(self, run_id: str) -> Task | None:
        """The task of a run, or None."""
        return self._ask(lambda store: store.get(run_id), None)

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        """Attempts of a run, oldest first."""
        return self._ask(lambda store: store.attempts(run_id), [])
