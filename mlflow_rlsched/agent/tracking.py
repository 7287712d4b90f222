"""The one thread per agent that talks to tracking servers.

The loop only puts messages into a queue. The thread writes them to the durable outbox, then
delivers them: those of a run in order, one call a run in turn, so that neither a long backlog nor
a server that is down delays other runs. A message repeated after a crash has the same key, step
and time stamp, so a replay changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.abandoned import end_abandoned
from mlflow_rlsched.agent.outbox import Message, Outbox
from mlflow_rlsched.agent.sending import first_call, send
from mlflow_rlsched.credentials import acting_for, redacted
from mlflow_rlsched.store import State, Store, StoreError, Task

_logger = logging.getLogger(__name__)

MAX_BATCH = 1000
"""Metrics and tags in one call: the limit of MLflow's stores."""

FLUSH_S = 60.0
POLL_S = 30.0
TICK_S = 1.0
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)

PATIENCE_S = 120.0
"""How long a message may fail on a server that takes others, until it is dropped."""

ARTIFACT_PATIENCE_S = 3600.0
"""The same for artifacts, which are in a store of their own and stay in the run directory."""

ABSENCE_PATIENCE_S = 7 * 86400.0
"""The same, after its end, for a run that its tracking server does not know."""

# One request must not hold up other servers for long, and what fails is tried again by us.
_HTTP = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "INVALID_STATE"})


@dataclass
class _Backoff:
    """A server or a run that failed: since when, how often, and when to try again."""

    since: float
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True)
class Delivery:
    """A run, its tracking URI and its submitter's environment."""

    task: Task
    uri: str
    environment: Mapping[str, Any]

    @classmethod
    def of(cls, task: Task) -> Delivery:
        """What the run directory of a task says."""
        environment = protocol.read_json(Path(task.spec.run_dir) / "environment.json") or {}
        uri = environment.get("MLFLOW_TRACKING_URI", task.spec.tracking_uri)
        return cls(task, uri, environment)


