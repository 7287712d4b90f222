"""Stores that users share: which are safe to open, and what opening one leaves."""

from __future__ import annotations

import math
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_rlsched import sharing
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.store import AgentRecord, DeviceShare, Quarantine, StoreError, open_store
from tests.task_specs import make_spec

ENDLESS = '{"least": 1e999, "resumes": 1, "leaves": 0, "ends_at": null, "basis": ""}'


def path_of(url: str) -> Path:
    return Path(url.removeprefix(sharing.SQLITE))


def test_a_shared_store_works_where_no_file_can_be_made(shared_url: str) -> None:
    path = path_of(shared_url)
    path.parent.chmod(0o555)
    before = sorted(path.parent.iterdir())
    for name in ("a", "b"):
        store = open_store(shared_url)
        store.submit(make_spec(name), 0, now=1.0)
        store.close()
    store = open_store(shared_url)
    assert [task.run_id for task in store.tasks()] == ["a", "b"]
    store.close()
    assert sorted(path.parent.iterdir()) == before
    files = [file for file in before if file.is_file()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o660}
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    path.parent.chmod(0o755)


def test_a_user_has_one_agent_in_a_shared_store_whatever_the_home(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sharing.is_shared(shared_url)
    folder = AgentFiles(shared_url).folder
    assert folder == Path(f"{path_of(shared_url)}-agents", user_name())
    monkeypatch.setenv("RLSCHED_HOME", "/another")
    assert AgentFiles(shared_url).folder == folder


def spoil_folder(path: Path) -> None:
    path.parent.chmod(0o775)


def spoil_folder_above(path: Path) -> None:
    path.parent.parent.chmod(0o777)


def remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def link_log(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    (path.parent.parent / "precious").write_text("precious")
    log.unlink()
    log.symlink_to(path.parent.parent / "precious")


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


def own(path: Path) -> Path:
    return Path(f"{path}-agents", user_name())


def spoil_folder_of_agents(path: Path) -> None:
    own(path).parent.chmod(0o1777)


def remove_own_folder(path: Path) -> None:
    own(path).rmdir()


def link_own_folder(path: Path) -> None:
    own(path).rename(path.parent / "anothers")
    own(path).symlink_to(path.parent / "anothers")


def open_own_folder(path: Path) -> None:
    own(path).chmod(0o750)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_folder_of_agents, "others can replace files in .*pool.db-agents"),
        (remove_own_folder, f"no folder of yours: `sudo install -d -m 0700 -o {user_name()} "),
        (link_own_folder, "no folder of yours"),
        (open_own_folder, "no folder of yours"),
        (spoil_folder, "others can replace files in"),
        (spoil_folder_above, "others can replace files in"),
        (remove_log, "pool.db-wal is missing"),
        (link_log, "pool.db-wal is no file of a group alone"),
        (open_to_all, "pool.db is no file of a group alone"),
    ],
)
def test_what_is_unsafe_is_refused_in_a_sentence(
    shared_url: str, spoil: Callable[[Path], None], words: str
) -> None:
    path = path_of(shared_url)
    spoil(path)
    with pytest.raises(StoreError, match=words) as caught:
        open_store(shared_url)
    assert "\n" not in str(caught.value)
    precious = path.parent.parent / "precious"
    assert not precious.exists() or precious.read_text() == "precious"


def test_root_opens_no_shared_store(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing.os, "geteuid", lambda: 0)
    with pytest.raises(StoreError, match="root does not open what others write"):
        open_store(shared_url)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("tasks", "spec", "rubbish"),
        ("tasks", "state", "rubbish"),
        ("tasks", "proofs", "rubbish"),
        ("tasks", "proofs", "5"),
        ("tasks", "submitted_at", "rubbish"),
        ("tasks", "submitted_at", -math.inf),
        ("attempts", "devices", "rubbish"),
        ("attempts", "outlook", ENDLESS),
        ("attempts", "way_at", "rubbish"),
        ("agents", "heartbeat_at", "rubbish"),
        ("quarantine", "until", "rubbish"),
    ],
)
def test_what_no_version_wrote_is_said_in_a_sentence(
    tmp_path: Path, table: str, column: str, value: object
) -> None:
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}")
    store.submit(make_spec("a"), 0, now=1.0)
    store.claim("a", "here", [DeviceShare("cpu-0")], now=2.0)
    store.register_agent(AgentRecord("here", "ada", "1", 1.0, 1.0), 1.0)
    store.quarantine(Quarantine("here", "cpu-1", "", 9.0, 1))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.close()
    store = open_store(f"sqlite:///{path}")
    reads = {
        "tasks": store.tasks,
        "attempts": lambda: store.attempts("a"),
        "agents": store.agents,
        "quarantine": store.quarantined,
    }
    with pytest.raises(StoreError, match="what no mlflow-rlsched wrote"):
        reads[table]()
    store.close()
