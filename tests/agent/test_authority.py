"""What an agent believes of a store that others can write: forged, changed and replayed rows."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import trust
from mlflow_rlsched.agent.authority import Authority
from mlflow_rlsched.daemon import home, user_name
from mlflow_rlsched.store import Ending, State, Store, Task, open_store
from tests.task_specs import make_spec

DONE = Ending(State.FINISHED, "finished", "")


@pytest.fixture
def store(shared_url: str) -> Iterator[Store]:
    with closing(open_store(shared_url)) as opened:
        yield opened


@pytest.fixture
def administrators() -> list[str]:
    return []


@pytest.fixture
def authority(shared_url: str, store: Store, administrators: list[str]) -> Authority:
    return Authority(shared_url, store, True, lambda: administrators)


def submit(url: str, store: Store, priority: int = 3, now: float = 5.0, **changes: Any) -> Task:
    folder = home() / "runs" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    spec = make_spec("a", user=user_name(), run_dir=str(folder), **changes)
    proofs = trust.proofs_of_submission(url, spec, priority, now)
    return store.submit(spec, priority, now, proofs)


def task_of(store: Store) -> Task:
    task = store.get("a")
    assert task is not None
    return task


def forge(url: str, **columns: Any) -> None:
    """Write into the file by other means than ``rlsched``."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for column, value in columns.items():
            connection.execute(f"UPDATE tasks SET {column} = ?", (value,))


def reopened(url: str) -> Task:
    """The task as an agent sees it that did not know it before."""
    with closing(open_store(url)) as store:
        return task_of(store)


def test_what_its_user_submitted_is_believed(
    shared_url: str, store: Store, authority: Authority
) -> None:
    submit(shared_url, store)
    assert authority.why_refused(task_of(store)) is None
    assert authority.checked(task_of(store)) == task_of(store)


