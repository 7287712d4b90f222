"""What is SQLite's own: the file, its locks, its pragmas and its errors."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DatabaseError, IntegrityError, ProgrammingError
from sqlalchemy.pool import QueuePool

from mlflow_rlsched.daemon import agent_folder
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.sharing import is_shared, why_unsafe
from mlflow_rlsched.store.interface import StoreError, StoreGone

T = TypeVar("T")

LOCK_WAIT_S = 30.0
MAX_PATH_BYTES = 500  # SQLite's limit is 512, with the names of its side files
MOUNTS = Path("/proc/self/mountinfo")
REMEDY = 'name another place by "store" in the backend configuration, or set RLSCHED_HOME'

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|9p|afs|lustre|gpfs|beegfs|ceph|glusterfs|ocfs2|gfs2|orangefs|pvfs2|panfs"
    r"|fuse\.(sshfs|glusterfs|ceph.*|s3fs|gcsfuse|rclone|juicefs|mfs|goofys|davfs2|curlftpfs)"
)
_BUSY = ("locked", "locking protocol")
_REASONS = {
    "disk is full": "the disk is full: free some space",
    "readonly database": "it or its folder is read-only: make both writable",
    "unable to open": f"it cannot be opened: make it and its folder writable, or {REMEDY}",
    "not a database": f"the file is not a store: move it away, or {REMEDY}",
    "malformed": f"the file is damaged: move it away to begin anew, or {REMEDY}",
    "disk i/o error": "the disk reports an error: see the system's log, and free some space",
}


def file_system(path: Path, mounts: Path) -> str:
    """Type of the file system that holds ``path`` (which need not exist), "" if unknown.

    Args:
        path: Absolute path.
        mounts: Table of mounts: ``MOUNTS``, or a file in its format.
    """
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        escaped = fields.split(" ")[4]
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), escaped)
        # A later mount at the same point hides the earlier one.
        if real.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split(" ")[0]
    return kind


def refuse_network(path: Path, mounts: Path) -> None:
    """Raise ``StoreError`` when ``path`` lies on a network file system.

    SQLite's write-ahead log needs memory and locks that all its users share: on a network file
    system it loses data without a word.
    """
    kind = file_system(path, mounts)
    if _NETWORK.fullmatch(kind):
        raise StoreError(
            f"store {path} is on a network file system ({kind}), where SQLite loses data: "
            f'put it on a local disk, by "store" in the backend configuration or by RLSCHED_HOME'
        )


def _make(path: Path) -> os.stat_result:
    """Make an empty database readable by its user alone, unless there is one."""
    # One that exists is not opened here: to close any descriptor of a file drops the locks of all
    # SQLite connections that this process has to it, and another process then takes away the log.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return os.stat(path)


class SqliteDatabase:
    """A SQLite file that several threads and processes use at once.

    Args:
        url: ``sqlite:///<absolute path>``.

    Raises:
        StoreError: The file cannot be made or opened.
    """

    def __init__(self, url: str) -> None:
        self.path = Path(url.removeprefix("sqlite:///"))
        if not self.path.is_absolute():
            raise StoreError(f"store {url!r} has no absolute path: write sqlite:////folder/file.db")
        if (length := len(os.fsencode(self.path))) > MAX_PATH_BYTES:
            raise StoreError(
                f"the path of the store is too long ({length} bytes, at most {MAX_PATH_BYTES}): "
                f"{REMEDY}"
            )
        try:
            refuse_network(self.path, MOUNTS)
            self._shared = is_shared(url)
            if self._shared and (why := why_unsafe(self.path, agent_folder(url))):
                raise StoreError(f"store {self.path}: {why}; or {REMEDY}")
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _make(self.path)
        except OSError as error:
            raise StoreError(f"store {self.path}: {error.strerror}: {REMEDY}") from error
        self._engine = create_engine(
            "sqlite://", creator=self._connect, poolclass=QueuePool, max_overflow=-1
        )
        event.listen(self._engine, "begin", _begin)

    def transact(self, work: Callable[[Connection], T], *, write: bool) -> T:
        """Do ``work`` in one transaction, again from its start when the file was locked.

        Raises:
            StoreGone: The file was deleted or replaced since it was opened.
            StoreError: The file cannot be used, or stayed locked.
        """
        engine = self._engine.execution_options(begin="BEGIN IMMEDIATE" if write else "BEGIN")

        def once() -> T:
            with engine.begin() as connection:
                self._check_file()
                return work(connection)

        return self._unlocked(once)

    @contextmanager
    def migrating(self) -> Iterator[None]:
        """Keep other processes from migrating; turns on the write-ahead log."""
        lock = FileLock(Path(f"{self.path}.lock"))
        try:
            if not lock.acquire(LOCK_WAIT_S):
                raise StoreError(f"store {self.path} is being migrated elsewhere: try later")
        except OSError as error:
            raise StoreError(f"{lock.path}: {error.strerror}: {REMEDY}") from error
        try:
            self._unlocked(self._use_write_ahead_log)
            yield
        finally:
            lock.release()

    def close(self) -> None:
        """Close the connections that no transaction uses."""
        self._engine.dispose()

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a connection never makes a file where the store was deleted.
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=LOCK_WAIT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        # Triggers and the like that somebody else wrote into a shared store call no functions.
        connection.execute("PRAGMA trusted_schema=OFF")
        return connection

    def _use_write_ahead_log(self) -> None:
        with self._engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
            if self._shared and mode != "wal":
                # The change itself would make a journal, where users make no files.
                connection.exec_driver_sql("PRAGMA journal_mode=MEMORY")
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    def _check_file(self) -> None:
        try:
            there = os.path.samestat(os.stat(self.path), self._file)
        except OSError:
            there = False
        if not there:
            raise StoreGone(f"store {self.path} was deleted or replaced while it was in use")

    def _unlocked(self, once: Callable[[], T]) -> T:
        """Call ``once`` until it does not meet a lock, up to ``LOCK_WAIT_S``.

        SQLite itself waits for the usual locks; those of recovery, of a closing last connection
        and of a change of the journal mode come back at once.
        """
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return once()
            except (IntegrityError, ProgrammingError):
                raise
            except DatabaseError as error:
                text = str(error.orig).lower()
                self._check_file()
                if not any(word in text for word in _BUSY):
                    reason = next((r for key, r in _REASONS.items() if key in text), text)
                    raise StoreError(f"store {self.path}: {reason}") from error
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"store {self.path} is locked by another process for more than "
                        f"{LOCK_WAIT_S:.0f} s: end what holds it"
                    ) from error
            time.sleep(0.02)


def _begin(connection: Connection) -> None:
    statement = connection.get_execution_options().get("begin")
    if statement is not None:
        connection.exec_driver_sql(statement)
