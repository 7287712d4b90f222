"""What is SQLite's own: the file, where it lies, its locks, its versions and its errors."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from mlflow_rlsched.store import (
    State,
    Store,
    StoreError,
    StoreGone,
    Transition,
    open_store,
    rows,
    schema,
    sqlite,
)
from tests.task_specs import make_spec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "a b#?%41ü.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{path}")
    yield opened
    opened.close()


def open_at(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    store.submit(make_spec("a"), 0, now=1.0)
    store.close()


# The file


def test_folder_and_files_are_private(path: Path) -> None:
    before = os.umask(0)
    try:
        store = open_store(f"sqlite:///{path}")
        store.submit(make_spec("a"), 0, now=1.0)
        files = list(path.parent.iterdir())
        assert {path.name, f"{path.name}-wal", f"{path.name}-shm"} <= {f.name for f in files}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        store.close()
    finally:
        os.umask(before)


def test_close_gives_every_descriptor_back(store: Store, path: Path) -> None:
    names = [f"run-{number}" for number in range(8)]
    threads = [
        threading.Thread(target=lambda name=name: store.submit(make_spec(name), 0, now=1.0))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    assert not [link for link in links if link.startswith(str(path))]


def test_another_process_that_closes_the_store_leaves_us_the_log(store: Store, path: Path) -> None:
    """The last to close removes the log; who opened the store twice must not pass for closed."""
    store.submit(make_spec("ours"), 0, now=1.0)
    open_store(f"sqlite:///{path}").close()
    code = (
        "import sys; from mlflow_rlsched.store import open_store; store = open_store(sys.argv[1])\n"
        "assert store.request_cancel('ours', 'theirs'); store.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, f"sqlite:///{path}"], check=True)
    assert Path(f"{path}-wal").exists()
    task = store.get("ours")
    assert task is not None
    assert task.cancel_by == "theirs"


def test_connections_are_durable_and_check_references(store: Store) -> None:
    database = store._database
    for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
        found = database.transact(
            lambda c, pragma=pragma: c.exec_driver_sql(f"PRAGMA {pragma}").scalar(), write=False
        )
        assert found == value


def test_a_deleted_store_is_gone_and_not_made_again(store: Store, path: Path) -> None:
    store.submit(make_spec("a"), 0, now=1.0)
    path.unlink()
    with pytest.raises(StoreGone, match="deleted or replaced"):
        store.get("a")
    with pytest.raises(StoreGone):
        store.submit(make_spec("b"), 0, now=1.0)
    store.close()
    with pytest.raises(StoreGone):
        store.tasks()
    assert not path.exists()


def test_a_store_whose_folder_was_deleted_is_gone(store: Store, path: Path) -> None:
    shutil.rmtree(path.parent)
    with pytest.raises(StoreGone):
        store.heartbeat("here", {"a": 1}, now=1.0)
    assert not path.parent.exists()


def test_a_replaced_store_is_gone_and_the_new_one_untouched(store: Store, path: Path) -> None:
    store.submit(make_spec("a"), 0, now=1.0)
    other = path.with_name("other.db")
    open_at(other)
    os.replace(other, path)
    with pytest.raises(StoreGone):
        store.submit(make_spec("b"), 0, now=1.0)
    fresh = open_store(f"sqlite:///{path}")
    assert [task.run_id for task in fresh.tasks()] == ["a"]
    fresh.close()


# Places where it cannot be


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///relative.db", "absolute path"),
        ("sqlite:////proc/nowhere/store.db", "/proc/nowhere/store.db"),
        (f"sqlite:////tmp/{'x' * 300}/store.db", "too long"),
        ("mysql://host/db", "not supported"),
    ],
)
def test_an_impossible_place_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


def test_the_longest_path_works_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200)
    longest = deep / ("s" * (sqlite.MAX_PATH_BYTES - len(str(deep)) - 1))
    open_at(longest)
    with pytest.raises(StoreError, match=r"too long \(501 bytes, at most 500\)"):
        open_at(longest.with_name(longest.name + "s"))


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        open_at(tmp_path)


def test_a_file_in_the_place_of_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="RLSCHED_HOME"):
        open_at(tmp_path / "file" / "store.db")


@pytest.mark.parametrize("content", [b"no database", b"x" * 8192])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a store"):
        open_at(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE runs (run_uuid TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="'runs'"):
        open_at(path)
    assert path.read_bytes() == before


@pytest.fixture
def powerless_folder() -> Iterator[Path]:
    """A folder of root's, while this process may do no more than anybody."""
    folder = Path(tempfile.mkdtemp())
    open_at(folder / "store.db")
    (folder / "empty.db").touch(0o666)
    (folder / "empty.db").chmod(0o666)
    folder.chmod(0o555)
    (folder / "store.db").chmod(0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["store.db", "empty.db", "new.db", "new/store.db"])
