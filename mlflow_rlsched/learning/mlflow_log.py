"""What a learning task tells its MLflow run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow import MlflowClient

    from mlflow_rlsched.policy.checkpoint import Version


class Log:
    """Tells a run of MLflow; without one it only prints.

    A tracking server that does not answer is no reason to end: it is said once.

    Args:
        run_id: The run; by default the one that this process is an attempt of.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._run_id = run_id or os.environ.get("MLFLOW_RUN_ID")
        self._client: MlflowClient | None = None
        if self._run_id:
            from mlflow import MlflowClient

            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
            self._client = MlflowClient()

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, flush=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log what is finite."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        known = [Metric(name, v, now, step) for name, v in values.items() if math.isfinite(v)]
        self._tell(lambda client, run_id: client.log_batch(run_id, metrics=known))

    def figures(self, figures: Mapping[str, Any]) -> None:
        """Keep figures as an artifact."""
        self._tell(lambda client, run_id: client.log_dict(run_id, dict(figures), "figures.json"))

    def end(self) -> None:
        """Say that the run is done."""
        self._tell(lambda client, run_id: client.update_run(run_id, "FINISHED"))

    def register(self, version: Version, path: Path) -> None:
        """Register the champion as an MLflow model, where there is a registry."""
        from mlflow_rlsched.registry import register

        self._tell(lambda client, _: register(client, version, path))

    def _tell(self, action: Callable[[MlflowClient, str], Any]) -> None:
        if self._client is None or self._run_id is None:
            return
        try:
            action(self._client, self._run_id)
        except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
            self.say(f"MLflow is not told: {error}")
            self._client = None
