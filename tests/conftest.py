"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import mlflow
import pytest

from tests.shared import shared_store
from tests.world import World, wait_for

pytest_plugins = ["tests.skips"]

# Several workers share the cores, and a thread of Torch that waits for a core spins: tiny networks
# learn seven times slower then. Before Torch is imported, and for all that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples every time, so that a run says something of the code alone; `make chaos` looks
# at many others.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file comes first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.path.name != "test_demo.py")


@pytest.fixture(autouse=True, scope="session")
def _usual_signals() -> None:
    """Tests interrupt what they start, also when they run in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the person who runs the tests is read, locked or written."""
    mlflow.set_tracking_uri(None)  # what an earlier test of this process has set
    for name in [name for name in os.environ if name.startswith(("RLSCHED_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path / "rlsched-home"))
    monkeypatch.setenv("RLSCHED_LOCK_DIR", str(tmp_path / "rlsched-locks"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))


@pytest.fixture
def shared_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store that users share."""
    with shared_store(monkeypatch) as url:
        yield url


@pytest.fixture(scope="module")
def _world_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    value = World(tmp_path_factory.mktemp("world"), os.environ)
    yield value
    value.end()


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A host of its own, with a real agent as soon as something is submitted.

    Tests that are marked ``same_world`` have one together, whose agent is started once.
    """
    is_same = request.node.get_closest_marker("same_world") is not None
    value = (
        request.getfixturevalue("_world_of_the_module") if is_same else World(tmp_path, os.environ)
    )
    for name, text in value.env.items():
        monkeypatch.setenv(name, text)
    monkeypatch.chdir(value.folder)
    yield value
    if is_same:
        wait_for(lambda: not value.unfinished() and not value.store.leases())
    else:
        value.end()
