"""``rlsched cancel``, ``prioritize`` and ``retry``, and how runs are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_rlsched import protocol
from mlflow_rlsched.daemon import AgentFiles, home
from mlflow_rlsched.store import Ending, State, Store
from tests.cli.conftest import Rlsched, submit
from tests.world import make_tracking_database

FAILED = Ending(State.FAILED, "user_error", "it exited with code 3")


def test_cancel_asks_and_wakes_the_agent(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    submit(store, "bbbb2222")
    result = rlsched("cancel", "aaaa1111", "bbbb")
    assert result.exit_code == 0
    assert [bool(task.cancel_by) for task in store.tasks()] == [True, True]
    assert result.stdout.count("is being cancelled") == 2
    assert woken()


def test_cancel_of_a_run_that_is_over_is_said_and_the_others_are_cancelled(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    submit(store, "bbbb2222")
    store.end_queued("aaaa1111", FAILED, now=1.0)
    result = rlsched("cancel", "aaaa", "bbbb")
    assert result.exit_code == 1
    assert "failed already" in result.stderr
    assert [task.cancel_by is not None for task in store.tasks()] == [False, True]


def test_nothing_is_cancelled_when_one_name_is_wrong(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    assert rlsched("cancel", "aaaa", "zzzz").exit_code == 2
    assert [task.cancel_by for task in store.tasks()] == [None]


@pytest.mark.parametrize("priority", [7, -3])
def test_prioritize(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool], priority: int
) -> None:
    submit(store, "aaaa1111")
    assert rlsched("prioritize", "aaaa", str(priority)).exit_code == 0
    assert [task.priority for task in store.tasks()] == [priority]
    assert woken()


def test_prioritize_refuses_what_is_over_and_what_is_no_number(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    for wrong in ("high", "1.5", "1000001", "--", ""):
        refused = rlsched("prioritize", "aaaa", wrong)
        assert refused.exit_code == 2
    assert "priority is '', must be a whole number from -1000000 to 1000000" in refused.stderr
    store.end_queued("aaaa1111", FAILED, now=1.0)
    result = rlsched("prioritize", "aaaa", "1")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "failed already" in result.stderr


def test_retry_queues_a_failed_run_again(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    store.end_queued("aaaa1111", FAILED, now=1.0)
    result = rlsched("retry", "aaaa")
    assert result.exit_code == 0
    assert "its tracking server is told later" in result.stderr, "none answers"
    assert [task.state for task in store.tasks()] == [State.QUEUED]
    assert woken()


def test_retry_makes_the_mlflow_run_scheduled_and_refuses_a_deleted_one(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool], tmp_path: Path
) -> None:
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/artifacts")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri)
    kept, deleted = (client.create_run("0").info.run_id for _ in range(2))
    for run_id in (kept, deleted):
        client.set_terminated(run_id, "FAILED")
        submit(store, run_id)
        protocol.write_json(
            home() / "runs" / run_id / "environment.json", {"MLFLOW_TRACKING_URI": uri}
        )
        store.end_queued(run_id, FAILED, now=1.0)
    client.delete_run(deleted)
    refused = rlsched("retry", deleted)
    assert refused.exit_code == 1
    assert f"`mlflow runs restore --run-id {deleted}`" in refused.stderr
    assert rlsched("retry", kept).exit_code == 0
    assert client.get_run(kept).info.status == "SCHEDULED"
    assert [store.get(run_id).state for run_id in (kept, deleted)] == [State.QUEUED, State.FAILED]  # type: ignore[union-attr]


def test_retry_of_anything_else_is_refused(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    result = rlsched("retry", "aaaa")
    assert result.exit_code == 1
    assert "only failed and killed runs" in result.stderr


def test_a_request_says_that_the_agent_was_stopped_and_starts_none(
    rlsched: Rlsched, store: Store, url: str
) -> None:
    submit(store, "aaaa1111")
    files = AgentFiles(url)
    files.create()
    files.held.touch()
    result = rlsched("cancel", "aaaa")
    assert result.exit_code == 0
    assert "rlsched agent start" in result.stdout
    assert not files.alive()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aaa", "at least 4 characters"),
        ("aaaa", "not unique"),
        ("cccc", "no run 'cccc'"),
        ("aaaa1111x", "no run"),
    ],
)
@pytest.mark.parametrize("command", [("cancel",), ("retry",), ("show",), ("logs",)])
def test_a_wrong_name_is_wrong_usage(
    rlsched: Rlsched, store: Store, command: tuple[str, ...], name: str, words: str
) -> None:
    submit(store, "aaaa1111")
    submit(store, "aaaa2222")
    result = rlsched(*command, name)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_a_whole_run_id_wins_over_longer_ones(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaa")
    submit(store, "aaa1")
    assert rlsched("cancel", "aaa").exit_code == 0
    assert [task.run_id for task in store.tasks() if task.cancel_by] == ["aaa"]


def test_a_run_in_a_store_that_was_never_made(rlsched: Rlsched, url: str) -> None:
    result = rlsched("cancel", "aaaa1111")
    assert result.exit_code == 2
    assert "no runs yet" in result.stderr
    assert not Path(url.removeprefix("sqlite:///")).exists()
