"""How messages become calls to a tracking server."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_rlsched import decision_log, effective
from mlflow_rlsched.agent.artifacts import upload
from mlflow_rlsched.agent.outbox import Message
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.store import Task

_logger = logging.getLogger(__name__)


def first_call(messages: list[Message], limit: int) -> list[Message]:
    """The first messages that go into one call: metrics and tags together, others alone.

    Artifacts go last, as nothing has to wait for them, and all in one call: it uploads what there
    is by then.

    Args:
        messages: Messages of one run, in order.
        limit: Metrics and tags in the call, unless its first message alone has more.
    """
    messages = sorted(messages, key=lambda message: message.kind == "artifacts")
    call: list[Message] = []
    size = 0
    for message in messages:
        if message.kind == "artifacts":
            return call or messages
        if message.kind not in ("metrics", "tags"):
            return call or [message]
        size += len(message.body)
        if call and size > limit:
            break
        call.append(message)
    return call


def send(client: Any, task: Task, messages: list[Message]) -> list[Message]:
    """Tell a tracking server what ``first_call`` chose.

    Args:
        client: An ``MlflowClient`` of the run's tracking server.
        task: The run's task.
        messages: What to tell.

    Returns:
        What is still to be told, later.

    Raises:
        Exception: What MLflow's stores raise, of any kind.
    """
    from mlflow.entities import Metric

    kind, body = messages[0].kind, messages[0].body
    if kind == "status":
        client.update_run(task.run_id, status=body["status"])
    elif kind == "retries_over":
        _end_retries(client, task, body["attempt"], "FAILED")
    elif kind == "artifacts":
        _upload(client, task)
    elif kind == "final":
        return _send_final(client, task, body)
    else:
        points = [Metric(*point) for m in messages if m.kind == "metrics" for point in m.body]
        tags: dict[str, str] = {}
        for message in messages:
            if message.kind == "tags":
                tags |= message.body
        _log(client, task, points, tags)
    return []


def _log(client: Any, task: Task, metrics: list[Any], tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    entities = [RunTag(*tag) for tag in tags.items()]
    client.log_batch(task.run_id, metrics=metrics, tags=entities, synchronous=True)


def _send_final(client: Any, task: Task, body: Mapping[str, Any]) -> list[Message]:
    """Tell how a run ended, before all that may fail for reasons of its own."""
    _log(client, task, [], body["tags"] | _effective(task))
    client.set_terminated(task.run_id, body["status"], body["end_time_ms"])
    later = []
    try:
        _upload(client, task)
    except Exception as error:  # noqa: BLE001 - artifact stores raise all kinds
        _logger.warning("run %s: its upload is put off: %s", task.run_id, redacted(error))
        later.append(Message(task.run_id, "artifacts", {}))
    if body["attempt"] is not None:
        _end_retries(client, task, body["attempt"], body["status"])
    return later


def _effective(task: Task) -> dict[str, str]:
    """The tag that says what a run trained with, where that is not what was asked for."""
    config, asked = task.spec.config, task.spec.recorded_params
    names = [config.get(key, {}).get("param") for key in ("batch_size", "learning_rate")]
    try:
        records = decision_log.read(Path(task.spec.run_dir))
        found = effective.effective(records, asked, *names)
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        _logger.warning("run %s: its decisions cannot be summed up: %r", task.run_id, error)
        return {}
    return {effective.TAG: json.dumps(found)} if found else {}


def _upload(client: Any, task: Task) -> None:
    run_dir = Path(task.spec.run_dir)
    if run_dir.is_dir():
        upload(client, task.run_id, run_dir)


def _end_retries(client: Any, task: Task, attempt: int, status: str) -> None:
    """End the nested runs of attempts with changed parameters, up to ``attempt``.

    They are searched for: a training that was killed at once could tell nobody of its own.
    """
    query = f"tags.mlflow.parentRunId = '{task.run_id}'"
    for run in client.search_runs([task.spec.experiment_id], query):
        number = int(run.data.tags.get("rlsched.attempt", attempt + 1))
        if number <= attempt and run.info.end_time is None:
            client.set_terminated(run.info.run_id, status if number == attempt else "FAILED")
