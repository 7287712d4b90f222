from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from tests.training.run_directory import RunDirectory
from tests.world import make_tracking_database


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run directory; its attempts are for the test to start."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return RunDirectory(tmp_path / "run")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracking database that the tests of a module share."""
    folder = tmp_path_factory.mktemp("tracking")
    make_tracking_database(folder / "mlflow.db", f"file://{folder}/mlruns/0")
    return folder / "mlflow.db"


@pytest.fixture
def tracking(database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[mlflow.MlflowClient]:
    """MLflow for this process and its children."""
    uri = f"sqlite:///{database}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    yield mlflow.MlflowClient(uri)
    while mlflow.active_run() is not None:
        mlflow.end_run()
