"""The agent as a process: how it hands over, ends, is replaced and comes back."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.agent import service as service_module
from mlflow_rlsched.agent.service import Service
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.processes import Identity
from mlflow_rlsched.store import State, Store, open_store
from tests.chaos import quick_agent
from tests.task_specs import make_spec
from tests.world import FAULTY, World, wait_for

LONG = {"steps": 100_000, "step_s": 0.02}
QUICK = {"steps": 2, "step_s": 0.01}


class Worker:
    """Stands for the agent's work: a store alone says whether there is any."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.told = True

    def has_told_all(self) -> bool:
        return self.told

    def sign_off(self) -> None:
        pass

    def has_work(self) -> bool:
        return bool(self.store.tasks([State.QUEUED, State.RUNNING]))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_task_that_is_submitted_while_the_lock_is_given_back_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Either the submitter sees a free lock, or the agent sees the task."""
    url = f"sqlite:///{tmp_path}/rlsched.db"
    files, store = AgentFiles(url), open_store(url)
    files.create()
    assert files.lock.acquire()
    started = []

    def submit() -> None:
        store.submit(make_spec("r"), 0, 0.0)
        started.append(not AgentFiles(url).alive())

    release = files.lock.release

    def give_back() -> None:
        if moment == "before":
            submit()
        release()
        if moment == "after":
            submit()

    monkeypatch.setattr(files.lock, "release", give_back)
    left = Service(files, Worker(store), 0.0)._leave()  # type: ignore[arg-type]
    assert started == [moment == "after"]
    assert left is False
    assert files.alive()
    store.close()


def test_agent_that_left_leaves_the_lock_to_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rlsched.db"
    files, store = AgentFiles(url), open_store(url)
    files.create()
    assert files.lock.acquire()
    assert Service(files, Worker(store), 0.0)._leave()  # type: ignore[arg-type]
    assert not files.alive()
    store.close()


def test_agent_does_not_wait_for_ever_for_a_silent_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock is simulated. What is left to tell is on disk, for the next agent."""
    url = f"sqlite:///{tmp_path}/rlsched.db"
    files, store = AgentFiles(url), open_store(url)
    files.create()
    assert files.lock.acquire()
    worker = Worker(store)
    service = Service(files, worker, 60.0)  # type: ignore[arg-type]
    now = 1000.0
    monkeypatch.setattr(service_module.time, "monotonic", lambda: now)
    assert not service._is_over(now - 59)
    assert service._is_over(now - 61)
    worker.told = False
    assert not service._is_over(now - 3600)
    assert service._is_over(now - 3661)
    assert service._leave()
    assert "the rest stays on disk, and the next agent tells it" in caplog.text
    assert not files.alive()
    store.close()


def test_runs_submitted_just_when_the_agent_ends_all_finish(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentFiles, "argv", lambda files: [*quick_agent.argv(files), "0"])
    rng = random.Random(5)
    for _ in range(4):
        run = world.submit(FAULTY, "script", QUICK)
        assert world.over(run.run_id).state is State.FINISHED
        time.sleep(rng.uniform(0, 0.3))  # the agent ends as soon as it has told all
    wait_for(lambda: not world.agent.alive())
    assert "nothing to do: ending" in world.agent.log.read_text()


def kill_agent(world: World) -> None:
    agent = wait_for(world.agent_process)
    assert agent is not None
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not agent.alive())


def test_stopped_agent_leaves_its_runs_to_the_next(world: World) -> None:
    """Its shims do not start another one; the next one finds the same attempt."""
    run = world.submit(FAULTY, "script", LONG)
    folder = world.running(run.run_id)
    shim = world.shim_process(folder)
    assert shim is not None
    assert world.rlsched("agent", "stop").returncode == 0
    assert not world.agent.alive()
    assert shim.alive()
    assert world.store.agents() == []
    assert world.rlsched("agent", "start").returncode == 0
    run.cancel()
    task = world.over(run.run_id)
    assert (task.state, task.attempt) == (State.KILLED, 1)
    assert not shim.alive()


