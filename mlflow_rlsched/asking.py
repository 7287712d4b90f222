"""Asking a tracking server, which may be silent or absent."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched import decision_log

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = "rlsched"
"""Folder of a run's artifacts that are ours."""

DECISIONS = f"{ARTIFACTS}/{decision_log.NAME}"

SERVER_WAIT_S = 20.0
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def ask_server(action: Callable[[], object]) -> str | None:
    """Ask something of a tracking server, which may be silent.

    Returns:
        What went wrong, None when the action ended well within ``SERVER_WAIT_S``.
    """
    for name, text in _IMPATIENT.items():
        os.environ.setdefault(name, text)
    outcome: list[str | None] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # any failure is a finding
            lines = str(error).strip().splitlines() or [type(error).__name__]
            outcome.append(lines[0][:300])
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SERVER_WAIT_S)
    return outcome[0] if outcome else f"no answer within {SERVER_WAIT_S:g} s"


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Give a server seconds to answer, where MLflow goes on trying for minutes.

    One thread at a time: MLflow reads this from the environment, which a process has once.
    """
    added = {name: text for name, text in _IMPATIENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def tracking_store_is_there(uri: str) -> bool:
    """False where asking would make a tracking database."""
    file = uri.removeprefix("sqlite:///")
    return file == uri or Path(file).exists()


def decisions_of(client: MlflowClient, run_id: str) -> list[dict[str, Any]] | None:
    """The whole decisions on a run as its artifact has them; None where there is none (yet).

    Args:
        client: Of the tracking server.
        run_id: The run.

    Raises:
        Exception: What MLflow's stores raise, of any kind.
    """
    if all(each.path != DECISIONS for each in client.list_artifacts(run_id, ARTIFACTS)):
        return None
    # MLflow shows its progress, where tqdm is installed: of a file of kilobytes.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with tempfile.TemporaryDirectory() as folder:
        file = client.download_artifacts(run_id, DECISIONS, folder)
        return list(decision_log.read(Path(file).parent))
