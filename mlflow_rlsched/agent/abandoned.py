"""Submissions whose process died before the task was queued."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.credentials import acting_for, redacted
from mlflow_rlsched.daemon import submissions_dir
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.store import Store, open_store

_logger = logging.getLogger(__name__)


def end_abandoned(client_for: Callable[[str], Any]) -> None:
    """End the MLflow runs of dead submissions, and remove the files that these had prepared.

    Submissions to any store: the one that is on record says whether the task arrived after all.
    What cannot be reached is tried next time.

    Args:
        client_for: The ``MlflowClient`` of a tracking URI.
    """
    for record in sorted(submissions_dir().glob("*.json")):
        lock = FileLock(record.with_suffix(".lock"))
        if not lock.acquire():
            continue  # that submission lives
        value = protocol.read_json(record)
        try:
            if value is not None and "store" in value:  # else no run can have been made
                with (
                    closing(open_store(value["store"])) as store,
                    acting_for(value["environment"]),
                ):
                    client = client_for(value["environment"]["MLFLOW_TRACKING_URI"])
                    _end(store, client, value["experiment_id"], record.stem)
            shutil.rmtree(record.with_suffix(""), ignore_errors=True)
            record.unlink(missing_ok=True)
            lock.path.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
            _logger.warning(
                "the abandoned submission %s has to wait: %s", record.stem, redacted(error)
            )
        finally:
            lock.release()


def _end(store: Store, client: Any, experiment_id: str, submission: str) -> None:
    query = f"tags.`rlsched.submission` = '{submission}'"
    for run in client.search_runs([experiment_id], query):
        run_id = run.info.run_id
        task = store.get(run_id)
        # The task of a run that was to be resumed is there, and over since long.
        absent = task is None or (task.state.final and task.tracked)
        if absent and run.info.status in ("SCHEDULED", "RUNNING"):
            client.set_tag(run_id, "rlsched.exit_reason", "submission_failed")
            client.set_tag(run_id, "rlsched.message", "the submitting process was killed")
            client.set_terminated(run_id, "FAILED")
            if task is None:
                shutil.rmtree(submissions_dir().parent / "runs" / run_id, ignore_errors=True)
            _logger.info("run %s: its submission was killed; FAILED", run_id)