class Tracker(threading.Thread):
    """Delivers what the loop wants tracking servers to know.

    Args:
        store: To learn a run's tracking URI, and to mark final statuses as tracked.
        outbox: Where messages wait.

    Attributes:
        latest: Last finite metrics by run id, of the runs named to ``watch``.
        gone: Runs that were deleted in their tracking server.
    """

    def __init__(self, store: Store, outbox: Outbox) -> None:
        super().__init__(name="tracker", daemon=True)
        self.latest: dict[str, dict[str, float]] = {}
        self.gone: set[str] = set()
        self._store = store
        self._outbox = outbox
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._unsaved: list[Message] = []
        self._cannot_save = False
        self._urgent = threading.Event()
        self._stop_at: float | None = None
        self._watched: frozenset[str] = frozenset()
        self._backoffs: dict[str, _Backoff] = {}
        self._clients: dict[str, Any] = {}

    def put(self, run_id: str, kind: str, body: Any) -> None:
        """Tell the tracking server something about a run; never blocks (see ``Message``)."""
        self._queue.put(Message(run_id, kind, body))
        if kind != "metrics":
            self._urgent.set()

    def watch(self, run_ids: Iterable[str]) -> None:
        """Keep ``latest`` up to date for these runs: trainings that do not report to us."""
        self._watched = frozenset(run_ids)

    def is_idle(self) -> bool:
        """Whether nothing is left to be told (False too when that cannot be found out)."""
        try:
            return self._queue.empty() and not self._unsaved and not self._outbox.runs()
        except OperationalError:
            return False

    def stop(self, within_s: float) -> None:
        """Deliver what can be delivered in this time; the rest stays in the outbox."""
        self._stop_at = time.monotonic() + within_s
        self._urgent.set()
        self.join(within_s + 15)

    def run(self) -> None:
        """Save, deliver, poll, until stopped."""
        os.environ.update(_HTTP)
        more = False
        deliver_at = poll_at = 0.0
        while True:
            urgent = self._urgent.wait(0 if more else TICK_S)
            self._urgent.clear()
            stopping = self._stop_at
            now = time.monotonic()
            due, more = more or urgent or now >= deliver_at, False
            try:
                if not self._save():
                    deliver_at = now
                elif due:
                    deliver_at = now + FLUSH_S
                    more = self._deliver_all()
                    deliver_at = min([deliver_at, *self._retries_after(now)])
                if now >= poll_at and stopping is None:
                    poll_at = now + POLL_S
                    self._poll()
            except StoreError as error:
                _logger.warning("%s", error)
            except Exception:  # without this thread no run's status would ever be told
                _logger.exception("Telling tracking servers failed; trying again")
            if stopping is not None and (not more or time.monotonic() > stopping):
                return

    def _save(self) -> bool:
        """Write what was put to the outbox; what cannot be written waits in memory."""
        while not self._queue.empty():
            self._unsaved.append(self._queue.get())
        try:
            self._outbox.put(self._unsaved)
        except OperationalError as error:
            if not self._cannot_save:
                _logger.warning("the outbox cannot be written, messages wait: %s", error.orig)
            self._cannot_save = True
            return False
        self._unsaved = []
        self._cannot_save = False
        return True

    def _retries_after(self, now: float) -> list[float]:
        return [b.retry_at for b in self._backoffs.values() if b.retry_at > now]

    def _deliver_all(self) -> bool:
        """One call for each run; whether there may be more to deliver at once."""
        more = False
        for delivery in self._deliveries():
            if self._stop_at is not None and time.monotonic() > self._stop_at:
                return False
            more |= self._deliver(delivery)
        return more

    def _deliveries(self) -> list[Delivery]:
        """Runs of which something is to be told, those of silent servers last."""
        deliveries = []
        for run_id in self._outbox.runs():
            task = self._store.get(run_id)
            if task is None:
                _logger.warning("run %s is not in the store: its messages are dropped", run_id)
                self._outbox.forget(run_id)
            else:
                deliveries.append(Delivery.of(task))
        return sorted(deliveries, key=lambda delivery: delivery.uri in self._backoffs)

    def _deliver(self, delivery: Delivery) -> bool:
        """The next call for a run; whether another one may follow at once."""
        task, uri = delivery.task, delivery.uri
        backoffs = [self._backoffs[key] for key in (uri, task.run_id) if key in self._backoffs]
        if any(time.monotonic() < backoff.retry_at for backoff in backoffs):
            return False
        # Smaller and smaller calls find the message that is refused, and suit a slow server.
        failures = max((backoff.failures for backoff in backoffs), default=0)
        messages = first_call(self._outbox.of(task.run_id), MAX_BATCH >> failures)
        if not messages:
            return False
        with acting_for(delivery.environment):
            try:
                later = send(self._client(uri), task, messages)
            except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
                return self._failed(task, uri, messages, error)
        self._backoffs.pop(task.run_id, None)
        if self._backoffs.pop(uri, None) is not None:
            _logger.info("the tracking server %s answers again", redacted(uri))
        self._outbox.put(later)
        self._delivered(task.run_id, messages)
        if messages[-1].kind in ("final", "artifacts"):
            self._forget_credentials(task.run_id)
        return True

    def _delivered(self, run_id: str, messages: list[Message]) -> None:
        if messages[-1].kind == "final":
            self._store.mark_tracked(run_id)
            self.gone.discard(run_id)
        self._outbox.delivered(messages)

    def _forget_credentials(self, run_id: str) -> None:
        """Remove the credentials of a run that finished well, once nothing is left to tell."""
        task = self._store.get(run_id)
        if (
            task is None
            or task.state is not State.FINISHED
            or not task.tracked
            or self._outbox.of(run_id, 1)
        ):
            return
        for name in ("environment.json", "docker_auth.json"):
            path = Path(task.spec.run_dir) / name
            with contextlib.suppress(OSError):  # the folder may be gone
                # A newer one belongs to a submission that is just about to resume the run.
                if path.stat().st_mtime < (task.ended_at or 0.0):
                    path.unlink()

    def _failed(self, task: Task, uri: str, messages: list[Message], error: Exception) -> bool:
        """Back off, or drop what will never be taken; whether to go on at once."""
        run_id, first = task.run_id, messages[0]
        # An artifact store may be silent although the tracking server is not.
        if _is_unreachable(error) and first.kind != "artifacts":
            self._server_failed(uri, error)
            return False
        refused = getattr(error, "error_code", None) in _REFUSALS
        alone = len(messages) == 1
        backoff = self._back_off(run_id, f"run {run_id}: cannot deliver", error)
        try:
            client = self._client(uri)
            drop = self._run(client, run_id) is None or (
                alone and (refused or _is_hopeless(client, run_id, first, backoff))
            )
        except Exception as trouble:  # noqa: BLE001 - MLflow's stores raise all kinds
            if _is_unreachable(trouble):
                self._server_failed(uri, trouble)
            if not _is_lost(task, trouble):
                return False
            drop = True
        if drop:
            kinds = ", ".join(sorted({message.kind for message in messages}))
            text = "run %s: %d message(s) (%s) are dropped, since they were refused: %s"
            _logger.warning(text, run_id, len(messages), kinds, redacted(error))
            del self._backoffs[run_id]
            self._delivered(run_id, messages)
        elif refused:
            backoff.retry_at = 0.0
        return drop or refused

    def _server_failed(self, uri: str, error: Exception) -> None:
        self._back_off(uri, f"the tracking server {redacted(uri)} does not answer", error)

    def _back_off(self, key: str, what: str, error: Exception) -> _Backoff:
        now = time.monotonic()
        if key not in self._backoffs:
            _logger.warning("%s: %s", what, redacted(error))
        backoff = self._backoffs.setdefault(key, _Backoff(since=now))
        delay = BACKOFF_S[min(backoff.failures, len(BACKOFF_S) - 1)]
        backoff.failures += 1
        backoff.retry_at = now + delay
        return backoff

    def _client(self, uri: str) -> Any:
        if uri not in self._clients:
            from mlflow import MlflowClient

            self._clients[uri] = MlflowClient(tracking_uri=uri)
        return self._clients[uri]

    def _run(self, client: Any, run_id: str) -> Any:
        """The run as its tracking server has it; None, and ``gone``, when it was deleted.

        A server that does not know the run says nothing of it: it may have been started with
        another database, and nobody's training shall end for that.
        """
        run = client.get_run(run_id)
        if run.info.lifecycle_stage == "deleted":
            self.gone.add(run_id)
            return None
        return run

    def _poll(self) -> None:
        """Read the last metrics of the watched runs; end what submitters left behind."""
        end_abandoned(self._client)
        for run_id in self._watched:
            task = self._store.get(run_id)
            if task is None:
                continue
            watched = Delivery.of(task)
            uri = watched.uri
            if uri in self._backoffs:
                continue
            try:
                with acting_for(watched.environment):
                    run = self._run(self._client(uri), run_id)
            except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
                if _is_unreachable(error):
                    self._server_failed(uri, error)
                continue
            if run is not None:
                # MLflow stores an infinite value as the largest one.
                known = run.data.metrics.items()
                finite = {k: v for k, v in known if abs(v) < sys.float_info.max}
                self.latest[run_id] = finite


def _is_hopeless(client: Any, run_id: str, message: Message, backoff: _Backoff) -> bool:
    """Whether a message fails for too long on a server that takes another one."""
    patience = ARTIFACT_PATIENCE_S if message.kind == "artifacts" else PATIENCE_S
    if time.monotonic() < backoff.since + patience:
        return False
    client.set_tag(run_id, "mlflow.project.backend", "rlsched")
    return True


def _is_lost(task: Task, error: Exception) -> bool:
    """Whether a run that ended long ago is still unknown to its tracking server."""
    absent = getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"
    return absent and time.time() > (task.ended_at or math.inf) + ABSENCE_PATIENCE_S


def _is_unreachable(error: BaseException | None) -> bool:
    """Whether it was the server that did not answer, whatever it was asked."""
    import requests

    silence = (requests.ConnectionError, requests.Timeout, OperationalError)
    while error is not None:
        if isinstance(error, silence):
            return True
        error = error.__cause__ or error.__context__
    return False
