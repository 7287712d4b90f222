"""The example projects are ordinary MLflow projects: no scheduler is needed to run them."""

from __future__ import annotations

import mlflow
import pytest

from tests.world import PROJECTS


@pytest.mark.parametrize(
    ("project", "entry_point", "parameters", "metrics"),
    [
        ("digits", "main", {"epochs": 1, "width": 4}, {"loss", "val_loss", "val_accuracy"}),
        ("language", "main", {"sequences": 64, "width": 8}, {"loss", "val_loss"}),
        ("plain_sklearn", "main", {"epochs": 2, "hidden": 8}, {"test_accuracy"}),
        ("faulty", "main", {}, set()),
        ("faulty", "count", {"steps": 2, "step_s": 0}, set()),
        ("faulty", "script", {"steps": 2, "step_s": 0}, set()),
    ],
    ids=["digits", "language", "plain_sklearn", "faulty main", "faulty count", "faulty script"],
)
def test_a_project_runs_under_the_local_backend(
    project: str,
    entry_point: str,
    parameters: dict[str, float],
    metrics: set[str],
    tracking: mlflow.MlflowClient,
) -> None:
    submitted = mlflow.projects.run(
        str(PROJECTS / project),
        entry_point,
        parameters=parameters,
        backend="local",
        env_manager="local",
    )
    found = tracking.get_run(submitted.run_id)
    assert found.info.status == "FINISHED"
    assert metrics <= set(found.data.metrics)
