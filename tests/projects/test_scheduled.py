"""The example projects under the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_rlsched.store import State
from tests.world import PROJECTS, World


@pytest.mark.parametrize(
    ("project", "parameters", "metrics"),
    [
        ("language", {"sequences": 2048, "width": 16}, {"loss", "val_loss"}),
        ("plain_sklearn", {"epochs": 5, "hidden": 8}, {"test_accuracy", "training_score"}),
    ],
    ids=["cooperating", "knows nothing of us"],
)
def test_a_project_ends_well_with_its_own_metrics(
    world: World, project: str, parameters: dict[str, Any], metrics: set[str]
) -> None:
    run = world.submit(PROJECTS / project, params=parameters)
    task = world.over(run.run_id, 120)
    assert (task.state, task.attempt) == (State.FINISHED, 1)
    told = world.run_of(run.run_id)
    assert told.info.status == "FINISHED"
    assert metrics | {"rlsched/gpus"} <= set(told.data.metrics)
    assert told.data.params.items() >= {k: str(v) for k, v in parameters.items()}.items()
    assert told.data.tags["rlsched.state"] == "finished"
