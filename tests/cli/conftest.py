from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlflow_rlsched import asking, versions
from mlflow_rlsched.cli import main
from mlflow_rlsched.daemon import AgentFiles, home
from mlflow_rlsched.sharing import SQLITE
from mlflow_rlsched.store import Store, open_store
from tests.devices.conftest import box, nvml_folder
from tests.task_specs import make_spec

__all__ = ["box", "nvml_folder"]

Rlsched = Callable[..., Result]


@pytest.fixture
def url() -> str:
    """The store that a command uses by default."""
    return f"{SQLITE}{home() / 'rlsched.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def no_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy is shipped, and MLflow's database is one in the folder, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(versions, "SHIPPED", tmp_path / "shipped.safetensors")


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server that takes connections and never answers, and is not waited for."""
    monkeypatch.setattr(asking, "SERVER_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def rlsched() -> Rlsched:
    """Runs the command in this process; a traceback fails the test."""

    def run(*args: str) -> Result:
        result = CliRunner().invoke(main, args)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


@pytest.fixture
def woken(url: str) -> Iterator[Callable[[], bool]]:
    """An agent as others see it, namely this process; tells whether it was woken meanwhile."""
    files = AgentFiles(url)
    files.create()
    assert files.lock.acquire()
    wake = files.open_wake()

    def was_woken() -> bool:
        try:
            return bool(os.read(wake, 65536))
        except BlockingIOError:
            return False

    yield was_woken
    os.close(wake)
    files.lock.release()


def submit(store: Store, run_id: str, priority: int = 0, **changes: object) -> None:
    """Queue a run whose directory is in the test's home."""
    folder = home() / "runs" / run_id
    folder.mkdir(parents=True)
    store.submit(make_spec(run_id, run_dir=str(folder), **changes), priority, time.time())


def write(run_id: str, attempt: int, name: str, text: str) -> Path:
    """Append to a file of an attempt."""
    path = home() / "runs" / run_id / "attempts" / str(attempt) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(text)
    return path
