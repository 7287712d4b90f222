"""Attempts under a real shim: trees that resist, shims that die, disks that are full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.executors.local import LocalExecutor
from mlflow_rlsched.filelock import FileLock


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> object:
    """Poll until the condition is true; its value, or a failure."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return value


class Attempt:
    """A run directory with one attempt, and the executor that runs it."""

    def __init__(self, root: Path) -> None:
        self.run_dir = root / "run"
        self.run_dir.mkdir()
        self.folder = protocol.attempt_dir(self.run_dir, 1)
        self.executor = LocalExecutor(os.environ)
        self.locks = root / "locks"
        self.locks.mkdir()
        self.agent = root / "agent"
        self.agent.mkdir()
        self.agent_argv = ["true"]

    def start(self, *argv: str, grace_s: float = 5.0, **more: object) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RLSCHED_")}
        protocol.write_json(self.run_dir / "environment.json", environment)
        values: dict[str, object] = {
            "run_id": "r",
            "attempt": 1,
            "argv": list(argv),
            "cwd": str(self.run_dir),
            "env": {"RLSCHED_ATTEMPT_DIR": str(self.folder)},
            "locks": [{"device": "cpu-0", "amount": 100, "parent": None}],
            "lock_dir": str(self.locks),
            "grace_s": grace_s,
            "parent_attempt_dir": None,
            "container": None,
            "agent_argv": self.agent_argv,
            "agent_dir": str(self.agent),
        }
        self.executor.launch(self.run_dir, protocol.AttemptSpec(**{**values, **more}))  # type: ignore[arg-type]

    def ended(self, seconds: float = 20.0) -> protocol.Exit:
        value = wait_for(lambda: self.executor.ended(self.folder), seconds)
        assert isinstance(value, protocol.Exit)
        return value

    def wrote(self, name: str) -> str:
        path = self.run_dir / name
        return str(wait_for(lambda: path.exists() and path.read_text()))

    def left(self) -> list[int]:
        return processes.with_environment("RLSCHED_ATTEMPT_DIR", str(self.folder))


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    value = Attempt(tmp_path)
    yield value
    processes.send(value.left(), signal.SIGKILL)


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", textwrap.dedent(code)


def test_exit_code_and_output_are_kept(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "echo to stdout; echo to stderr >&2; exit 3")
    ending = attempt.ended()
    assert (ending.code, ending.reason, ending.killed) == (3, None, 0)
    assert (attempt.folder / "output.log").read_text() == "to stdout\nto stderr\n"
    assert ending.ended_at >= ending.started_at > 0


def test_death_by_a_signal_is_128_plus_its_number(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "kill -9 $$")
    assert attempt.ended().code == 137


def test_command_that_cannot_start_says_so(attempt: Attempt) -> None:
    attempt.start("/no/such/program")
    ending = attempt.ended()
    assert ending.reason == "start_failed"
    assert "/no/such/program" in ending.message


def test_grandchildren_that_ignore_term_are_killed_after_the_grace(attempt: Attempt) -> None:
    worker = attempt.run_dir / "worker.sh"
    worker.write_text("trap '' TERM; echo $$ >> pids; while :; do sleep 0.1; done")
    train = attempt.run_dir / "train.sh"
    train.write_text(f"bash {worker} & bash {worker} & wait")
    attempt.start("bash", "-c", f"bash {train} & wait")
    wait_for(lambda: len(attempt.wrote("pids").split()) == 2)
    began = time.monotonic()
    attempt.executor.stop(attempt.folder, "cancelled", 0.5)
    ending = attempt.ended()
    assert ending.reason == "cancelled"
    assert ending.killed >= 2
    assert 0.4 < time.monotonic() - began < 10
    assert attempt.left() == []


def test_graceful_end_within_the_grace_kills_nobody(attempt: Attempt) -> None:
    attempt.start(
        *python("""
        import signal, sys, time, pathlib
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        pathlib.Path("ready").write_text("x")
        while True: time.sleep(0.05)
        """)
    )
    attempt.wrote("ready")
    attempt.executor.stop(attempt.folder, "preempted", 20)
    ending = attempt.ended()
    assert (ending.code, ending.reason, ending.killed) == (75, "preempted", 0)


