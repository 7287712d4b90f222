"""What other users' agents of this host run and wait with, as the store that they share tells.

Every agent looks at all tasks and ranks them alike, and starts only those of its own user. The
devices that another user's task may have now are left to its agent for ``CLAIM_S``; then its agent
has shown that it cannot use them, and they go on to the next. An agent that was silent for
``LOST_S`` holds up nobody: its tasks are not waited for, and a device that it leased is free as
soon as no attempt has it locked.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mlflow_rlsched.agent.authority import is_sound
from mlflow_rlsched.agent.configs import Configs
from mlflow_rlsched.agent.forecast import Holding
from mlflow_rlsched.agent.placement import Grant
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.devices.locks import WHOLE
from mlflow_rlsched.store import Attempt, DeviceShare, Lease, Outlook, State, Store, Task

_logger = logging.getLogger(__name__)

LOST_S = 30.0
CLAIM_S = 15.0
IGNORED_S = 60.0
MAKES_WAY_WITHIN_S = 120.0
"""How long an attempt may take to make way for a run; then others are asked."""

_SILENT = Outlook(0, False, False, None, "its agent does not say")


@dataclass(frozen=True)
class Foreign:
    """A running task of another user.

    Attributes:
        task: The task.
        attempt: Its attempt.
        outlook: What can be expected of it.
    """

    task: Task
    attempt: Attempt
    outlook: Outlook

    @property
    def run_id(self) -> str:
        """The MLflow run."""
        return self.task.run_id

    def holding(self, shares: Sequence[DeviceShare]) -> Holding:
        """What it holds, and how long it is expected to."""
        ends_at = self.outlook.ends_at
        left_s = math.inf if ends_at is None else max(0.0, ends_at - time.time())
        return Holding(self.run_id, shares, left_s, self.outlook.basis)


class Others:
    """The other users of a shared store.

    Args:
        store: The store.
        host: This host's name in the store.
        user: Whose agent this is.
        shared: Whether there can be others.
        configs: Configurations of tasks.
        waiting: Remembers what waits.

    Attributes:
        running: What they run.
        waiting: What they wait with: tasks that may start now and whose agents live.
        asked: Run ids of what was asked to make way for a run that still waits.
    """

    def __init__(
        self,
        store: Store,
        host: str,
        user: str,
        shared: bool,
        configs: Configs,
        waiting: Waiting,
    ) -> None:
        self.running: list[Foreign] = []
        self.waiting: list[Task] = []
        self.asked: list[str] = []
        self._store = store
        self._host = host
        self._user = user
        self._shared = shared
        self._configs = configs
        self._waits = waiting
        self._live: set[str] = {user}
        self._known: set[str] = set()
        self._grantable: dict[str, float] = {}
        self._ignored: dict[str, float] = {}

    def look(self, tasks: Sequence[Task]) -> None:
        """See how they stand.

        Args:
            tasks: All tasks of the host that are not over.
        """
        if not self._shared:
            return
        self._look_for_agents()
        attempts = {a.run_id: a for a in self._store.running_attempts(self._host)}
        theirs = [t for t in tasks if t.spec.user != self._user and self._is_usable(t)]
        waits = {task.run_id for task in tasks if task.state is State.QUEUED}
        self.asked = [run_id for run_id, attempt in attempts.items() if attempt.way_for in waits]
        self.running = [
            Foreign(task, attempt, self._outlook(task, attempt, attempt.way_for in waits))
            for task in theirs
            if task.state is State.RUNNING
            and (attempt := attempts.get(task.run_id)) is not None
            and attempt.number == task.attempt
        ]
        queued = (task for task in theirs if task.state is State.QUEUED)
        self.waiting = [task for task in queued if self._may_start(task)]
        known, self._known = self._known, {task.run_id for task in theirs}
        for run_id in known - self._known:
            self._waits.forget(run_id)
            self._configs.forget(run_id)

    def _look_for_agents(self) -> None:
        now = time.time()
        agents = [a for a in self._store.agents() if a.host == self._host]
        self._live = {a.user for a in agents if abs(now - a.heartbeat_at) < LOST_S} | {self._user}

    @property
    def are_there(self) -> bool:
        """Whether an agent of another user lives."""
        return len(self._live) > 1

    def _outlook(self, task: Task, attempt: Attempt, is_asked: bool) -> Outlook:
        told = attempt.outlook or _SILENT
        if task.spec.user not in self._live:
            return replace(told, resumes=False, leaves=False)
        if attempt.way_at is None or not is_asked:
            return told
        in_time = abs(time.time() - attempt.way_at) < MAKES_WAY_WITHIN_S
        return replace(told, resumes=told.resumes and in_time, leaves=in_time)

    def _is_usable(self, task: Task) -> bool:
        try:
            return is_sound(task) and bool(self._configs(task))
        except ValueError as error:  # its own agent tells its user
            _logger.debug("run %s of %s: %s", task.run_id, task.spec.user, error)
            return False

    def _may_start(self, task: Task) -> bool:
        if task.spec.user not in self._live or task.cancel_by is not None:
            return False
        self._waits.see(task, self._configs(task))
        ignored = time.monotonic() < self._ignored.get(task.run_id, 0.0)
        return self._waits.is_ready(task) and not ignored

    def ask(self, task: Task, first: Task) -> None:
        """Ask the agent of another user to have a run make way for one that waits."""
        if self._store.ask_way(task.run_id, task.attempt, first.run_id, time.time()):
            text = "run %s of %s is asked to make way for run %s"
            _logger.info(text, task.run_id, task.spec.user, first.run_id)

    def left_to_them(self, grants: Iterable[Grant]) -> None:
        """Note which of their tasks can start now; those whose agents do not start them pass."""
        now = time.monotonic()
        theirs = [g.task.run_id for g in grants if g.task.spec.user != self._user]
        self._grantable = {run_id: self._grantable.get(run_id, now) for run_id in theirs}
        for run_id, since in self._grantable.items():
            if now - since > CLAIM_S:
                _logger.warning("run %s could start, and its agent does not start it", run_id)
                self._ignored[run_id] = now + IGNORED_S
        self._ignored = {run_id: until for run_id, until in self._ignored.items() if until > now}

    def kept(self, running: Iterable[Task], unlocked: Callable[[str], int]) -> set[tuple[str, int]]:
        """Run id and attempt of those whose leases are not this agent's to end now.

        Args:
            running: All tasks that run on the host.
            unlocked: Hundredths of a device that no attempt has locked.
        """
        known = {task.run_id: task for task in running}
        if not self._shared:
            return {(task.run_id, task.attempt) for task in known.values()}
        self._look_for_agents()
        leases = self._store.leases(self._host)
        found = set()
        for lease in leases:
            task = known.get(lease.run_id) or self._store.get(lease.run_id)
            if task is None:
                continue
            if task.spec.user == self._user:
                keeps = (task.state, task.attempt) == (State.RUNNING, lease.attempt)
            elif task.spec.user in self._live:
                keeps = True
            else:
                keeps = unlocked(lease.share.device) < _rest(lease, leases)
            if keeps:
                found.add((lease.run_id, lease.attempt))
        return found


def _rest(lease: Lease, leases: Iterable[Lease]) -> int:
    """Hundredths of a lease's device that no other lease takes."""
    others = (x for x in leases if x is not lease and x.share.device == lease.share.device)
    return WHOLE - sum(other.share.amount for other in others)
