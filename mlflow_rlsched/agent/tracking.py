"""The one thread per agent that talks to tracking servers.

The loop only puts messages into a queue. The thread writes them to the durable outbox, then
delivers them in order, run by run; while a server is down its runs wait there, and the runs of
other servers go on. A message repeated after a crash has the same key, step and time stamp, so a
replay changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.abandoned import end_abandoned
from mlflow_rlsched.agent.outbox import Message, Outbox
from mlflow_rlsched.store import Store, StoreError, Task

_logger = logging.getLogger(__name__)

MAX_BATCH = 1000
"""Metrics in one call: the limit of MLflow's stores."""

MAX_OUTPUT_BYTES = 32 * 1024 * 1024
"""Size of an attempt's output in the artifact; the run directory keeps all of it."""

FLUSH_S = 30.0
POLL_S = 30.0
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_PERMANENT = frozenset(
    {
        "RESOURCE_DOES_NOT_EXIST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "BAD_REQUEST",
        "NOT_FOUND",
        "ENDPOINT_NOT_FOUND",
        "MALFORMED_REQUEST",
    }
)
# One slow server must not hold up the runs of the others.
_HTTP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


@dataclass
class _Server:
    """A tracking server that failed: when to try again."""

    failures: int = 0
    retry_at: float = 0.0


