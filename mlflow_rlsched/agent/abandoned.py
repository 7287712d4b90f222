"""Submissions whose process died between making an MLflow run and queueing its task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.daemon import submissions_dir
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.store import Store

_logger = logging.getLogger(__name__)


def end_abandoned(store: Store, client_for: Callable[[Mapping[str, str]], Any]) -> None:
    """End the MLflow runs of dead submissions; what cannot be reached is tried next time.

    Args:
        store: To see whether the task arrived after all.
        client_for: Makes an ``MlflowClient`` from a submitter's environment.
    """
    for record in sorted(submissions_dir().glob("*.json")):
        lock = FileLock(record.with_suffix(".lock"))
        if not lock.acquire():
            continue  # that submission lives
        value = protocol.read_json(record)
        try:
            if value is not None:
                _end(store, client_for(value["environment"]), value["experiment_id"], record.stem)
            record.unlink(missing_ok=True)
            lock.path.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
            _logger.warning("the abandoned submission %s has to wait: %s", record.stem, error)
        finally:
            lock.release()


def _end(store: Store, client: Any, experiment_id: str, submission: str) -> None:
    query = f"tags.`rlsched.submission` = '{submission}'"
    for run in client.search_runs([experiment_id], query):
        run_id = run.info.run_id
        if store.get(run_id) is None and run.info.end_time is None:
            client.set_tag(run_id, "rlsched.exit_reason", "submission_failed")
            client.set_tag(run_id, "rlsched.message", "the submitting process was killed")
            client.set_terminated(run_id, "FAILED")
            _logger.info("run %s: its submission was killed; FAILED", run_id)
