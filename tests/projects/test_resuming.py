"""A training that dies and resumes leaves the history of one that never died."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from mlflow_rlsched.training import session as session_module
from mlflow_rlsched.training.session import Session
from tests.training.run_directory import RunDirectory
from tests.world import PROJECTS

ARGUMENTS = {
    "digits": ("--epochs", "4", "--width", "2", "--batch-size", "100"),
    "language": ("--sequences", "4096", "--width", "8", "--layers", "1", "--batch-size", "128"),
}
METRICS = {"digits": ("loss", "val_loss", "val_accuracy"), "language": ("loss", "val_loss")}
Patch = pytest.MonkeyPatch


class Killed(BaseException):
    """Ends a training in this process where a kill would."""


class Trainer:
    """Runs attempts of a project in this process; their clock goes on by 3 s at each look."""

    def __init__(self, project: str, folder: Path, tracking: mlflow.MlflowClient) -> None:
        self.project = project
        self.run = RunDirectory(folder)
        self.run_id = tracking.create_run("0").info.run_id
        self.tracking = tracking
        self.attempt = 0

    def train(self, patch: Patch) -> None:
        self.attempt += 1
        script = str(PROJECTS / self.project / "train.py")
        for name, text in self.run.start_attempt(self.attempt).items():
            patch.setenv(name, text)
        patch.setenv("MLFLOW_RUN_ID", self.run_id)
        patch.setattr(sys, "argv", [script, *ARGUMENTS[self.project]])
        patch.setattr(session_module, "LOOK_S", 0.0)
        names = runpy.run_path(script)
        names["main"].__globals__["time"] = SimpleNamespace(
            monotonic=itertools.count(step=3).__next__, time=time.time
        )
        names["main"]()

    def history(self) -> dict[str, list[tuple[int, float]]]:
        """Step and value of each point of each metric."""
        return {
            key: [(p.step, p.value) for p in self.tracking.get_metric_history(self.run_id, key)]
            for key in METRICS[self.project]
        }


def kill_at_step(trainer: Trainer, patch: Patch) -> None:
    """Between two checkpoints."""
    whole = Session.step

    def step(self: Session, **values: Any) -> bool:
        if self.steps == 24:
            newest = max(trainer.run.checkpoints.glob("*/manifest.json"))
            assert json.loads(newest.read_text())["position"]["step"] < 24
            raise Killed
        return whole(self, **values)

    patch.setattr(Session, "step", step)


def kill_at_log(logged: bool) -> Callable[[Trainer, Patch], None]:
    """After a checkpoint, before or after its metrics have reached the tracking server."""

    def prepare(trainer: Trainer, patch: Patch) -> None:
        whole = mlflow.MlflowClient.log_batch
        calls = 0

        def log_batch(self: mlflow.MlflowClient, *values: Any, **named: Any) -> None:
            nonlocal calls
            calls += 1
            if calls < 2 or logged:
                whole(self, *values, **named)
            if calls == 2:
                raise Killed

        patch.setattr(mlflow.MlflowClient, "log_batch", log_batch)

    return prepare


def stop_in_an_epoch(trainer: Trainer, patch: Patch) -> None:
    """On request, where no checkpoint would fall by itself."""
    whole = Session.step
    calls = 0

    def step(self: Session, **values: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            trainer.run.direct(trainer.attempt, seq=1, action="stop", reason="test")
        return whole(self, **values)

    patch.setattr(Session, "step", step)


@pytest.mark.parametrize("project", ["digits", "language"])
def test_the_history_is_the_one_of_an_unbroken_run(
    project: str, tmp_path: Path, tracking: mlflow.MlflowClient, monkeypatch: Patch
) -> None:
    unbroken = Trainer(project, tmp_path / "unbroken", tracking)
    unbroken.train(monkeypatch)
    assert len(unbroken.history()["val_loss"]) == 4

    broken = Trainer(project, tmp_path / "broken", tracking)
    for prepare in (stop_in_an_epoch, kill_at_step, kill_at_log(False), kill_at_log(True)):
        with monkeypatch.context() as patch:
            prepare(broken, patch)
            with pytest.raises((Killed, SystemExit)):
                broken.train(patch)
    broken.train(monkeypatch)
    assert broken.history() == unbroken.history()
    assert broken.run.events(1)[-1] == "stopped"
    assert broken.run.reports(1)[-1].numbers["step"] == 3
    assert broken.run.events(5)[-1] == "done"
