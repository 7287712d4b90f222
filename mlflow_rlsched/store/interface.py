"""What a store keeps and promises.

A store holds tasks, attempts, leases, agents, quarantined devices and transitions. Each method
is one transaction: it happens wholly or not at all, and repeating it after a crash changes
nothing more. Life of a task, and who calls what::

    backend   submit            -> queued
    backend   submit_learning   -> queued            (the one task that learns)
    agent     claim             queued  -> running   (a new attempt, its leases)
    agent     end_attempt       running -> queued    (retry, requeue: not before a time)
                                running -> finished | failed | killed
    agent     end_queued        queued  -> failed | killed   (queue time-out, cancelled)
    agent     release           the attempt's leases end (after its devices have drained)
    agent     mark_tracked      the final status has reached the tracking server
    user      request_cancel, prioritize, retry

Where users share a store, ``submit`` and what a user asks for carry proofs (``trust``), which the
agent of the task's user checks: the store keeps them and believes everybody. Agents tell each other
of what runs by ``tell_outlooks``, and ask for devices by ``ask_way``.

Times are seconds since the epoch (float) and serve people and ordering only; whatever must not
be fooled by a clock that jumps is measured by its owner with a monotonic clock. The attempt's
number is its fence: a call that names an attempt that is no longer the task's current one
changes nothing and returns False.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

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

KEPT_TRANSITIONS = 20_000
"""Transitions that a store keeps, the newest: a hundred runs or so."""


LEARNING_PRIORITY = -1_000_001
"""Priority of the task that learns: below any that a person can give."""


class StoreError(Exception):
    """The store cannot be used; the text says why and what to do."""


class StoreGone(StoreError):
    """The store vanished while it was in use (its file was deleted or replaced)."""


class Store(ABC):
    """Tasks, attempts, leases, agents, quarantine and transitions (see the module's text)."""

    @abstractmethod
    def submit(
        self, spec: TaskSpec, priority: int, now: float, proofs: Mapping[str, str] | None = None
    ) -> Task:
        """Add a queued task.

        One that is there already is returned unchanged while it is not final. A final one (a
        run that is resumed) takes the new specification, priority and age and is queued again,
        with fresh budgets as after ``retry``; its attempt numbers go on.
        """

    @abstractmethod
    def submit_learning(self, spec: TaskSpec, now: float, fewest: int) -> Task | None:
        """Add a queued task that learns from the transitions, if it is time for one.

        Returns:
            The task, or None (and no change) when ``is_time_to_learn`` is False.
        """

    @abstractmethod
    def is_time_to_learn(self, fewest: int) -> bool:
        """Whether no task that learns is unfinished, and enough has come in since the last one.

        Args:
            fewest: Learnable transitions that are enough.
        """

    @abstractmethod
    def get(self, run_id: str) -> Task | None:
        """The task of a run, or None."""

    @abstractmethod
    def tasks(
        self,
        states: Iterable[State] | None = None,
        host: str | None = None,
        limit: int | None = None,
    ) -> list[Task]:
        """Tasks by rank: higher priority first, then older (smaller ``order``) first.

        Args:
            states: Only tasks in these states; None for all.
            host: Only tasks pinned to this host or to none; None for all.
            limit: At most so many, the newest of the final ones being kept.
        """

    @abstractmethod
    def untracked(self, host: str) -> list[Task]:
        """Final tasks of a host (pinned or run there) whose status is not yet tracked."""

    @abstractmethod
    def claim(
        self, run_id: str, host: str, shares: Sequence[DeviceShare], now: float
    ) -> Attempt | None:
        """Start the next attempt of a queued task on these devices.

        Returns:
            The new attempt, or None (and no change) when the task is not queued any more or is
            pinned to another host, a cancellation was asked for, ``not_before`` is still to
            come, or on one of the devices of this host leases would add up to more than 100.
        """

    @abstractmethod
    def end_attempt(self, run_id: str, attempt: int, ending: Ending, now: float) -> bool:
        """Record how the current attempt ended; its leases stay until ``release``.

        One that ``is_last`` gets a new ``order``.

        A task that is to be tried again (QUEUED) although a cancellation was asked for becomes
        KILLED instead.
        """

    @abstractmethod
    def end_queued(self, run_id: str, ending: Ending, now: float) -> bool:
        """End a task that is queued; False when it is not."""

    @abstractmethod
    def release(self, run_id: str, attempt: int, devices: Sequence[str] | None = None) -> None:
        """End leases of an attempt, current or not: those on ``devices``, or all."""

    @abstractmethod
    def leases(self, host: str | None = None) -> list[Lease]:
        """Leases in force, of one host or of all."""

    @abstractmethod
    def attempts(self, run_id: str) -> list[Attempt]:
        """Attempts of a task, oldest first."""

    @abstractmethod
    def endings(self, reason: str) -> Mapping[str, int]:
        """How many attempts of each running task ended for a reason, by run id; 0 is left out."""

    @abstractmethod
    def heartbeat(self, host: str, samples: Mapping[str, int], now: float) -> None:
        """Vouch for running attempts of a host, and keep their tasks' ``samples``.

        Args:
            host: The agent's host.
            samples: Samples logged so far by the run id of each running task.
            now: The time.
        """

    @abstractmethod
    def mark_tracked(self, run_id: str) -> None:
        """Note that a final task's status has reached the tracking server."""

    @abstractmethod
    def request_cancel(self, run_id: str, by: str, proof: str = "") -> bool:
        """Ask for a task's end; False when it is final already.

        The last request is kept: the one before may be forged, and the agent dismiss it.
        """

    @abstractmethod
    def dismiss_cancel(self, task: Task) -> None:
        """Take back the request that this task shows, unless it is final or was asked another."""

    @abstractmethod
    def prioritize(self, run_id: str, priority: int, proof: str = "") -> bool:
        """Change the priority of a task that is not final; False when it is."""

    @abstractmethod
    def retry(self, run_id: str, now: float, proofs: Mapping[str, str] | None = None) -> bool:
        """Queue a failed or killed task again, with fresh budgets; False for any other.

        ``proofs`` replace those of before by what they prove; that of its cancellation goes.
        """

    @abstractmethod
    def replace_proof(self, task: Task, what: str, proof: str) -> None:
        """Replace a proof of a task; not where it is final, or that proof is another by now."""

    @abstractmethod
    def running_attempts(self, host: str) -> list[Attempt]:
        """Attempts of a host that have not ended."""

    @abstractmethod
    def tell_outlooks(self, host: str, outlooks: Mapping[str, Outlook]) -> None:
        """Let other agents know of attempts of a host that have not ended, by run id."""

    @abstractmethod
    def ask_way(self, run_id: str, attempt: int, way_for: str, now: float) -> bool:
        """Ask that a running attempt makes way for a run; False when that was asked already."""

    @abstractmethod
    def register_agent(self, record: AgentRecord, now: float) -> None:
        """Add or renew the agent of ``record.host`` and ``record.user``."""

    @abstractmethod
    def unregister_agent(self, host: str, user: str) -> None:
        """Forget an agent that ends."""

    @abstractmethod
    def agents(self) -> list[AgentRecord]:
        """Agents that did not say good-bye."""

    @abstractmethod
    def quarantine(self, item: Quarantine) -> None:
        """Add or replace the quarantine of a device."""

    @abstractmethod
    def end_quarantine(self, host: str, device: str) -> None:
        """Offer a device again."""

    @abstractmethod
    def quarantined(self, host: str | None = None) -> list[Quarantine]:
        """Quarantines on record, past ones too (their ``failures`` still count)."""

    @abstractmethod
    def add_transitions(self, transitions: Sequence[Transition]) -> None:
        """Keep transitions; one that is there already is left as it is.

        Beyond ``KEPT_TRANSITIONS`` the oldest go.
        """

    @abstractmethod
    def transitions(
        self, run_id: str | None = None, after: int = 0, limit: int | None = None
    ) -> list[tuple[int, Transition]]:
        """Transitions with their growing serial number, those after ``after`` only."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections."""
