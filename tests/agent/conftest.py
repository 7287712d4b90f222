"""Fixtures of the agent's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from mlflow_rlsched.agent import tracking
from tests.agent.desk import Desk
from tests.agent.simulated import Host, folder_in_memory
from tests.world import World


@pytest.fixture
def host() -> Iterator[Host]:
    """A simulated host, with its clock and trainings."""
    root = folder_in_memory()
    value = Host(root)
    yield value
    value.close()
    shutil.rmtree(root)


@pytest.fixture
def desk(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(tracking, "TICK_S", 0.05)
    monkeypatch.setattr(tracking, "FLUSH_S", 0.1)
    monkeypatch.setattr(tracking, "POLL_S", 0.1)
    monkeypatch.setattr(tracking, "BACKOFF_S", (0.05,))
    monkeypatch.setattr(tracking, "_HTTP", {**tracking._HTTP, "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"})
    for name in tracking._HTTP:
        monkeypatch.setenv(name, "")  # so that what the tracker sets is undone
    value = Desk(world)
    yield value
    if value.tracker.is_alive():
        value.tracker.stop(0)
