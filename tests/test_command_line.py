"""``mlflow run --backend rlsched``: what it says, and what ends it and what does not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mlflow_rlsched.store import State, Task
from tests.test_lifecycle import LONG, QUICK
from tests.world import FAULTY, World, wait_for

MOMENTS = 12
LINES = 16
LOUD = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.005; done"


def project(world: World, command: str) -> Path:
    folder = world.root / "project"
    folder.mkdir()
    (folder / "run.sh").write_text(command)
    (folder / "MLproject").write_text("entry_points: {main: {command: sh run.sh}}")
    return folder


def in_shell(world: World, line: str, **more: str) -> subprocess.Popen[bytes]:
    """Start a shell command line, with ``$RUN`` for ``mlflow run --backend rlsched``."""
    bin_dir = Path(sys.executable).parent
    env = world.env | {"RUN": f"{bin_dir}/mlflow run --backend rlsched"} | more
    pipe = subprocess.PIPE
    return subprocess.Popen(["bash", "-c", line], env=env, cwd=world.folder, stdout=pipe)


def only_task(world: World, *states: State) -> Task:
    """The one task, once it is in one of these states."""
    wait_for(lambda: world.store.tasks(states or None), 60)
    (task,) = world.store.tasks()
    return task


@pytest.mark.parametrize("errors", ["2>err", "2>&1"])
def test_a_reader_that_leaves_neither_ends_the_run_nor_the_command(
    world: World, errors: str
) -> None:
    folder = project(world, LOUD)
    process = in_shell(world, f"$RUN {folder} {errors} | head -1; echo ${{PIPESTATUS[0]}}")
    output, _ = process.communicate(timeout=120)
    first, code = output.decode().splitlines()
    assert (first == "line 0" or "is queued" in first, code) == (True, "0")
    if errors == "2>err":
        text = (world.folder / "err").read_text()
        assert "Traceback" not in text
        assert "Exception" not in text
    assert only_task(world).state is State.FINISHED


def test_output_passes_through_byte_by_byte(world: World) -> None:
    folder = project(
        world,
        r"printf 'caf\303\251 \351\377\000'; sleep 0.5; printf '\303'; sleep 0.5; printf '\251\n'",
    )
    process = in_shell(world, f"$RUN {folder} 2>/dev/null", PYTHONIOENCODING="ascii", LC_ALL="C")
    output, _ = process.communicate(timeout=120)
    assert output == b"caf\xc3\xa9 \xe9\xff\x00\xc3\xa9\n"


def test_a_hang_up_leaves_the_run_going(world: World) -> None:
    process = world.mlflow_run(FAULTY, "-e", "script", "-P", "steps=100", "-P", "step_s=0.03")
    task = only_task(world, State.RUNNING)
    world.running(task.run_id)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGHUP
    assert world.over(task.run_id).state is State.FINISHED


def test_a_command_in_the_background_does_not_listen_to_interrupts(world: World) -> None:
    """As in ``mlflow run … &`` in a script: there the shell lets SIGINT be ignored."""
    process = world.mlflow_run(
        FAULTY,
        "-e",
        "script",
        "-P",
        "steps=50",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    task = only_task(world, State.RUNNING)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert world.task(task.run_id).state is State.FINISHED


def test_it_says_once_what_a_run_waits_for(world: World) -> None:
    first = world.submit(FAULTY, "script", LONG, {"cpu_slots": 2, "grace_s": 0})
    world.running(first.run_id)
    second = world.submit(FAULTY, "script", QUICK, {"cpu_slots": 2})
    process = world.mlflow_run(
        FAULTY, "-e", "script", "-P", "steps=1", config={"cpu_slots": 2}, bufsize=1
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "waits for" in line:
            first.cancel()
    assert process.wait(60) == 0
    (says,) = [line for line in lines if "waits for" in line]
    assert "waits for 2 CPU slots: 1 run before it, 1 running" in says
    assert world.task(second.run_id).state is State.FINISHED


def test_it_says_why_an_attempt_starts_again(world: World) -> None:
    process = world.mlflow_run(
        FAULTY, "-e", "count", "-P", "batch_size=64", "-P", "fits=60", "-P", "steps=2"
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    starts = [line for line in output.splitlines() if "Attempt" in line]
    (line,) = starts
    assert (
        "=== Attempt 2 starts: out of memory at batch size 64: going on with 54, 15 % less ==="
        in line
    )


def test_a_resumed_run_shows_its_new_output_only(world: World) -> None:
    before = world.submit(FAULTY, "script", {"steps": 3, "step_s": 0, "exit_code": 1})
    world.over(before.run_id)
    given = ("-P", "steps=3", "-P", "step_s=0", "-P", "exit_code=1")
    process = world.mlflow_run(
        FAULTY, "-e", "script", *given, config={"resume_run_id": before.run_id}
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    steps = [line for line in output.splitlines() if line.startswith("step")]
    assert steps == ["step 1", "step 2", "step 3"]
    assert "Attempt" not in output


def test_an_agent_that_was_stopped_is_not_started_behind_its_users_back(world: World) -> None:
    first = world.submit(FAULTY, "script", LONG, {"cpu_slots": 2, "grace_s": 0})
    world.running(first.run_id)
    process = world.mlflow_run(FAULTY, "-e", "script", "-P", "steps=1")
    wait_for(lambda: world.store.tasks([State.QUEUED]), 60)
    assert world.rlsched("agent", "stop").returncode == 0
    assert process.stderr is None
    assert process.stdout is not None
    for line in process.stdout:
        if "No agent runs" in line:
            break
    assert "it was stopped; `rlsched agent start` starts it again" in line
    assert not world.agent.alive()
    assert world.rlsched("agent", "start").returncode == 0
    first.cancel()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_interrupts_at_any_moment(world: World) -> None:
    """Whenever it comes, nothing is left alive and MLflow knows how the run ended."""
    arguments = (FAULTY, "-e", "script", "-P", "steps=50", "-P", "step_s=0.02")
    world.over(world.submit(FAULTY, "script", QUICK).run_id)  # starts the agent
    began = time.monotonic()
    world.mlflow_run(*arguments).communicate(timeout=120)
    whole = time.monotonic() - began
    known = {run.info.run_id for run in world.client.search_runs(["0"])}
    chance = random.Random(20)
    for _ in range(MOMENTS):
        number = chance.choice([signal.SIGINT, signal.SIGTERM])
        # Most of the time goes by before our own code is reached at all.
        moment = whole * chance.triangular(0.0, 1.1, 0.7)
        process = world.mlflow_run(*arguments)
        try:
            output, _ = process.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            output, _ = process.communicate(timeout=60)
        told = f"{signal.Signals(number).name} after {moment:.2f} s of {whole:.2f} s: {output}"
        assert "mlflow_rlsched" not in output, told  # no traceback through us
        runs = [r for r in world.client.search_runs(["0"]) if r.info.run_id not in known]
        known |= {run.info.run_id for run in runs}
        assert world.training_processes() == [], told
        assert [t.run_id for t in world.unfinished()] == [], told
        wait_for(lambda: not list((world.home / "submissions").glob("*.json")), 60)
        statuses = [run.info.status for run in runs]
        assert statuses in ([], ["KILLED"], ["FINISHED"]), told
        if process.returncode == 0:
            assert statuses == ["FINISHED"], told


class AtLine:
    """Calls something at the n-th line that the submission executes, and counts the lines."""

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self.count = 0
        self._number = number
        self._action = action

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if "/mlflow_rlsched/" not in path or "/agent/" in path:
            return None
        if event == "line":
            self.count += 1
            if self.count == self._number:
                self._action()
        return self

    def __enter__(self) -> AtLine:
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def test_interrupts_at_any_line_of_the_submission(world: World) -> None:
    world.over(world.submit(FAULTY, "script", QUICK).run_id)
    with AtLine(0, lambda: None) as lines:
        world.submit(FAULTY, "script", QUICK)
    chance = random.Random(21)
    seen = set()
    for number in sorted(chance.sample(range(1, lines.count), LINES)):
        before = {run.info.run_id for run in world.client.search_runs(["0"])}
        with (
            AtLine(number, lambda: signal.raise_signal(signal.SIGINT)),
            pytest.raises(KeyboardInterrupt),
        ):
            world.submit(FAULTY, "script", LONG, {"grace_s": 0})
        runs = [r for r in world.client.search_runs(["0"]) if r.info.run_id not in before]
        statuses = tuple(run.info.status for run in runs)
        assert statuses in ((), ("KILLED",)), (number, lines.count)
        assert list((world.home / "submissions").iterdir()) == [], number
        seen.add(statuses)
    assert seen == {(), ("KILLED",)}
    assert world.unfinished() == []
    assert world.training_processes() == []


def test_a_store_that_vanishes_is_told(world: World) -> None:
    process = world.mlflow_run(FAULTY, "-e", "script", "-P", "steps=100000", config={"grace_s": 0})
    task = only_task(world, State.RUNNING)
    world.running(task.run_id)
    for path in world.home.glob("rlsched.db*"):
        if path.is_file():
            path.unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was deleted or replaced while it was in use ===" in output.splitlines()[-1]
    assert "Traceback" not in output