def test_task_that_outlives_many_agents_has_one_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever serves the store vouches for what runs, and goes on with its history."""
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    ledger = world.root / "ledger"
    params = {**LONG, "every": 10, "ledger": ledger}
    run = world.submit(FAULTY, "count", params, {"heartbeat_s": 1.5, "grace_s": 0})
    world.running(run.run_id)

    def steps_told() -> list[int]:
        history = world.client.get_metric_history(run.run_id, "system/network_receive_megabytes")
        return [point.step for point in history]

    for _ in range(3):
        before = len(steps_told())
        wait_for(lambda before=before: len(steps_told()) > before)
        kill_agent(world)
        world.agent.start()
    run.cancel()
    task = world.over(run.run_id)
    assert (task.state, task.attempt) == (State.KILLED, 1)
    lines = [line.split() for line in ledger.read_text().splitlines()]
    assert len({line[1] for line in lines}) == 1
    steps = [int(line[3]) for line in lines if line[2] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(set(steps_told())) == len(steps_told()) >= 3


def test_decisions_are_among_the_artifacts_while_the_run_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    config = {"decision_interval_s": 0.5, "grace_s": 0}
    run = world.submit(FAULTY, "count", LONG, config)
    folder = world.running(run.run_id)

    def uploaded() -> list[str]:
        return [a.path for a in world.client.list_artifacts(run.run_id, "rlsched")]

    wait_for(lambda: "rlsched/decisions.jsonl" in uploaded(), 60)
    assert not (folder / "exit.json").exists()
    run.cancel()
    world.over(run.run_id)


@pytest.mark.parametrize(("told", "truth"), [("SCHEDULED", "RUNNING"), ("RUNNING", "SCHEDULED")])
def test_next_agent_makes_the_status_true(world: World, told: str, truth: str) -> None:
    """The agent died before it had told MLflow of the last change."""
    config = {"retry_delays_s": [600], "max_retries": 3}
    run = world.submit(FAULTY, "script", LONG, config)
    folder = world.running(run.run_id)
    wait_for(lambda: world.run_of(run.run_id).info.status == "RUNNING")
    if truth == "SCHEDULED":
        for pid in world.training_processes():
            Identity.of(pid).signal(signal.SIGKILL)  # type: ignore[union-attr]
        wait_for(lambda: world.task(run.run_id).state is State.QUEUED)
        wait_for(lambda: world.run_of(run.run_id).info.status == "SCHEDULED")
    assert world.rlsched("agent", "stop").returncode == 0
    world.client.update_run(run.run_id, status=told)
    assert world.rlsched("agent", "start").returncode == 0
    wait_for(lambda: world.run_of(run.run_id).info.status == truth)
    assert (folder / "exit.json").exists() == (truth == "SCHEDULED")


def test_claimed_task_whose_agent_died_before_the_launch_is_started(world: World) -> None:
    blocker = world.submit(FAULTY, "script", LONG, {"cpu_slots": 2, "grace_s": 0})
    world.running(blocker.run_id)
    run = world.submit(FAULTY, "script", QUICK, {"max_retries": 0})
    kill_agent(world)
    attempt = world.store.claim(run.run_id, world.task(run.run_id).spec.host or "", (), time.time())
    assert attempt is not None
    blocker.cancel()
    task = world.over(run.run_id)
    assert (task.state, task.attempt) == (State.FINISHED, 2)
    assert [a.reason for a in world.store.attempts(run.run_id)] == ["not_started", "finished"]


def test_nested_runs_of_killed_attempts_do_not_stay_running(world: World) -> None:
    """After it ran out of memory a script gets a nested run for each attempt."""
    params = {**LONG, "batch_size": 64, "fits": 60}
    settings = {"retry_delays_s": [0], "grace_s": 0}
    run = world.submit(FAULTY, "script", params, settings)

    def nested(attempt: int) -> str | None:
        query = f"tags.mlflow.parentRunId = '{run.run_id}'"
        found = world.client.search_runs(["0"], query)
        return {r.data.tags["rlsched.attempt"]: r.info.status for r in found}.get(str(attempt))

    wait_for(lambda: nested(2) == "RUNNING", 60)
    processes.send(world.all_processes(), signal.SIGKILL)
    wait_for(lambda: not world.agent.alive())
    world.agent.start()
    wait_for(lambda: nested(3) == "RUNNING", 60)
    wait_for(lambda: nested(2) == "FAILED")
    run.cancel()
    assert world.over(run.run_id).state is State.KILLED
    assert [nested(number) for number in (2, 3)] == ["FAILED", "KILLED"]


def test_agent_ends_when_its_store_vanished_and_does_not_come_back(world: World) -> None:
    run = world.submit(FAULTY, "script", LONG)
    shim = world.shim_process(world.running(run.run_id))
    agent = world.agent_process()
    assert agent is not None
    assert shim is not None
    for path in world.home.glob("rlsched.db*"):
        if path.is_file():
            path.unlink()
    wait_for(lambda: not agent.alive())
    assert "was deleted or replaced while it was in use: ending" in world.agent.log.read_text()
    assert shim.alive()
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + 6)  # a shim looks after its agent every 5 s
    assert not world.agent.alive()
    assert not (world.home / "rlsched.db").exists()
    assert "its store was deleted or replaced" in world.rlsched("agent", "status").stdout
    wait_for(lambda: world.run_of(run.run_id).info.status == "RUNNING")
    found = world.rlsched("doctor")
    assert found.returncode == 1
    assert f"{run.run_id[:8]} is RUNNING in MLflow" in found.stdout
    shutil.rmtree(world.home / "runs" / run.run_id)
    wait_for(lambda: not shim.alive())
    assert "✓ forgotten runs" in world.rlsched("doctor").stdout


def test_run_whose_directory_was_deleted_fails_and_leaves_nothing(world: World) -> None:
    run = world.submit(FAULTY, "script", LONG, {"grace_s": 0})
    world.running(run.run_id)
    run_dir = Path(world.task(run.run_id).spec.run_dir)
    shutil.rmtree(run_dir)
    task = world.over(run.run_id)
    assert (task.state, task.exit_reason) == (State.FAILED, "start_failed")
    assert task.message == f"its run directory {run_dir} was deleted while it ran"
    assert task.attempt == 1
    assert world.run_of(run.run_id).info.status == "FAILED"
    assert world.training_processes() == []
    assert world.submit(FAULTY, "script", QUICK).wait() is True


def claims_version(files: AgentFiles, version: str, process: Identity) -> None:
    said = {"process": process.to_json(), "version": version}
    protocol.write_json(files.folder / "agent.json", said)


def test_newer_submitter_replaces_an_older_agent(world: World) -> None:
    run = world.submit(FAULTY, "script", LONG)
    folder = world.running(run.run_id)
    older = world.agent_process()
    assert older is not None
    claims_version(world.agent, "0.0.9", older)
    other = world.submit(FAULTY, "script", QUICK)
    assert not older.alive()
    assert other.wait() is True
    agent = world.agent_process()
    assert agent not in (None, older)
    assert world.shim_process(folder) is not None
    run.cancel()
    assert world.over(run.run_id).attempt == 1


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


def held_elsewhere(files: AgentFiles) -> subprocess.Popen[bytes]:
    """Another process that holds the agent's lock, and that no SIGTERM ends."""
    code = (
        "import signal, sys, time; from pathlib import Path\n"
        "from mlflow_rlsched.filelock import FileLock\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "assert FileLock(Path(sys.argv[1])).acquire(); print(flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(files.lock.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("version", "disguise"),
    [
        ("99.0", lambda identity: identity),
        ("0.1.0rc1", lambda identity: identity),
        # Older, but the process that is named is another one by now.
        ("0.0.9", lambda identity: Identity(identity.pid, 1, identity.boot)),
        ("0.0.9", lambda identity: Identity(identity.pid, identity.start_ticks, "another boot")),
    ],
)
def test_agent_that_is_no_older_or_not_the_named_process_is_left_alone(
    tmp_path: Path, version: str, disguise: Callable[[Identity], Identity]
) -> None:
    files = AgentFiles(f"sqlite:///{tmp_path}/rlsched.db")
    files.create()
    holder, bystander = held_elsewhere(files), sleeper()
    identity = Identity.of(bystander.pid)
    assert identity is not None
    claims_version(files, version, disguise(identity))
    files.start([sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"])
    assert bystander.poll() is None
    assert FileLock(files.lock.path).held()
    assert not files.log.exists()
    for process in (holder, bystander):
        process.kill()
        process.wait()


def test_older_agent_that_does_not_end_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow_rlsched.daemon.REPLACE_WAIT_S", 0.3)
    files = AgentFiles(f"sqlite:///{tmp_path}/rlsched.db")
    files.create()
    holder = held_elsewhere(files)
    identity = Identity.of(holder.pid)
    assert identity is not None
    claims_version(files, "0.0.9", identity)
    files.start(["false"])
    assert not files.log.exists()
    holder.kill()
    holder.wait()
