"""Attempts as an agent finds them, the one that started them and a later one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.executors.local import LocalExecutor
from mlflow_rlsched.filelock import FileLock
from tests.executors.attempts import Attempt
from tests.world import wait_for


@pytest.fixture
def bystander() -> Iterator[processes.Identity]:
    """A process that has nothing to do with any attempt."""
    process = subprocess.Popen(["sleep", "600"])
    identity = processes.Identity.of(process.pid)
    assert identity is not None
    yield identity
    process.kill()
    process.wait()


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


def test_what_lives_is_found_by_its_processes_and_its_agent(attempt: Attempt) -> None:
    attempt.start("bash", "-c", "echo x > up; sleep 600")
    attempt.wrote("up")
    later = LocalExecutor(os.environ)
    assert later.alive(attempt.agent) == {attempt.folder: protocol.AttemptSpec.read(attempt.folder)}
    assert later.alive(attempt.agent / "another") == {}
    later.stop(attempt.folder, "forged", 5.0)
    assert attempt.ended().reason == "forged"
    assert later.alive(attempt.agent) == {}


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
    command = [sys.executable, "-m", "mlflow_rlsched.executors.shim"]
    name = os.fsencode(attempt.folder)
    assert subprocess.run(command, input=name, timeout=20, check=False).returncode == 0
    assert attempt.wrote("up") == "x\n"
    attempt.executor.stop(attempt.folder, "cancelled", 0)
    attempt.ended()


def test_a_shim_is_there_before_its_attempt(attempt: Attempt) -> None:
    attempt.start("true")
    attempt.ended()
    spare = attempt.executor._spare
    assert spare is not None
    attempt.start("bash", "-c", "echo x > up; sleep 600", attempt=2)
    attempt.wrote("up")
    second = protocol.attempt_dir(attempt.run_dir, 2)
    assert attempt.executor._shims[second] is spare
    shim = attempt.executor.shim(second)
    assert shim is not None
    assert shim.pid == spare.pid
    attempt.executor.stop(second, "cancelled", 0)
    wait_for(lambda: attempt.executor.ended(second))


def test_a_shim_that_is_not_needed_ends_and_one_that_was_killed_is_replaced(
    attempt: Attempt,
) -> None:
    attempt.start("true")
    attempt.ended()
    killed = attempt.executor._spare
    assert killed is not None
    killed.kill()
    killed.wait()
    attempt.start("touch", "ran", attempt=2)
    second = protocol.attempt_dir(attempt.run_dir, 2)
    ending = wait_for(lambda: attempt.executor.ended(second))
    assert (ending.code, ending.reason) == (0, None)
    spare = attempt.executor._spare
    assert spare is not None
    attempt.executor.close()
    assert spare.poll() == -signal.SIGKILL


def test_a_suspended_shim_that_is_not_needed_holds_up_nobody(attempt: Attempt) -> None:
    attempt.start("true")
    spare = attempt.executor._spare
    assert spare is not None
    spare.send_signal(signal.SIGSTOP)
    attempt.executor.close()
    assert spare.poll() == -signal.SIGKILL


def test_attempt_whose_agent_died_before_the_start_is_told_apart(attempt: Attempt) -> None:
    assert attempt.executor.ended(attempt.folder) == protocol.Exit(
        1, None, "not_started", "its agent died first"
    )


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot": "another"}])
def test_recycled_pid_of_a_shim_is_never_signalled(
    attempt: Attempt, bystander: processes.Identity, change: dict[str, object]
) -> None:
    attempt.folder.mkdir(parents=True)
    forged = replace(bystander, **change)  # type: ignore[arg-type]
    protocol.write_json(attempt.folder / "shim.json", forged.to_json())
    protocol.write_json(attempt.folder / "attempt.json", {})
    assert attempt.executor.shim(attempt.folder) is None
    assert attempt.executor.age_s(attempt.folder) == 0.0
    attempt.executor.stop(attempt.folder, "cancelled", 0)
    assert attempt.ended().reason == "lost"
    assert bystander.alive()


def test_wild_record_of_a_shim_is_no_shim(attempt: Attempt) -> None:
    attempt.folder.mkdir(parents=True)
    for text in ("", "[]", '{"pid": "x"}', '{"pid": -1, "start_ticks": 0, "boot": ""}'):
        (attempt.folder / "shim.json").write_text(text)
        assert attempt.executor.shim(attempt.folder) is None


def test_shim_that_died_at_once_is_lost_to_its_agent_and_not_started_for_a_later_one(
    attempt: Attempt,
) -> None:
    """A task whose shims all die at once must not be tried for ever."""
    lock = FileLock(attempt.folder / "shim.lock")
    attempt.folder.mkdir(parents=True)
    assert lock.acquire()  # so that the shim gives up before it begins
    attempt.start("touch", "ran")
    assert attempt.executor._shims[attempt.folder].wait(20) == 0
    lock.release()
    later = LocalExecutor(os.environ)
    found = wait_for(lambda: later.ended(attempt.folder))
    assert found.reason == "not_started"
    assert attempt.ended().reason == "lost"
    assert not (attempt.run_dir / "ran").exists()


def test_process_that_shows_its_attempt_late_is_found(attempt: Attempt) -> None:
    """What a dying shim was just starting has not the attempt's environment yet."""
    attempt.folder.mkdir(parents=True)
    protocol.write_json(attempt.folder / "attempt.json", {})
    assert attempt.executor.ended(attempt.folder) is None
    late = subprocess.Popen(
        ["sleep", "600"], env={"RLSCHED_ATTEMPT_DIR": str(attempt.folder)}, start_new_session=True
    )
    assert attempt.ended().reason == "not_started"
    assert late.wait(20) == -signal.SIGKILL


def test_orphans_are_ended_although_the_run_directory_is_gone(attempt: Attempt) -> None:
    orphan = subprocess.Popen(["sleep", "600"], env={"RLSCHED_ATTEMPT_DIR": str(attempt.folder)})
    assert attempt.ended().reason == "not_started"
    assert orphan.wait(20) == -signal.SIGKILL


def test_age_of_an_attempt_is_no_matter_of_the_wall_clock(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt.start("bash", "-c", "echo x > up; sleep 600")
    attempt.wrote("up")
    later = LocalExecutor(os.environ)
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: 0.0)
        assert 0.0 < later.age_s(attempt.folder) < 20.0
    later.stop(attempt.folder, "cancelled", 0)
    attempt.ended()
