from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import Metric, Param, RunTag

from tests.world import make_tracking_database

pytest.importorskip("optuna")
from optuna.distributions import FloatDistribution, IntDistribution

SPACE = {
    "lr": FloatDistribution(1e-4, 1.0, log=True),
    "batch_size": IntDistribution(16, 512, log=True),
}

PastRun = Callable[..., str]


@pytest.fixture
def client(tmp_path: Path) -> mlflow.MlflowClient:
    """A tracking database without runs."""
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/mlruns/0")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient(uri)


@pytest.fixture
def past_run(client: mlflow.MlflowClient) -> PastRun:
    """Makes a run of the default experiment that is over; its id."""

    def make(
        values: float | list[float] | None = 0.5,
        status: str = "FINISHED",
        tags: Mapping[str, str] | None = None,
        experiment_id: str = "0",
        **params: Any,
    ) -> str:
        run_id: str = client.create_run(experiment_id).info.run_id
        given = {"lr": "0.01", "batch_size": "64"} | params
        curve = values if isinstance(values, list) else [] if values is None else [values]
        client.log_batch(
            run_id,
            metrics=[Metric("val_loss", value, 1000 + n, n) for n, value in enumerate(curve)],
            params=[Param(name, str(text)) for name, text in given.items() if text is not None],
            tags=[RunTag(*tag) for tag in (tags or {}).items()],
        )
        if status != "RUNNING":
            client.set_terminated(run_id, status)
        return run_id

    return make