def test_a_read_only_folder_is_refused(powerless_folder: Path, name: str) -> None:
    with pytest.raises(StoreError, match="RLSCHED_HOME"):
        open_at(powerless_folder / name)


def test_a_full_disk_is_said_and_outlived(store: Store) -> None:
    def shrink(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count=1")  # SQLite keeps the pages that exist

    event.listen(store._database._engine, "connect", shrink)
    store.close()
    with pytest.raises(StoreError, match="disk is full"):
        store.submit(make_spec("a", label="x" * 100_000), 0, now=1.0)
    event.remove(store._database._engine, "connect", shrink)
    store.close()
    assert store.tasks() == []
    assert store.submit(make_spec("a"), 0, now=1.0).state is State.QUEUED


def test_a_write_that_the_system_refuses_is_said_and_outlived(store: Store) -> None:
    store.submit(make_spec("a"), 0, now=1.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StoreError, match="disk"):
            store.submit(make_spec("b", label="x" * 400_000), 0, now=1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.submit(make_spec("c"), 0, now=1.0)
    assert [task.run_id for task in store.tasks()] == ["a", "c"]


# Network file systems

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/ada/scratch rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 22 0:42 / /mnt/ssh rw - fuse.sshfs ada@server: rw
34 22 0:43 / /mnt/twice rw - nfs server:/a rw
35 34 8:3 / /mnt/twice rw - ext4 /dev/sdc1 rw
36 22 0:44 / /mnt/cluster rw - lustre mds@tcp:/fs rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.lstrip("\n"))
    return table


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/store.db", "ext4"),
        ("/home/ada/.rlsched/store.db", "nfs4"),
        ("/home/ada/scratch/store.db", "xfs"),
        ("/homely/store.db", "ext4"),
        ("/mnt/with space/store.db", "cifs"),
        ("/mnt/ssh/store.db", "fuse.sshfs"),
        ("/mnt/twice/store.db", "ext4"),
        ("/mnt/cluster/a/b/store.db", "lustre"),
    ],
)
def test_the_longest_mount_point_says_the_file_system(mounts: Path, path: str, kind: str) -> None:
    assert sqlite.file_system(Path(path), mounts) == kind
    if kind in ("ext4", "xfs"):
        sqlite.refuse_network(Path(path), mounts)
    else:
        with pytest.raises(StoreError, match=rf"\({kind}\).*local disk"):
            sqlite.refuse_network(Path(path), mounts)


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs3", "smb3", "smbfs", "9p", "gpfs", "beegfs", "ceph", "fuse.glusterfs"]
)
def test_a_store_on_a_network_file_system_is_refused_untouched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    table = tmp_path / "mountinfo"
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "link").symlink_to(share)
    table.write_text(f"30 22 0:40 / {os.path.realpath(share)} rw - {kind} server:/ rw\n")
    monkeypatch.setattr(sqlite, "MOUNTS", table)
    with pytest.raises(StoreError, match="network file system"):
        open_at(tmp_path / "link" / "store.db")
    assert list(share.iterdir()) == []


# Locks


