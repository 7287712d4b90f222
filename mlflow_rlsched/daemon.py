"""How the agent of a store is found, woken and started (stdlib only).

One agent serves one user, host and store. Whoever holds ``lock`` in the agent's folder is that
agent; a byte into the FIFO ``wake`` makes it look at the store at once. Submitters, waiting
commands and shims start a dead agent; ``rlsched agent stop`` leaves a file ``held`` so that
they do not, until the next submission.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import signal
import sys
import termios
import time
from pathlib import Path
from typing import Any

from mlflow_rlsched import __version__, processes, protocol
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.sharing import SQLITE, agents_dir, is_shared

IDLE_TIMEOUT_S = 60
REPLACE_WAIT_S = 30.0
DROPPED = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CUDA_VISIBLE_DEVICES", "RLSCHED_POLICY")
DROPPED_PREFIXES = ("RLSCHED_CFG_", "RLSCHED_ATTEMPT", "RLSCHED_RUN_", "RLSCHED_CHECKPOINT_")


def home() -> Path:
    """``$RLSCHED_HOME``, by default ``~/.rlsched``, as an absolute path."""
    return Path(os.environ.get("RLSCHED_HOME") or "~/.rlsched").expanduser().absolute()


def locks_dir() -> Path:
    """Where this user's processes wait for each other, made if absent."""
    home().mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = home() / "locks"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def submissions_dir() -> Path:
    """Where submissions that are not complete are on record."""
    return home() / "submissions"


def user_name() -> str:
    """Name of the operating-system user; the number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def agent_folder(store: str) -> Path:
    """Where the agent of a store keeps its files on this host, and this user the key that signs.

    Beside the store, so that it is one whatever ``RLSCHED_HOME`` says. Where users share the store
    an administrator has made a folder for each.
    """
    if is_shared(store):
        return agents_dir(store) / user_name()
    return Path(store.removeprefix(SQLITE) + "-agent")


class AgentFiles:
    """The folder of one store's agent on this host.

    Args:
        store: Absolute URL of the store, as ``config`` resolves it.
        folder: The folder itself, when the caller has it already (the shim).
    """

    def __init__(self, store: str, folder: Path | None = None) -> None:
        self.store = store
        self.folder = folder = folder or agent_folder(store)
        self.lock = FileLock(folder / "lock")
        self.log = folder / "agent.log"
        self.held = folder / "held"
        self._wake = folder / "wake"

    def create(self) -> None:
        """Make the folder and the FIFO, if absent."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._wake, 0o600)

    def alive(self) -> bool:
        """Whether an agent holds the lock now."""
        return self.lock.held()

    def identity(self) -> dict[str, Any]:
        """What the agent said of itself when it started: ``process``, ``version``."""
        return protocol.read_json(self.folder / "agent.json") or {}

    def introduce(self, version: str) -> None:
        """Write who the agent is (called by the agent, holding the lock)."""
        me = processes.Identity.of(os.getpid())
        assert me is not None
        value = {"process": me.to_json(), "version": version, "python": sys.executable}
        protocol.write_json(self.folder / "agent.json", value)

    def open_wake(self) -> int:
        """A descriptor that becomes readable when somebody wakes the agent."""
        return os.open(self._wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """Make the agent look at the store at once; nothing happens when there is none."""
        try:
            descriptor = os.open(self._wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return
            raise
        try:
            os.write(descriptor, b"\n")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already
        finally:
            os.close(descriptor)

    def unread(self) -> bool:
        """Whether an agent, which may be dying, has not yet read all that woke it."""
        try:
            descriptor = os.open(self._wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        finally:
            os.close(descriptor)
        return int.from_bytes(waiting, sys.byteorder) > 0

    def argv(self) -> list[str]:
        """The command that starts an agent for this store."""
        command = ["-m", "mlflow_rlsched", "agent", "run", "--store", self.store]
        return [sys.executable, *command, "--idle-timeout", str(IDLE_TIMEOUT_S)]

    def start(self, argv: list[str] | None = None) -> None:
        """Start an agent, unless one lives or the user stopped it on purpose.

        An agent of an older version is replaced: it is asked to end, which leaves its attempts
        running for the next one. Two that start an agent at the same moment are harmless: the
        second agent finds the lock taken.
        """
        if self.held.exists() or (self.alive() and not self._end_older()):
            return
        self.create()
        env = {
            k: v
            for k, v in os.environ.items()
            if k not in DROPPED and not k.startswith(DROPPED_PREFIXES)
        }
        processes.spawn_detached(argv or self.argv(), env, self.log)

    def _end_older(self) -> bool:
        """End the living agent if its version is older than ours; whether it has ended."""
        said = self.identity()
        agent = processes.Identity.from_json(said.get("process"))
        if agent is None or _release(str(said.get("version"))) >= _release(__version__):
            return False
        deadline = time.monotonic() + REPLACE_WAIT_S
        if agent.signal(signal.SIGTERM):
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.05)
        return not self.alive()


def _release(version: str) -> list[int]:
    """The numbers of a version, without what marks a pre-release or a build."""
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []
