"""What a learning task tells its MLflow run."""

from __future__ import annotations

import math

import pytest

from mlflow_rlsched.learning.mlflow_log import Log
from tests.world import World


def test_losses_and_figures_are_the_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = world.client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    log = Log()
    log.metrics({"loss/critic": 0.5, "loss/actor": math.nan}, 3)
    log.metrics({"loss/critic": 0.25}, 4)
    log.figures({"fitted": {"low": 0.1}})
    points = world.client.get_metric_history(run_id, "loss/critic")
    assert [(point.step, point.value) for point in points] == [(3, 0.5), (4, 0.25)]
    assert set(world.run_of(run_id).data.metrics) == {"loss/critic"}
    assert [item.path for item in world.client.list_artifacts(run_id)] == ["figures.json"]


def test_a_server_that_does_not_take_it_is_said_once(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "absent")
    log = Log()
    for step in range(3):
        log.metrics({"loss/critic": 0.5}, step)
    assert capsys.readouterr().out.count("MLflow is not told: ") == 1


def test_outside_of_a_run_it_tells_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    log = Log()
    log.say("all is well")
    log.metrics({"loss/critic": 0.5}, 1)
    log.figures({})
    assert capsys.readouterr().out == "all is well\n"