def test_also_from_another_home(
    shared_url: str, store: Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(shared_url, store)
    monkeypatch.setenv("RLSCHED_HOME", str(home() / "another"))
    assert authority.why_refused(task_of(store)) is None


def test_in_a_store_of_ones_own_everything_is(shared_url: str, store: Store) -> None:
    store.submit(make_spec("a"), 0, 5.0)
    store.request_cancel("a", "anybody")
    authority = Authority(shared_url, store, False, tuple)
    assert authority.why_refused(task_of(store)) is None
    assert authority.checked(task_of(store)).cancel_by == "anybody"


@pytest.mark.parametrize("proofs", [{}, {"spec": "", "queue": "", "priority": ""}, {"spec": 5}])
def test_what_nobody_signed_is_refused(
    store: Store, authority: Authority, proofs: dict[str, Any]
) -> None:
    store.submit(make_spec("a", user=user_name()), 0, 5.0, proofs)
    assert "did not sign it" in (authority.why_refused(task_of(store)) or "")


@pytest.mark.parametrize("change", [{"command": "touch evil"}, {"run_dir": "/tmp"}, {"user": "x"}])
def test_a_changed_specification_is_refused(
    shared_url: str, store: Store, authority: Authority, change: dict[str, Any]
) -> None:
    submit(shared_url, store)
    with closing(sqlite3.connect(shared_url.removeprefix("sqlite:///"))) as connection, connection:
        for key, value in change.items():
            connection.execute(f"UPDATE tasks SET spec = json_set(spec, '$.{key}', ?)", (value,))
    assert "did not sign it" in (authority.why_refused(reopened(shared_url)) or "")


@pytest.mark.parametrize(
    "columns", [{"batch_size": "64; touch evil"}, {"gpus": -1}, {"attempt": "../../evil"}]
)
def test_what_is_no_number_is_refused(
    shared_url: str, store: Store, authority: Authority, columns: dict[str, Any]
) -> None:
    submit(shared_url, store)
    forge(shared_url, **columns)
    assert "cannot be of it" in (authority.why_refused(task_of(store)) or "")


def test_a_run_that_is_over_does_not_run_again_unless_that_is_signed(
    shared_url: str, store: Store, authority: Authority
) -> None:
    submit(shared_url, store)
    assert authority.why_refused(task_of(store)) is None
    store.end_queued("a", DONE, 6.0)
    authority.over(task_of(store))
    assert authority.why_refused(task_of(store)) is None, "MLflow may be told of it"
    forge(shared_url, state="queued")
    assert "it was over" in (authority.why_refused(task_of(store)) or "")
    forge(shared_url, submitted_at=7.0)
    assert "it was over" in (authority.why_refused(task_of(store)) or "")
    forge(shared_url, state="failed", submitted_at=5.0)
    now = trust.queue_time(task_of(store))
    proofs = trust.proofs_of_retry(shared_url, task_of(store), now)
    assert store.retry("a", now, proofs)
    assert authority.why_refused(task_of(store)) is None
    assert authority.checked(task_of(store)).priority == 3


def test_a_run_that_is_resumed_is_believed_and_its_older_submission_is_not(
    shared_url: str, store: Store, authority: Authority
) -> None:
    old = submit(shared_url, store)
    store.end_queued("a", DONE, 6.0)
    authority.over(task_of(store))
    now = trust.queue_time(old)
    submit(shared_url, store, now=now, label="again")
    assert authority.why_refused(task_of(store)) is None
    with closing(sqlite3.connect(shared_url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE tasks SET spec = json_set(spec, '$.label', 'quick-fox')")
        connection.execute(
            "UPDATE tasks SET proofs = json_set(proofs, '$.spec', ?)", (old.proofs["spec"],)
        )
    assert authority.why_refused(reopened(shared_url)) is not None


def test_a_cancellation_must_be_the_users_own(
    shared_url: str, store: Store, authority: Authority
) -> None:
    task = submit(shared_url, store)
    forge(shared_url, cancel_by=user_name())
    assert authority.checked(task_of(store)).cancel_by is None
    assert task_of(store).cancel_by is None
    said = trust.statement(trust.CANCEL, "a", task.submitted_at, user_name())
    store.request_cancel("a", user_name(), trust.prove(shared_url, task, said))
    assert authority.checked(task_of(store)).cancel_by == user_name()


@pytest.mark.parametrize("name", ["somebody", user_name()])
def test_one_counts_that_comes_after_a_forged_one(
    shared_url: str, store: Store, authority: Authority, name: str
) -> None:
    task = submit(shared_url, store)
    forge(shared_url, cancel_by=name)
    said = trust.statement(trust.CANCEL, "a", task.submitted_at, user_name())
    assert store.request_cancel("a", user_name(), trust.prove(shared_url, task, said))
    assert authority.checked(task_of(store)).cancel_by == user_name()


def test_or_an_administrators_in_that_ones_name(
    shared_url: str, store: Store, authority: Authority, administrators: list[str]
) -> None:
    task = submit(shared_url, store)
    me = trust.pwd.getpwuid(os.geteuid()).pw_name  # whom the kernel vouches for
    said = trust.statement(trust.CANCEL, "a", task.submitted_at, me)
    trust._vouch(trust.requests_dir(shared_url), said)
    store.request_cancel("a", me)
    assert authority.checked(task_of(store)).cancel_by is None, "no administrator"
    administrators.append(me)
    store.request_cancel("a", "root")
    assert authority.checked(task_of(store)).cancel_by is None, "in the name of another"
    store.request_cancel("a", me)
    assert authority.checked(task_of(store)).cancel_by == me


def test_a_priority_must_be_asked_for(shared_url: str, store: Store, authority: Authority) -> None:
    task = submit(shared_url, store, config={"priority": 3})
    forge(shared_url, priority=900)
    assert authority.checked(task_of(store)).priority == 3
    assert authority.checked(task_of(store)) == task_of(store), "it is repaired"
    said = trust.statement(trust.PRIORITY, "a", task.submitted_at, 7)
    store.prioritize("a", 7, trust.sign(shared_url, said))
    assert authority.checked(task_of(store)).priority == 7


def ask_as_administrator(url: str, what: str, value: Any, queued_at: float) -> None:
    trust._vouch(trust.requests_dir(url), trust.statement(what, "a", queued_at, value))


def forget_requests(url: str) -> None:
    for file in trust.requests_dir(url).iterdir():
        file.unlink()


def test_what_an_administrator_asked_for_holds_without_the_files_once_it_was_believed(
    shared_url: str, store: Store, authority: Authority, administrators: list[str]
) -> None:
    submit(shared_url, store)
    store.end_queued("a", Ending(State.FAILED, "user_error", ""), 6.0)
    me = trust.pwd.getpwuid(os.geteuid()).pw_name  # whom the kernel vouches for
    administrators.append(me)
    signed = task_of(store).proofs[trust.SPEC]
    for what, value in ((trust.QUEUE, signed), (trust.PRIORITY, 3), (trust.PRIORITY, 7)):
        ask_as_administrator(shared_url, what, value, 8.0)
    store.retry("a", 8.0, {trust.QUEUE: "", trust.PRIORITY: ""})
    store.prioritize("a", 7)
    ask_as_administrator(shared_url, trust.CANCEL, me, 8.0)
    store.request_cancel("a", me)
    assert authority.why_refused(task_of(store)) is None
    assert authority.checked(task_of(store)).cancel_by == me
    forget_requests(shared_url)
    administrators.clear()
    later = Authority(shared_url, store, True, lambda: administrators)
    assert later.why_refused(task_of(store)) is None
    kept = later.checked(task_of(store))
    assert (kept.cancel_by, kept.priority) == (me, 7)


def test_requests_are_removed_when_the_turn_that_they_are_of_is_over(
    shared_url: str, store: Store, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    submit(shared_url, store)  # at 5.0
    folder = trust.requests_dir(shared_url)

    def left(*queued_at: float) -> int:
        for each in queued_at:
            ask_as_administrator(shared_url, trust.CANCEL, "carol", each)
        authority.remove_answered()
        return len(list(folder.iterdir()))

    assert left(4.0) == 0, "of an earlier turn"
    assert left(5.0) == 1, "of this turn"
    assert left(6.0) == 2, "of the next one, which a command is just about to begin"
    store.end_queued("a", Ending(State.FAILED, "user_error", ""), 6.0)
    assert left() == 1
    store.retry("a", 6.0)
    assert left() == 1
    store.end_queued("a", DONE, 7.0)
    assert left() == 0
    trust._vouch(folder, trust.statement(trust.CANCEL, "nobody", 5.0, "carol"))
    assert left() == 0, "of no run at all"
    assert not caplog.records
    folder.rmdir()
    authority.remove_answered()
    assert "administrators' requests" in caplog.text


def test_what_is_no_request_is_removed_when_it_is_old(
    shared_url: str, authority: Authority
) -> None:
    folder = trust.requests_dir(shared_url)
    names = ("torn", "long", "fifo", "link", "folder")
    (folder / "torn").write_text('["cancel", "a"')
    (folder / "long").write_text("[" * 100_000)
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder").mkdir()
    authority.remove_answered()
    assert sorted(file.name for file in folder.iterdir()) == sorted(names), "just being written"
    old = time.time() - 2 * trust.DRAFT_S
    for name in names:
        os.utime(folder / name, (old, old), follow_symlinks=False)
    authority.remove_answered()
    assert [file.name for file in folder.iterdir()] == ["folder"]


def test_a_directory_that_is_gone_is_not_made_for_a_mark(
    shared_url: str, store: Store, authority: Authority
) -> None:
    task = submit(shared_url, store)
    Path(task.spec.run_dir).rmdir()
    authority.over(task)
    assert not Path(task.spec.run_dir).exists()