class Tracker(threading.Thread):
    """Delivers what the loop wants tracking servers to know.

    Args:
        store: To learn a run's tracking URI, and to mark final statuses as tracked.
        outbox: Where messages wait.

    Attributes:
        latest: Last metrics by run id, of the runs named to ``watch``.
        gone: Runs that the tracking server does not have (any more).
    """

    def __init__(self, store: Store, outbox: Outbox) -> None:
        super().__init__(name="tracker", daemon=True)
        self.latest: dict[str, dict[str, float]] = {}
        self.gone: set[str] = set()
        self._store = store
        self._outbox = outbox
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._unsaved: list[Message] = []
        self._wake = threading.Event()
        self._stop_at: float | None = None
        self._urgent = False
        self._watched: frozenset[str] = frozenset()
        self._servers: dict[str, _Server] = {}
        self._clients: dict[str, Any] = {}

    def put(self, run_id: str, kind: str, body: Any) -> None:
        """Tell the tracking server something about a run; never blocks (see ``Message``)."""
        self._queue.put(Message(run_id, kind, body))
        if kind != "metrics":
            self._urgent = True
            self._wake.set()

    def watch(self, run_ids: Iterable[str]) -> None:
        """Keep ``latest`` up to date for these runs: trainings that do not report to us."""
        self._watched = frozenset(run_ids)

    def stop(self, within_s: float) -> None:
        """Deliver what can be delivered in this time; the rest stays in the outbox."""
        self._stop_at = time.monotonic() + within_s
        self._wake.set()
        self.join(within_s + 15)

    def run(self) -> None:
        """Save, deliver, poll, until stopped."""
        os.environ.update(_HTTP)
        flush_at = poll_at = 0.0
        while True:
            self._wake.wait(0.5 if self._servers else 2.0)
            self._wake.clear()
            stopping = self._stop_at is not None
            now = time.monotonic()
            urgent, self._urgent = self._urgent, False
            self._save()
            retrying = any(s.failures and s.retry_at <= now for s in self._servers.values())
            if urgent or stopping or retrying or now >= flush_at:
                self._deliver_all()
                flush_at = now + FLUSH_S
            if now >= poll_at and not stopping:
                self._poll()
                poll_at = now + POLL_S
            if stopping:
                return

    def _save(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._unsaved.append(self._queue.get_nowait())
        try:
            self._outbox.put(self._unsaved)
            self._unsaved = []
        except Exception:  # a full disk, say: kept in memory and tried again
            _logger.exception("The outbox cannot be written; %d messages wait", len(self._unsaved))

    def _deliver_all(self) -> None:
        for run_id in self._outbox.runs():
            if self._stop_at is not None and time.monotonic() > self._stop_at:
                return
            try:
                self._deliver(run_id)
            except StoreError as error:
                _logger.warning("%s", error)
                return

    def _deliver(self, run_id: str) -> None:
        """Deliver a run's messages in order, as far as its server takes them."""
        task = self._store.get(run_id)
        if task is None:
            _logger.warning("run %s is not in the store: its messages are dropped", run_id)
            self._outbox.delivered(self._outbox.of(run_id))
            return
        environment = _environment(task)
        uri = environment.get("MLFLOW_TRACKING_URI", task.spec.tracking_uri)
        server = self._servers.setdefault(uri, _Server())
        if server.failures and time.monotonic() < server.retry_at and self._stop_at is None:
            return
        while messages := _batch(self._outbox.of(run_id)):
            try:
                with _acting_for(environment):
                    self._send(self._client(uri), run_id, messages)
            except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
                if not self._refused(run_id, error):
                    self._back_off(uri, server, error)
                    return
                _logger.warning(
                    "run %s: the tracking server refuses %d message(s) for good: %s",
                    run_id,
                    len(messages),
                    error,
                )
            server.failures = 0
            if messages[-1].kind == "final":
                self._store.mark_tracked(run_id)
            self._outbox.delivered(messages)

    def _refused(self, run_id: str, error: Exception) -> bool:
        """Whether to send the same again would be refused again."""
        code = getattr(error, "error_code", None)
        if code not in _PERMANENT:
            return False
        text = str(error)
        if code == "RESOURCE_DOES_NOT_EXIST" or "'active'" in text or "deleted" in text:
            self.gone.add(run_id)
        return True

    def _back_off(self, uri: str, server: _Server, error: Exception) -> None:
        if server.failures == 0:
            _logger.warning("the tracking server %s does not answer: %s", _redacted(uri), error)
        delay = _BACKOFF_S[min(server.failures, len(_BACKOFF_S) - 1)]
        server.failures += 1
        server.retry_at = time.monotonic() + delay

    def _client(self, uri: str) -> Any:
        if uri not in self._clients:
            from mlflow import MlflowClient

            self._clients[uri] = MlflowClient(tracking_uri=uri)
        return self._clients[uri]

    def _send(self, client: Any, run_id: str, messages: list[Message]) -> None:
        from mlflow.entities import Metric, RunTag

        if messages[0].kind in ("metrics", "tags"):
            metrics = [Metric(*point) for m in messages if m.kind == "metrics" for point in m.body]
            tags: dict[str, str] = {}
            for message in messages:
                if message.kind == "tags":
                    tags.update(message.body)
            client.log_batch(run_id, metrics=metrics, tags=[RunTag(*t) for t in tags.items()])
            return
        body = messages[0].body
        if messages[0].kind == "status":
            client.update_run(body["of"], status=body["status"])
            return
        task = self._store.get(run_id)
        if task is not None:
            _upload(client, run_id, Path(task.spec.run_dir))
        client.log_batch(run_id, tags=[RunTag(*tag) for tag in body["tags"].items()])
        for other in [*body["also"], run_id]:
            client.set_terminated(other, body["status"], body["end_time_ms"])

    def _client_for(self, environment: Mapping[str, str]) -> Any:
        return self._client(environment["MLFLOW_TRACKING_URI"])

    def _poll(self) -> None:
        """Read the last metrics of the watched runs; end what submitters left behind."""
        end_abandoned(self._store, self._client_for)
        for run_id in self._watched:
            task = self._store.get(run_id)
            if task is None:
                continue
            environment = _environment(task)
            uri = environment.get("MLFLOW_TRACKING_URI", task.spec.tracking_uri)
            if self._servers.setdefault(uri, _Server()).failures:
                continue
            try:
                with _acting_for(environment):
                    run = self._client(uri).get_run(run_id)
            except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
                if not self._refused(run_id, error):
                    self._back_off(uri, self._servers[uri], error)
                continue
            if run.info.lifecycle_stage == "deleted":
                self.gone.add(run_id)
            self.latest[run_id] = dict(run.data.metrics)


def _batch(messages: list[Message]) -> list[Message]:
    """The first messages that go into one call: metrics and tags together, others alone."""
    batch: list[Message] = []
    points = 0
    for message in messages:
        if message.kind not in ("metrics", "tags"):
            return batch or [message]
        points += len(message.body) if message.kind == "metrics" else 0
        if batch and points > MAX_BATCH:
            break
        batch.append(message)
    return batch


def _environment(task: Task) -> Mapping[str, str]:
    return protocol.read_json(Path(task.spec.run_dir) / "environment.json") or {}


@contextlib.contextmanager
def _acting_for(environment: Mapping[str, str]) -> Iterator[None]:
    """Use the submitter's credentials (only this thread reads them from the environment)."""
    own = dict(os.environ)
    os.environ.update({k: str(v) for k, v in environment.items() if _is_credential(k)})
    try:
        yield
    finally:
        for name in set(os.environ) - set(own):
            del os.environ[name]
        os.environ.update(own)


def _is_credential(name: str) -> bool:
    return name not in _HTTP and name.startswith(
        ("MLFLOW_TRACKING_", "MLFLOW_S3_", "AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_")
    )


def _redacted(uri: str) -> str:
    head, at, tail = uri.rpartition("@")
    return head.partition("://")[0] + "://…@" + tail if at else uri


def _upload(client: Any, run_id: str, run_dir: Path) -> None:
    """Upload the run's files; what cannot be uploaded never holds up its status."""
    try:
        _collect_output(run_dir)
        for name in ("output.log", "decisions.jsonl"):
            if (run_dir / name).exists():
                client.log_artifact(run_id, str(run_dir / name), "rlsched")
    except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
        _logger.warning("run %s: cannot upload its output: %s", run_id, error)


def _collect_output(run_dir: Path) -> None:
    """Put the output of all attempts into one file, the middle left out when it is huge."""
    attempts = sorted(
        (run_dir / "attempts").glob("*/output.log"), key=lambda path: int(path.parent.name)
    )
    with open(run_dir / "output.log", "wb") as whole:
        for path in attempts:
            if len(attempts) > 1:
                whole.write(f"=== attempt {path.parent.name} ===\n".encode())
            with open(path, "rb") as part:
                size = part.seek(0, os.SEEK_END)
                part.seek(0)
                if size > MAX_OUTPUT_BYTES:
                    whole.write(part.read(MAX_OUTPUT_BYTES // 2))
                    whole.write(b"\n[... left out; the whole is in the run directory ...]\n")
                    part.seek(-MAX_OUTPUT_BYTES // 2, os.SEEK_END)
                shutil.copyfileobj(part, whole)
