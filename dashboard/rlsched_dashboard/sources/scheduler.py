"""What the store and the run directories tell: tasks, devices, the queue, the agent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mlflow_rlsched import requests
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.devices.interface import Device, Inventory
from mlflow_rlsched.overview.devices import device_rows
from mlflow_rlsched.overview.expected import expected_starts
from mlflow_rlsched.overview.queue import queue_rows
from mlflow_rlsched.overview.run import outline
from mlflow_rlsched.sharing import SQLITE
from mlflow_rlsched.store import Attempt, State, Store, StoreGone, Task, Transition, open_store
from rlsched_dashboard.sources.slots import SlotMeter

T = TypeVar("T")

FINAL = [state for state in State if state.final]
FRESH_S = 1.0
"""How long what all viewers see alike is kept, seconds."""


class Scheduler:
    """Reads one store, and the devices of this host.

    Args:
        url: Absolute URL of the store, which need not exist yet.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._inventory: Inventory | None = None
        self._kept: dict[str, tuple[float, Any]] = {}
        self._slots: SlotMeter | None = None
        self._reading = threading.Lock()

    def exists(self) -> bool:
        """Whether anything was ever submitted to this store."""
        return Path(self.url.removeprefix(SQLITE)).exists()

    def agent_lives(self) -> bool:
        """Whether this user's agent of the store lives on this host."""
        return AgentFiles(self.url).alive()

    def tasks(
        self, states: Sequence[State] | None = None, limit: int | None = None
    ) -> Sequence[Task]:
        """Tasks by rank: see ``Store.tasks``."""
        return self._ask(lambda store: store.tasks(states, limit=limit), [])

    def ended(self, limit: int) -> list[Task]:
        """The tasks that ended last, newest first."""
        tasks = self.tasks(FINAL, limit)
        return sorted(tasks, key=lambda task: -(task.ended_at or 0))

    def task(self, run_id: str) -> Task | None:
        """The task of a run, or None."""
        return self._ask(lambda store: store.get(run_id), None)

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        """Attempts of a run, oldest first."""
        return self._ask(lambda store: store.attempts(run_id), [])

    def queue(self) -> list[dict[str, Any]]:
        """What waits and what runs, as ``rlsched queue --json`` tells it."""

        def read() -> list[dict[str, Any]]:
            return self._ask(lambda store: queue_rows(store, time.time(), self.url), [])

        return self._fresh("queue", read)

    def devices(self) -> list[dict[str, Any]]:
        """This host's devices, as ``rlsched devices --json`` tells them, and the use of CPU slots.

        Raises:
            ValueError: ``RLSCHED_CPU_SLOTS`` is no number of slots; the text says so.
        """

        def read() -> list[dict[str, Any]]:
            inventory = self._opened()
            rows = self._ask(lambda store: device_rows(inventory, store), None)
            rows = device_rows(inventory, None) if rows is None else rows
            self._slots = self._slots or SlotMeter(inventory)
            self._slots.fill(rows, {task.run_id: task for task in self.tasks([State.RUNNING])})
            return rows

        return self._fresh("devices", read)

    def known_devices(self) -> dict[str, Device]:
        """This host's devices by id."""
        return {device.id: device for device in self._opened().devices()}

    def describe(self, task: Task) -> dict[str, Any]:
        """What is known of a run besides its decisions, as ``rlsched show --json`` tells it."""
        attempts = self.attempts(task.run_id)
        start = None
        if task.state is State.QUEUED:
            starts: dict[str, dict[str, Any]] = self._ask(
                lambda store: expected_starts(store, time.time(), self.url), {}
            )
            start = starts.get(task.run_id)
        return outline(task, attempts, start)

    def transitions(self, after: int, limit: int) -> list[tuple[int, Transition]]:
        """Transitions by their growing serial number: see ``Store.transitions``."""
        return self._ask(lambda store: store.transitions(after=after, limit=limit), [])

    def cancel(self, task: Task) -> str:
        """Ask for the end of a run: see ``requests.cancel``."""
        return self._ask(lambda store: requests.cancel(store, self.url, task), "")

    def prioritize(self, task: Task, priority: int) -> str:
        """Give a run a priority: see ``requests.prioritize``."""
        return self._ask(lambda store: requests.prioritize(store, self.url, task, priority), "")

    def retry(self, task: Task, warn: Callable[[str], None]) -> str:
        """Queue a failed or killed run again: see ``requests.retry``."""
        return self._ask(lambda store: requests.retry(store, self.url, task, warn), "")

    def _ask(self, question: Callable[[Store], T], otherwise: T) -> T:
        """The store's answer; ``otherwise`` while there is no store.

        Raises:
            StoreError: It cannot be read; the text says why and what to do.
        """
        with self._lock:
            if self._store is None:
                if not self.exists():
                    return otherwise
                self._store = open_store(self.url)
            store = self._store
        try:
            return question(store)
        except StoreGone:
            with self._lock:
                self._store = None  # whoever asks next opens what is there then
            raise

    def _opened(self) -> Inventory:
        self._inventory = self._inventory or open_inventory()
        return self._inventory

    def _fresh(self, name: str, read: Callable[[], T]) -> T:
        """What was read a moment ago, for whoever else looks, or what is read now."""
        with self._reading:
            kept = self._kept.get(name)
            if kept is None or time.monotonic() - kept[0] > FRESH_S:
                kept = self._kept[name] = (time.monotonic(), read())
            value: T = kept[1]
            return value