def test_daemons_do_not_outlive_the_main_process(attempt: Attempt) -> None:
    attempt.start(
        *python("""
        import os, pathlib, subprocess, sys
        code = "import os,time,pathlib; os.environ.clear(); pathlib.Path('daemon').write_text(str(os.getpid())); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={})
        while not (pathlib.Path("daemon").exists() and pathlib.Path("daemon").read_text()): pass
        """)
    )
    ending = attempt.ended()
    assert ending.code == 0
    pid = int(attempt.wrote("daemon"))
    assert processes.Identity.of(pid) is None


def test_device_locked_elsewhere_is_busy_and_nothing_starts(attempt: Attempt) -> None:
    from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest

    other = DeviceLocks(attempt.locks)
    assert other.acquire([LockRequest("cpu-0")]) is None
    attempt.start("touch", "ran")
    ending = attempt.ended()
    other.release()
    assert ending.reason == "device_busy"
    assert "cpu-0" in ending.message
    assert not (attempt.run_dir / "ran").exists()


def test_lock_is_held_exactly_as_long_as_the_attempt(attempt: Attempt) -> None:
    from mlflow_rlsched.devices.locks import free_amount

    attempt.start("bash", "-c", "echo x > up; sleep 600")
    attempt.wrote("up")
    assert free_amount(attempt.locks, "cpu-0") == 0
    attempt.executor.stop(attempt.folder, "cancelled", 5)
    attempt.ended()
    assert free_amount(attempt.locks, "cpu-0") == 100


def test_killed_shim_is_buried_with_all_its_processes(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "sleep 600 & echo x > up; wait")
    attempt.wrote("up")
    shim = attempt.executor.shim(attempt.folder)
    assert shim is not None
    shim.signal(signal.SIGKILL)
    # An agent that did not start the attempt finds the same.
    attempt.executor = LocalExecutor(os.environ)
    ending = attempt.ended()
    assert (ending.code, ending.reason) == (None, "lost")
    assert attempt.left() == []
    assert (attempt.folder / "void").exists()


def test_late_shim_of_a_void_attempt_gives_up(attempt: Attempt) -> None:
    attempt.folder.mkdir(parents=True)
    (attempt.folder / "void").touch()
    attempt.start("touch", "ran")
    shim = attempt.executor._shims[attempt.folder]
    assert shim.wait(20) == 0
    assert not (attempt.run_dir / "ran").exists()


def test_second_shim_of_the_same_attempt_gives_up(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "echo x >> up; sleep 600")
    attempt.wrote("up")
    command = [sys.executable, "-m", "mlflow_rlsched.executors.shim", str(attempt.folder)]
    assert subprocess.run(command, timeout=20, check=False).returncode == 0
    assert attempt.wrote("up") == "x\n"
    attempt.executor.stop(attempt.folder, "cancelled", 0)
    attempt.ended()


def test_attempt_whose_agent_died_before_the_start_is_told_apart(attempt: Attempt) -> None:
    assert attempt.executor.ended(attempt.folder) == protocol.Exit(
        1, None, "not_started", "its agent died first"
    )


def test_nested_attempt_ends_with_its_parent(attempt: Attempt, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    lock = FileLock(parent / "shim.lock")
    assert lock.acquire()
    attempt.start("bash", "-c", "echo x > up; sleep 600", parent_attempt_dir=str(parent))
    attempt.wrote("up")
    assert attempt.executor.ended(attempt.folder) is None
    lock.release()
    assert attempt.ended().reason == "parent_ended"


def test_shim_starts_a_dead_agent_that_outlives_the_attempt(attempt: Attempt) -> None:
    attempt.agent_argv = ["bash", "-c", f"echo $$ > {attempt.run_dir}/agent; sleep 600"]
    attempt.start("true")
    pid = int(attempt.wrote("agent"))
    try:
        attempt.ended()
        shim = attempt.executor._shims.get(attempt.folder)
        assert shim is None or shim.wait(20) == 0
        assert processes.Identity.of(pid) is not None
    finally:
        os.kill(pid, signal.SIGKILL)


def test_exit_is_written_when_the_disk_is_full(attempt: Attempt) -> None:
    # A limit on the size of files stands for the full disk: every write beyond it fails.
    attempt.start("bash", "-c", "echo x > up; while [ ! -e go ]; do sleep 0.02; done; exit 4")
    attempt.wrote("up")
    shim = attempt.executor.shim(attempt.folder)
    assert shim is not None
    import resource

    resource.prlimit(shim.pid, resource.RLIMIT_FSIZE, (8192, 8192))
    (attempt.run_dir / "go").touch()
    assert attempt.ended().code == 4
