"""Specifications of tasks, as the backend would write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlflow_rlsched.store import TaskSpec

_SPEC = TaskSpec(
    run_id="",
    experiment_id="1",
    tracking_uri="http://127.0.0.1:5000",
    user="ada",
    host="here",
    run_dir="",
    project_uri="projects/digits",
    work_dir="/projects/digits",
    entry_point="main",
    params={"lr": "0.1"},
    recorded_params={"lr": "0.1", "batch_size": "64"},
    command="python train.py --lr 0.1 --batch-size 64",
    project_env={"ENV_MANAGER": None},
    docker=False,
    executable="/usr/bin/python3",
    device_limit=None,
    parent_run_id=None,
    parent_attempt_dir=None,
    config={"gpus": {"initial": 1, "min": 1, "max": 1}, "cpu_slots": 1},
    label="quick-fox",
)


def make_spec(run_id: str, **changes: Any) -> TaskSpec:
    """A specification for ``run_id``; ``changes`` are fields of ``TaskSpec``."""
    return replace(_SPEC, **{"run_id": run_id, "run_dir": f"/runs/{run_id}"} | changes)
