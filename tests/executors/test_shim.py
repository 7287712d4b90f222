"""Attempts under a real shim: trees that resist, shims that die, disks that are full."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from mlflow_rlsched import processes
from mlflow_rlsched.filelock import FileLock
from tests.executors.attempts import Attempt, python
from tests.world import wait_for


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


def test_a_process_may_not_reserve_more_than_its_limit(attempt: Attempt) -> None:
    code = """
    import os, sys
    bytearray(100_000_000)
    if os.fork() == 0:
        try:
            bytearray(400_000_000)
        except MemoryError:
            os._exit(12)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    attempt.start(*python(code), data_limit_bytes=300_000_000)
    assert attempt.ended().code == 12, "its children may not either"


def test_what_is_said_with_a_request_to_stop_stands_in_the_ending(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "trap '' TERM; echo > ready; while :; do sleep 0.1; done")
    attempt.wrote("ready")
    attempt.executor.stop(attempt.folder, "oom", 0.0, "above its cap")
    ending = attempt.ended()
    assert (ending.reason, ending.message, ending.code) == ("oom", "above its cap", 137)


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
        code = "import os, time, pathlib; os.environ.clear(); "
        code += "pathlib.Path('daemon').write_text(str(os.getpid())); time.sleep(600)"
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


def test_training_does_not_outlive_a_killed_shim(attempt: Attempt) -> None:
    attempt.start("sleep", "600")
    (training,) = wait_for(attempt.left)
    shim = attempt.executor.shim(attempt.folder)
    assert shim is not None
    shim.signal(signal.SIGKILL)
    wait_for(lambda: processes.Identity.of(training) is None)


def test_attempt_whose_run_directory_was_deleted_ends(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "echo x > up; sleep 600", cwd="/", grace_s=0.0)
    wait_for(attempt.left)
    shim = attempt.executor.shim(attempt.folder)
    assert shim is not None
    shutil.rmtree(attempt.run_dir)
    wait_for(lambda: not shim.alive())
    assert attempt.left() == []
    ending = attempt.ended()
    assert ending.reason == "start_failed"
    assert f"{attempt.run_dir} was deleted" in ending.message


def test_shim_that_fails_by_itself_says_why(attempt: Attempt) -> None:
    attempt.start("touch", "ran", locks=[{"colour": "red"}])
    ending = attempt.ended()
    assert ending.reason == "start_failed", "it would fail again"
    assert "unexpected keyword argument 'colour'" in ending.message
    assert f"see {attempt.folder / 'shim.log'}" in ending.message
    assert not (attempt.run_dir / "ran").exists()


def test_shim_that_fails_while_the_training_runs_says_why(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "echo x > up; sleep 600")
    attempt.wrote("up")
    (attempt.folder / "stop.json").write_text('{"reason": "cancelled", "grace_s": "soon"}')
    ending = attempt.ended()
    assert ending.reason == "lost", "it can be tried again"
    assert "could not convert string to float: 'soon'" in ending.message
    assert attempt.left() == []


def test_agent_folder_that_was_deleted_is_not_made_anew(attempt: Attempt) -> None:
    attempt.agent_argv = ["touch", str(attempt.run_dir / "agent")]
    attempt.agent.rmdir()
    attempt.start("true")
    shim = attempt.executor._shims[attempt.folder]
    assert shim.wait(20) == 0
    assert not attempt.agent.exists()
    assert not (attempt.run_dir / "agent").exists()
    assert attempt.ended().code == 0
