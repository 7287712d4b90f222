"""What the agent believes of a store that others can write too.

In one's own store, which only its user can write, everything is believed. In a shared one a task
must be signed by the agent's user, and who changed its priority or wants its end must be that user
or an administrator. When a run is over the agent leaves a mark in its directory, so that nobody but
these can let it run once more.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol, trust
from mlflow_rlsched.store import Ending, State, Store, Task

_logger = logging.getLogger(__name__)

FORGED = "forged"
"""Class of the ending of a task that its user did not ask for."""

MARK = "over.json"


class Authority:
    """Checks the tasks of this agent's user.

    Args:
        url: URL of the store.
        store: The store.
        shared: Whether others can write it.
        administrators: Says who may ask something of another's tasks, as of now.
    """

    def __init__(
        self, url: str, store: Store, shared: bool, administrators: Callable[[], Collection[str]]
    ) -> None:
        self._url = url
        self._store = store
        self._shared = shared
        self._believed: dict[str, tuple[object, ...]] = {}
        self._administrators = administrators

    def why_refused(self, task: Task) -> str | None:
        """Why a task that waits or runs is not the user's own wish; None when it is."""
        proofs = task.proofs
        said = (task.spec, task.submitted_at, proofs.get(trust.SPEC), proofs.get(trust.QUEUE))
        if not self._shared or self._believed.get(task.run_id) == said:
            return None
        user = task.spec.user
        if not trust.is_signed_submission(self._url, task):
            return (
                f"{user} did not sign it: somebody else who can write the store made or changed it,"
                " or it is older than the sharing of the store"
            )
        if not is_sound(task):
            return f"somebody other than {user} wrote what cannot be of it into the store"
        was_over = not task.state.final and task.submitted_at <= _over_at(task)
        if was_over or not self._is_queued(task):
            return f"it was over, and neither {user} nor an administrator queued it again"
        if not task.state.final:
            self._believed[task.run_id] = said
        return None

    def refuses(self, task: Task) -> bool:
        """End a task that is not the user's own wish; nobody is told, and no file is touched."""
        why = self.why_refused(task)
        if why is None:
            return False
        _logger.error("run %s is refused: %s", task.run_id, why)
        ending = Ending(State.FAILED, FORGED, why)
        if not self._store.end_queued(task.run_id, ending, time.time()):
            self._store.end_attempt(task.run_id, task.attempt, ending, time.time())
        self._store.mark_tracked(task.run_id)
        return True

    def checked(self, task: Task) -> Task:
        """A task without what nobody asked for who may: its cancellation, its priority."""
        if not self._shared:
            return task
        if task.cancel_by is not None and not self._is_cancelled(task):
            text = "run %s: nobody who may cancel it did, although the store names %s"
            _logger.warning(text, task.run_id, task.cancel_by)
            self._store.dismiss_cancel(task)
        elif self._has_priority(task):
            return task
        else:
            asked = task.spec.config.get("priority", 0)
            text = "run %s: nobody who may set its priority %s did: it is %s again"
            _logger.warning(text, task.run_id, task.priority, asked)
            said = trust.statement(trust.PRIORITY, task.run_id, task.submitted_at, asked)
            self._store.prioritize(task.run_id, asked, trust.sign(self._url, said))
        return self._store.get(task.run_id) or task

    def over(self, task: Task) -> None:
        """Note that a task is over.

        Raises:
            OSError: Its directory cannot be written.
        """
        self._believed.pop(task.run_id, None)
        if self._shared and Path(task.spec.run_dir).is_dir():
            mark = {"queued_at": task.submitted_at}
            protocol.write_json(Path(task.spec.run_dir) / MARK, mark)

    def remove_answered(self) -> None:
        """Remove the requests of administrators that are of no use to anybody any more."""
        if not self._shared:
            return
        try:
            trust.remove_answered(self._url, self._is_over)
        except OSError as error:
            _logger.warning("old administrators' requests stay where they are: %s", error)

    def _is_over(self, run_id: str, queued_at: float) -> bool:
        """Whether a run waits and runs no more, or again, that was queued at that time."""
        task = self._store.get(run_id)
        if task is None or task.submitted_at > queued_at:
            return True
        return task.submitted_at == queued_at and task.state.final

    def _is_cancelled(self, task: Task) -> bool:
        by = [name for name in self._administrators() if name == task.cancel_by]
        return self._is_proven(task, trust.CANCEL, task.cancel_by, by)

    def _is_queued(self, task: Task) -> bool:
        signed = task.proofs.get(trust.SPEC, "")
        return self._is_proven(task, trust.QUEUE, signed, self._administrators())

    def _has_priority(self, task: Task) -> bool:
        return self._is_proven(task, trust.PRIORITY, task.priority, self._administrators())

    def _is_proven(self, task: Task, what: str, value: Any, by: Collection[str]) -> bool:
        """Whether the user, or an administrator of these, says that of a task.

        What an administrator said is signed once it was seen: it holds when its file is gone, and
        when whoever said it administers no more.
        """
        said = trust.statement(what, task.run_id, task.submitted_at, value)
        if trust.is_signed(self._url, said, task.proofs.get(what)):
            return True
        if not trust.is_vouched(self._url, said, by):
            return False
        self._store.replace_proof(task, what, trust.sign(self._url, said))
        return True


def is_sound(task: Task) -> bool:
    """Whether what is told of a task is of the right kind: SQLite keeps what it is given."""
    spec = task.spec
    names = (spec.user, spec.experiment_id, *(spec.device_limit or ()))
    counts = (task.priority, task.attempt, task.retries, task.ooms, task.samples, task.order)
    optional = (task.batch_size, task.gpus)
    return (
        all(isinstance(name, str) for name in names)
        and all(type(value) is int for value in counts)
        and all(value is None or (type(value) is int and value >= 0) for value in optional)
    )


def _over_at(task: Task) -> float:
    """When the turn of a run began that is over; none was never."""
    value = (protocol.read_json(Path(task.spec.run_dir) / MARK) or {}).get("queued_at")
    return value if isinstance(value, float | int) else -math.inf
