from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlflow_rlsched.training import data as data_module
from mlflow_rlsched.training import session as session_module
from tests.training.attempts import Attempts
from tests.training.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run directory whose first attempt this process belongs to."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # attach() puts its own before it
    value = RunDirectory(tmp_path / "run")
    for name, text in value.start_attempt(1).items():
        monkeypatch.setenv(name, text)
    return value


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a training that never imported torch."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def attempts(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """The attempts of the run; this process belongs to the first of them."""
    return Attempts(run, monkeypatch)


class Clock:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the sessions and loaders of this test."""
    value = Clock()
    fake = SimpleNamespace(monotonic=value.monotonic, time=time.time)
    monkeypatch.setattr(session_module, "time", fake)
    monkeypatch.setattr(data_module, "time", fake)
    return value
