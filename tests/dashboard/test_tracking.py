"""What MLflow has: read once, then only what is new."""

from __future__ import annotations

import math
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow.entities import Metric

from rlsched_dashboard.sources import tracking as module
from rlsched_dashboard.sources.tracking import RunGone, Tracking
from tests.tracking_server import TrackingServer
from tests.world import make_tracking_database


@pytest.fixture
def uri(tmp_path: Path) -> str:
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/artifacts")
    return f"sqlite:///{tmp_path}/mlflow.db"


def run_of(client: mlflow.MlflowClient, state: str = "running", **more: str) -> str:
    tags = {"rlsched.state": state, "mlflow.runName": "a run", **more}
    return str(client.create_run("0", tags=tags).info.run_id)


def log(client: mlflow.MlflowClient, run_id: str, first: int, values: list[float]) -> None:
    """A point a second; several share a time."""
    points = [
        Metric("loss", value, 1_700_000_000_000 + 1000 * ((first + i) // 2), first + i)
        for i, value in enumerate(values)
    ]
    client.log_batch(run_id, metrics=points)


def check_history_grows(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    client, tracking = mlflow.MlflowClient(uri), Tracking(uri)
    run_id = run_of(client)
    log(client, run_id, 0, [3.0, math.nan, 2.0])
    assert tracking.history(run_id, "loss").steps.tolist() == [0, 1, 2]
    log(client, run_id, 3, [1.5, math.inf, 1.0])
    history = tracking.history(run_id, "loss")
    assert history.steps.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(history.values, [3.0, math.nan, 2.0, 1.5, math.inf, 1.0])
    assert (np.diff(history.times) >= 0).all()
    assert len(tracking.history(run_id, "absent")) == 0


def test_a_history_in_a_database_grows(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_history_grows(uri, monkeypatch)


def test_a_history_on_a_server_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = TrackingServer(tmp_path / "server")
    server.start()
    try:
        check_history_grows(server.uri, monkeypatch)
    finally:
        server.kill()


def test_runs_come_change_and_go(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    client, tracking = mlflow.MlflowClient(uri), Tracking(uri)
    first = run_of(client)
    client.create_run("0")  # not one of the scheduler's
    assert [run.run_id for run in tracking.runs()] == [first]
    second = run_of(client)
    client.set_terminated(first, "FINISHED")
    assert {run.run_id: run.status for run in tracking.runs()} == {
        first: "FINISHED",
        second: "RUNNING",
    }
    client.delete_run(second)
    assert [run.run_id for run in tracking.runs()] == [first]
    with pytest.raises(RunGone):
        tracking.run(second)
