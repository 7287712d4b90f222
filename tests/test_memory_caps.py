"""What becomes of runs that use more memory than they may, for real, and of their neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_rlsched.backend import RlschedSubmittedRun
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import State
from tests.chaos import quick_agent
from tests.world import World

WAIT = """
import sys, time
from pathlib import Path
deadline = time.monotonic() + 240
while not Path(sys.argv[-1]).exists():
    if time.monotonic() > deadline:
        sys.exit("nobody let it go")
    time.sleep(0.05)
"""

CAPPED = {"memory_cap_gb": 0.1, "gpu_fraction": 0.5}

ONE_PROCESS = "bytearray(10**9)\n"

# Each process is far below the cap, and so is what they take together with three quarters of the
# batch. Only the first attempt waits to be measured.
TREE = """
import os, signal, sys
from mlflow_rlsched import attach
with attach(batch_size=int(sys.argv[-1])) as session:
    session.load()
    session.step(loss=1.0)
    processes = session.knobs.batch_size // 16
    reader, writer = os.pipe()
    for _ in range(processes):
        if os.fork() == 0:
            block = os.urandom(1) * 60_000_000
            os.write(writer, b"x")
            signal.pause()
    ready = 0
    while ready < processes:
        ready += len(os.read(reader, processes))
    print(f"{processes} processes are ready", flush=True)
    if os.environ["RLSCHED_ATTEMPT"] == "1":
        signal.pause()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "wait.py").write_text(WAIT)
    (folder / "one.py").write_text(ONE_PROCESS)
    (folder / "tree.py").write_text(TREE)
    return folder


@pytest.fixture
def neighbour(world: World, project: Path, monkeypatch: pytest.MonkeyPatch) -> RlschedSubmittedRun:
    """A run with half a slot and a cap of its own, that ends when it is let go."""
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    params = {"go": world.root / "go"}
    run = world.submit(project, "wait.py", params, CAPPED)
    world.running(run.run_id, seconds=60)
    return run


def is_unharmed(world: World, run: RlschedSubmittedRun) -> bool:
    """Whether the neighbour ends well in its first attempt once it is let go."""
    assert world.task(run.run_id).state is State.RUNNING
    (world.root / "go").touch()
    task = world.over(run.run_id, 120)
    return (task.state, task.attempt) == (State.FINISHED, 1)


def test_a_process_above_the_cap_runs_out_of_memory_alone(
    world: World, project: Path, neighbour: RlschedSubmittedRun
) -> None:
    run = world.submit(project, "one.py", config=CAPPED)
    task = world.over(run.run_id, 120)
    assert (task.state, task.exit_reason, task.attempt) == (State.FAILED, "oom", 1)
    tags = world.run_of(run.run_id).data.tags
    assert tags["rlsched.exit_reason"] == "oom"
    assert "no batch size that could be made smaller" in tags["rlsched.message"]
    (theirs,) = world.store.attempts(neighbour.run_id)
    assert world.store.attempts(run.run_id)[0].devices == theirs.devices, "the other half"
    assert is_unharmed(world, neighbour)


def test_a_tree_above_the_cap_is_ended_and_goes_on_with_a_smaller_batch(
    world: World, project: Path, neighbour: RlschedSubmittedRun
) -> None:
    run = world.submit(project, "tree.py", {"batch-size": 64}, {"memory_cap_gb": 0.22})
    task = world.over(run.run_id, 180)
    assert (task.state, task.ooms, task.batch_size) == (State.FINISHED, 1, 54)
    first, second = world.store.attempts(run.run_id)
    assert (first.reason, second.reason) == ("oom", "finished")
    text = "out of memory at batch size 64: going on with 54, 15 % less; its processes used 0."
    assert first.message.startswith(text)
    assert first.message.endswith("GB of the host, above its cap of 0.22 GB")
    assert is_unharmed(world, neighbour)
