"""What MLflow has: read once, then only what is new."""

from __future__ import annotations

import math
import time
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow.entities import Metric

from rlsched_dashboard.sources import tracking as module
from rlsched_dashboard.sources.tracking import RunGone, Tracking, TrackingError
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


def test_a_run_that_goes_on_has_not_ended(uri: str) -> None:
    client = mlflow.MlflowClient(uri)
    run = run_of(client)
    client.set_terminated(run)  # as a training does that makes way
    client.update_run(run, "SCHEDULED")
    assert client.get_run(run).info.end_time is not None
    assert Tracking(uri).run(run).ended_at is None


def test_a_refresh_asks_for_the_experiments_once(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    run_of(mlflow.MlflowClient(uri))
    tracking = Tracking(uri)
    tracking.runs()
    asked: list[str] = []
    store = tracking._client._tracking_client.store
    real = store.search_experiments

    def counted(*args: object, **more: object) -> object:
        asked.append("experiments")
        return real(*args, **more)

    monkeypatch.setattr(store, "search_experiments", counted)
    tracking.runs()
    assert asked == ["experiments"]


def test_a_run_that_claims_to_begin_next_year_hides_no_others(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    client, tracking = mlflow.MlflowClient(uri), Tracking(uri)
    tags = {"rlsched.state": "finished"}
    year_ms = 365 * 86_400_000
    ahead = client.create_run("0", start_time=int(time.time() * 1000) + year_ms, tags=tags)
    client.set_terminated(ahead.info.run_id)
    assert len(tracking.runs()) == 1
    done = run_of(client, "finished")
    client.set_terminated(done)
    assert done in {run.run_id for run in tracking.runs()}


def test_looking_for_a_run_makes_no_database(tmp_path: Path) -> None:
    tracking = Tracking(f"sqlite:///{tmp_path}/mlflow.db")
    for look in (tracking.run, tracking.decisions):
        with pytest.raises(RunGone):
            look("a" * 32)
    assert not list(tmp_path.iterdir())


def test_what_is_no_run_says_nothing_of_the_server(uri: str) -> None:
    tracking = Tracking(uri)
    for name in ("", "a" * 32, "../x", "\x00"):
        with pytest.raises(RunGone):
            tracking.run(name)
    assert tracking.runs() == []


def test_artifacts_that_cannot_be_read_say_nothing_of_the_server(uri: str, tmp_path: Path) -> None:
    client, tracking = mlflow.MlflowClient(uri), Tracking(uri)
    experiment = client.create_experiment("elsewhere", artifact_location="unknown://there/x")
    run = client.create_run(experiment, tags={"rlsched.state": "running"})
    with pytest.raises(TrackingError, match="artifacts of run"):
        tracking.decisions(run.info.run_id)
    assert [each.run_id for each in tracking.runs()] == [run.info.run_id]


def test_a_server_that_is_long_away_is_told_at_every_look(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    tracking = Tracking(uri)
    tracking.runs()
    file = Path(uri.removeprefix("sqlite:///"))
    kept = file.read_bytes()
    file.write_bytes(b"no database" * 1000)
    tracking._client._tracking_client.store.engine.dispose()
    monkeypatch.setattr(module, "WHOLE_S", -1.0)  # all runs are to be read again, in vain
    for _ in range(5):
        with pytest.raises(TrackingError):
            tracking.runs()
    file.write_bytes(kept)
    tracking._client._tracking_client.store.engine.dispose()
    monkeypatch.setattr(module, "WHOLE_S", 60.0)
    tracking._failure = None
    assert tracking.runs() == []
