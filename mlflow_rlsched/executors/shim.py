"""The parent of every attempt: starts it, keeps its devices locked, ends its whole tree.

A process of its own, in its own session, with nothing but the standard library, so that it can
outlive the agent and costs little. It is a subreaper: whatever the training forks, daemonises or
abandons becomes its child and ends with the attempt. All it has to say stands in ``exit.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.devices.locks import DeviceLocks, LockError, LockRequest
from mlflow_rlsched.executors import containers
from mlflow_rlsched.filelock import FileLock

LEFTOVER_GRACE_S = 5.0
"""How long processes that outlive the main one may take to end by themselves."""

_TICK_S = 1.0
_HAND_OVER_S = 5.0
_AGENT_CHECK_S = 5.0
_RESERVED_BYTES = 8192
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _adopt_orphans(wanted: bool) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


class Shim:
    """One attempt, from its start to ``exit.json``.

    Args:
        folder: The attempt's directory; ``attempt.json`` says what to run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run_dir = folder.parent.parent
        self._spec = protocol.AttemptSpec.read(folder)
        self._agent = AgentFiles("", Path(self._spec.agent_dir))
        self._main: int | None = None
        self._code: int | None = None
        self._started_at = time.time()
        self._wake = _wake_on_signals()

    def run(self) -> None:
        """Run the attempt; returns when nothing of it is left."""
        lock = FileLock(self._folder / "shim.lock")
        # The lock comes first: an adopter that took it has declared the attempt void.
        if not lock.acquire() or (self._folder / "void").exists() or self._ended():
            return
        me = processes.Identity.of(os.getpid())
        assert me is not None
        protocol.write_json(
            self._folder / "shim.json", me.to_json() | {"since": processes.uptime_s()}
        )
        _reserve(self._folder)
        _adopt_orphans(True)
        locks = DeviceLocks(Path(self._spec.lock_dir))
        try:
            busy = locks.acquire([LockRequest(**request) for request in self._spec.locks])
        except (OSError, LockError) as error:
            self._finish("start_failed", f"cannot lock the devices: {error}")
        else:
            if busy is None:
                reason, message, killed = self._supervise()
                locks.release()
                self._finish(reason, message, killed)
            else:
                self._finish("device_busy", f"device {busy} is locked by another task")
        self._hand_over()

    def _ended(self) -> bool:
        return (self._folder / "exit.json").exists()

    def _supervise(self) -> tuple[str | None, str, int]:
        """Start the main process and see the whole tree to its end."""
        try:
            self._start()
        except OSError as error:
            return "start_failed", f"cannot start {self._spec.argv[0]}: {error}", 0
        reason, message = None, ""
        agent_check = time.monotonic() + _AGENT_CHECK_S
        while self._code is None and reason is None:
            self._pause(_TICK_S)
            if self._code is None:
                reason, message = self._stop_reason()
            if time.monotonic() >= agent_check:
                self._keep_agent()
                agent_check = time.monotonic() + _AGENT_CHECK_S
        patient = self._leftover_patience() if reason is None else self._stop_patience()
        killed = processes.end(self._survivors, patient, self._pause)
        self._reap()
        self._remove_container()
        return reason, message, killed

    def _start(self) -> None:
        environment = protocol.read_json(self._run_dir / "environment.json") or {}
        env = {k: str(v) for k, v in environment.items()}
        with open(self._folder / "output.log", "ab") as output:
            child = subprocess.Popen(
                self._spec.argv,
                cwd=self._spec.cwd,
                env={**env, **self._spec.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=self._prepare_child,
            )
        self._main = child.pid
        child.returncode = 0  # reaped below with all the others, not by Popen

    def _prepare_child(self) -> None:
        # When the shim is killed, the training shall not run on unwatched until the next agent
        # finds what is left of it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        most = self._spec.data_limit_bytes
        if most is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def _survivors(self) -> list[int]:
        # The environment betrays those that escaped while an agent was being started.
        mine = processes.descendants(os.getpid())
        return mine or processes.with_environment("RLSCHED_ATTEMPT_DIR", str(self._folder))

    def _stop_reason(self) -> tuple[str | None, str]:
        """Why this attempt has to end now, as a class and for people; no class if it has not."""
        if not self._folder.exists():
            return "run_deleted", ""
        stop = protocol.read_json(self._folder / "stop.json")
        if stop is not None:
            return str(stop.get("reason", "cancelled")), str(stop.get("message", ""))
        parent = self._spec.parent_attempt_dir
        if parent is not None and (
            (Path(parent) / "exit.json").exists() or not FileLock(Path(parent) / "shim.lock").held()
        ):
            return "parent_ended", ""
        return None, ""

    def _stop_patience(self) -> Callable[[], bool]:
        since = time.monotonic()

        def patient() -> bool:
            stop = protocol.read_json(self._folder / "stop.json") or {}
            grace = stop.get("grace_s", self._spec.grace_s)
            return time.monotonic() < since + float(grace)

        return patient

    def _leftover_patience(self) -> Callable[[], bool]:
        deadline = time.monotonic() + min(LEFTOVER_GRACE_S, self._spec.grace_s)
        return lambda: time.monotonic() < deadline

    def _pause(self, seconds: float) -> None:
        """Sleep until a child ends, a signal arrives or the time is over; reap what ended."""
        ready, _, _ = select.select([self._wake], [], [], seconds)
        if ready:
            os.read(self._wake, 4096)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code

    def _remove_container(self) -> None:
        if self._spec.container is None:
            return
        removal = containers.begin_removal(self._spec.container, self._run_dir)
        if removal is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                removal.wait(containers.REMOVAL_S)

    def _finish(self, reason: str | None, message: str, killed: int = 0) -> None:
        """Write ``exit.json`` into the space that was reserved: it works on a full disk too."""
        ending = protocol.Exit(
            self._spec.attempt, self._code, reason, message, killed, self._started_at, time.time()
        )
        data = json.dumps(asdict(ending)).encode().ljust(_RESERVED_BYTES)
        reserved = self._folder / ".exit.json"
        with contextlib.suppress(FileNotFoundError):  # the run directory may have been deleted
            with open(reserved, "r+b") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(reserved, self._folder / "exit.json")

    def _hand_over(self) -> None:
        """Have an agent look at the ending: one that was just killed still holds its lock."""
        self._keep_agent()
        with contextlib.suppress(OSError):
            self._agent.wake()
        deadline = time.monotonic() + _HAND_OVER_S
        while self._agent.unread() and time.monotonic() < deadline:
            self._pause(_TICK_S / 10)
        self._keep_agent()

    def _keep_agent(self) -> None:
        """Start an agent when it is dead; what fails is tried again later."""
        with contextlib.suppress(OSError):
            if self._agent.folder.exists() and not self._agent.alive():
                self._start_agent()

    def _start_agent(self) -> None:
        """Start an agent out of reach of our own cleaning up."""
        _adopt_orphans(False)
        try:
            middle = os.fork()
            if middle == 0:
                try:
                    self._agent.start(self._spec.agent_argv)
                finally:
                    os._exit(0)
            os.waitpid(middle, 0)
        finally:
            _adopt_orphans(True)


def _reserve(folder: Path) -> None:
    with open(folder / ".exit.json", "wb") as file:
        file.write(b" " * _RESERVED_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _wake_on_signals() -> int:
    """A descriptor that becomes readable at SIGTERM and SIGCHLD; hang-ups are ignored."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Handlers that do nothing, not SIG_IGN: the training would inherit an ignored signal.
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def main() -> None:
    """Run the attempt whose directory comes by the standard input; without one, end.

    So an agent can start a shim before there is anything to run, and one that it does not need any
    more, or that outlives it, ends by itself.
    """
    name = sys.stdin.buffer.read()
    if not name:
        return
    folder = Path(os.fsdecode(name))
    with open(folder / "shim.log", "ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    Shim(folder).run()


if __name__ == "__main__":
    main()
