"""Pages where something is missing: each says what it is, and what to do."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlflow_rlsched.cli import dashboard as command
from mlflow_rlsched.cli import main
from mlflow_rlsched.store import open_store
from rlsched_dashboard import actions
from rlsched_dashboard.app import context_of, shown
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.settings import Settings
from tests.task_specs import make_spec

PAGES = ("/", "/runs", "/compare", "/policy", "/search", "/cluster")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(f"sqlite:///{tmp_path}/rlsched.db", f"sqlite:///{tmp_path}/mlflow.db")


def text_of(context: Context, path: str) -> str:
    """A page as the browser gets it."""
    return json.dumps(
        shown(context, View(path)).to_plotly_json(), default=lambda x: x.to_plotly_json()
    )


@pytest.mark.parametrize("path", PAGES)
def test_where_nothing_was_ever_run_nothing_is_made(settings: Settings, path: str) -> None:
    assert "failed" not in text_of(context_of(settings), path)
    folder = Path(settings.store.removeprefix("sqlite:///")).parent
    assert not list(folder.glob("*.db")), "reading makes no store and no tracking database"


def test_an_empty_store_says_how_to_begin(settings: Settings) -> None:
    context = context_of(settings)
    assert "mlflow run . --backend rlsched" in text_of(context, "/")
    assert "mlflow run . --backend rlsched" in text_of(context, "/runs")


def test_a_dead_agent_is_said_while_runs_wait(settings: Settings) -> None:
    with closing(open_store(settings.store)) as store:
        store.submit(make_spec("a" * 32), 0, 5.0)
    text = text_of(context_of(settings), "/")
    assert "No agent lives" in text
    assert "rlsched agent start" in text


def test_a_store_of_a_newer_version_is_an_error_in_a_sentence(settings: Settings) -> None:
    open_store(settings.store).close()
    path = settings.store.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE rlsched_schema SET version = 700")
    text = text_of(context_of(settings), "/")
    assert "The store cannot be read" in text


def test_a_tracking_server_that_is_down_is_named(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{probe.getsockname()[1]}"
    text = text_of(context_of(Settings(settings.store, uri)), "/runs")
    assert "MLflow cannot be read" in text
    assert uri in text


def test_a_run_that_nobody_knows_is_gone(settings: Settings) -> None:
    assert "This run is gone" in text_of(context_of(settings), f"/runs/{'b' * 32}")


@pytest.mark.parametrize("kind", list(actions.ACTIONS))
def test_nothing_is_done_where_nothing_may_be(settings: Settings, kind: str) -> None:
    with closing(open_store(settings.store)) as store:
        store.submit(make_spec("a" * 32), 0, 5.0)
        done, said = actions.done(context_of(settings), kind, "a" * 32, 3)
        assert not done
        assert "--allow-actions" in said
        task = store.get("a" * 32)
    assert task is not None
    assert (task.cancel_by, task.priority) == (None, 0)


def test_without_its_packages_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EXTRA", ("json", "not_there_at_all"))
    result = CliRunner().invoke(main, ["dashboard"])
    assert result.exit_code == 1
    assert "needs not_there_at_all" in result.output
    assert "pip install 'mlflow-rlsched[dashboard]'" in result.output


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["dashboard", "--port", port])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output
    assert "choose another --port" in result.output