def test_a_lock_that_ends_in_time_is_waited_for(store: Store, path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: holder.execute("COMMIT"))
    timer.start()
    assert store.submit(make_spec("a"), 0, now=1.0).order == 1
    timer.join()
    holder.close()


def test_a_lock_that_stays_is_said(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_WAIT_S", 0.2)
    store.close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another process"):
        store.submit(make_spec("a"), 0, now=1.0)
    assert store.tasks() == [], "readers do not wait for the writer"
    holder.execute("ROLLBACK")
    holder.close()
    assert store.submit(make_spec("a"), 0, now=1.0).order == 1


# Versions

NOTE = ("ALTER TABLE tasks ADD COLUMN note TEXT", "UPDATE tasks SET note = run_id")
TITLE = ("ALTER TABLE tasks RENAME COLUMN note TO title",)
PRESENT = len(schema.MIGRATIONS)


def columns(path: Path, table: str) -> set[str]:
    connection = sqlite3.connect(path)
    names = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    connection.close()
    return names


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT version FROM rlsched_schema").fetchone()
    connection.close()
    return int(found)


def test_the_last_migration_leaves_the_tables_that_are_used(store: Store, path: Path) -> None:
    for table in schema.TABLES:
        assert columns(path, table.name) == {column.name for column in table.c}


def test_an_older_store_is_migrated_step_by_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_at(path)
    assert version(path) == PRESENT
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, NOTE, TITLE))
    store = open_store(f"sqlite:///{path}")
    assert [task.run_id for task in store.tasks()] == ["a"]
    store.close()
    assert version(path) == PRESENT + 2
    assert "title" in columns(path, "tasks")
    assert "note" not in columns(path, "tasks")


def test_a_store_of_the_first_schema_keeps_its_transitions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (schema.VERSION_1,))
        open_store(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO transitions VALUES (5, 'a', 1, '{}', TRUE)")
    connection.commit()
    connection.close()
    store = open_store(f"sqlite:///{path}")
    assert store.transitions() == [(5, Transition("a", 1, {}, key=True))]
    assert not store.is_time_to_learn(1)
    store.close()


@pytest.mark.parametrize("older", [2, 3])
def test_tasks_of_a_store_that_knew_no_resizing_or_signed_nothing_go_on(
    path: Path, older: int
) -> None:
    open_at(path)
    connection = sqlite3.connect(path)
    added = {3: ["tasks.gpus"], 4: [f"attempts.{c}" for c in ("outlook", "way_for", "way_at")]}
    added[4].append("tasks.proofs")
    for number in range(older + 1, PRESENT + 1):
        for table, _, column in (name.partition(".") for name in added[number]):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.execute("UPDATE rlsched_schema SET version = ?", (older,))
    connection.commit()
    connection.close()
    store = open_store(f"sqlite:///{path}")
    (task,) = store.tasks()
    assert (task.run_id, task.state, task.gpus, task.proofs) == ("a", State.QUEUED, None, {})
    assert store.claim("a", "here", [], 2.0) is not None
    assert [attempt.outlook for attempt in store.attempts("a")] == [None]
    store.close()


def test_a_migration_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_at(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, NOTE, ("DROP TABLE nothing",)))
    with pytest.raises(StoreError, match="nothing"):
        open_at(path)
    assert version(path) == PRESENT
    assert "note" not in columns(path, "tasks")


def test_a_newer_store_is_refused_untouched(path: Path) -> None:
    open_at(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE rlsched_schema SET version = 7")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=rf"newer.*schema 7, this one knows {PRESENT}.*upgrade"):
        open_at(path)
    assert version(path) == 7


def test_specifications_that_are_not_read_for_long_are_forgotten_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_CACHED_SPECS", 2)
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        store.submit(make_spec(name), 0, now=1.0)
    for _ in range(3):
        assert [task.spec.run_id for task in store.tasks()] == names
        assert [store.get(name).spec.run_id for name in names] == names  # type: ignore[union-attr]
    store.close()
