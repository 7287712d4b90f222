"""Runs from submission to the end, with a real agent, shim, store and MLflow."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.exceptions import ExecutionException

from mlflow_rlsched import protocol
from mlflow_rlsched.store import State
from tests.world import FAULTY, World, wait_for

QUICK = {"steps": 5, "step_s": 0.01}
LONG = {"steps": 10000, "step_s": 0.05}


@pytest.mark.same_world
def test_run_that_succeeds_is_told_truly(world: World) -> None:
    run = world.submit(FAULTY, "script", QUICK)
    assert run.get_status() in ("SCHEDULED", "RUNNING", "FINISHED")
    assert run.wait() is True
    task = world.over(run.run_id)
    assert (task.state, task.attempt, task.retries) == (State.FINISHED, 1, 0)
    told = world.run_of(run.run_id)
    assert told.info.status == "FINISHED"
    assert told.data.tags["rlsched.state"] == "finished"
    assert told.data.tags["rlsched.attempts"] == "1"
    assert told.data.tags["rlsched.devices"] == "cpu-0"
    assert told.data.tags["mlflow.project.backend"] == "rlsched"
    assert told.data.params["steps"] == "5"
    assert told.data.metrics["rlsched/queue_seconds"] >= 0
    assert [a.path for a in world.client.list_artifacts(run.run_id, "rlsched")] == [
        "rlsched/output.log"
    ]
    assert world.training_processes() == []
    assert wait_for(lambda: not world.store.leases()) is True


def test_command_line_streams_waits_and_fails_with_the_run(world: World) -> None:
    process = world.mlflow_run(FAULTY, "-P", "fault=crash")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed: it exited with code 3" in output
    assert "Traceback" not in output
    (task,) = world.store.tasks()
    assert world.run_of(task.run_id).info.status == "FAILED"
    assert world.run_of(task.run_id).data.tags["rlsched.exit_reason"] == "user_error"


def test_command_line_does_not_wait_when_told_so(world: World) -> None:
    process = world.mlflow_run(
        FAULTY, "-e", "script", "-P", "steps=100000", "--run-name", "later", config={"wait": False}
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    (task,) = world.store.tasks()
    world.running(task.run_id)
    assert world.run_of(task.run_id).info.run_name == "later"
    world.store.request_cancel(task.run_id, "test")
    world.agent.wake()
    assert world.over(task.run_id).state is State.KILLED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_kills_the_whole_tree(world: World, number: int) -> None:
    process = world.mlflow_run(
        FAULTY, "-P", "fault=ignore_term", config={"grace_s": 0.5, "max_retries": 0}
    )
    wait_for(lambda: world.store.tasks([State.RUNNING]), 60)
    (task,) = world.store.tasks()
    world.running(task.run_id)
    wait_for(lambda: len(world.training_processes()) >= 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "killed: cancelled by" in output
    assert world.training_processes() == []
    assert world.run_of(task.run_id).info.status == "KILLED"


@pytest.mark.same_world
def test_queued_run_is_scheduled_and_a_cancelled_one_never_starts(world: World) -> None:
    first = world.submit(FAULTY, "script", LONG, {"cpu_slots": 2, "grace_s": 0})
    world.running(first.run_id)
    second = world.submit(FAULTY, "script", QUICK)
    assert second.get_status() == "SCHEDULED"
    assert world.run_of(second.run_id).info.status == "SCHEDULED"
    second.cancel()
    assert world.over(second.run_id).attempt == 0
    assert world.run_of(second.run_id).info.status == "KILLED"
    first.cancel()
    assert first.get_status() == "KILLED"


@pytest.mark.same_world
def test_priority_then_age(world: World) -> None:
    first = world.submit(FAULTY, "script", LONG, {"cpu_slots": 2, "grace_s": 0})
    world.running(first.run_id)
    one_by_one = {"cpu_slots": 2}
    runs = {
        name: world.submit(FAULTY, "script", QUICK, {**one_by_one, "priority": priority})
        for name, priority in [("old", 0), ("young", 0), ("urgent", 5)]
    }
    first.cancel()
    started = {name: world.over(run.run_id).started_at for name, run in runs.items()}
    assert sorted(started, key=lambda name: started[name] or 0.0) == ["urgent", "old", "young"]


@pytest.mark.same_world
def test_killed_training_resumes_from_its_checkpoint(world: World) -> None:
    ledger = world.root / "ledger"
    run = world.submit(
        FAULTY,
        "count",
        {"steps": 60, "step_s": 0.02, "every": 10, "ledger": ledger},
        {"retry_delays_s": [0.1]},
    )
    folder = world.running(run.run_id)
    wait_for(lambda: list((folder.parent.parent / "checkpoints").iterdir()))
    pids = world.training_processes()
    for pid in pids:
        subprocess.run(["kill", "-9", str(pid)], check=False)
    task = world.over(run.run_id)
    assert (task.state, task.attempt, task.retries) == (State.FINISHED, 2, 1)
    assert [a.reason for a in world.store.attempts(run.run_id)] == ["killed", "finished"]
    assert world.run_of(run.run_id).info.status == "FINISHED"


@pytest.mark.same_world
def test_out_of_memory_shrinks_the_batch_of_a_cooperating_training(world: World) -> None:
    run = world.submit(FAULTY, "count", {**QUICK, "batch_size": 64, "fits": 50})
    task = world.over(run.run_id)
    assert (task.state, task.ooms, task.batch_size) == (State.FINISHED, 2, 45)
    assert [a.reason for a in world.store.attempts(run.run_id)] == ["oom", "oom", "finished"]


@pytest.mark.same_world
def test_out_of_memory_of_a_script_restarts_with_a_smaller_parameter(world: World) -> None:
    run = world.submit(FAULTY, "script", {**QUICK, "batch_size": 64, "fits": 60})
    task = world.over(run.run_id, 120)
    assert (task.state, task.ooms, task.batch_size) == (State.FINISHED, 1, 54)
    told = world.run_of(run.run_id)
    assert told.info.status == "FINISHED"
    nested = world.run_of(told.data.tags["rlsched.retry_run_id"])
    assert nested.info.status == "FINISHED"
    assert nested.data.params["batch_size"] == "54"
    assert told.data.params["batch_size"] == "64"
    assert nested.data.tags["mlflow.parentRunId"] == run.run_id


@pytest.mark.same_world
def test_lost_heartbeat_is_killed_and_tried_again(world: World) -> None:
    run = world.submit(
        FAULTY, params={"fault": "hang"}, config={"heartbeat_s": 1, "max_retries": 0, "grace_s": 0}
    )
    task = world.over(run.run_id)
    assert (task.state, task.exit_reason) == (State.FAILED, "lost_heartbeat")


@pytest.mark.same_world
def test_run_time_and_queue_time_have_limits(world: World) -> None:
    long = world.submit(FAULTY, "script", LONG, {"timeout_s": 1.5, "grace_s": 0, "cpu_slots": 2})
    waiting = world.submit(FAULTY, "script", QUICK, {"queue_timeout_s": 0.5})
    assert world.over(long.run_id).exit_reason == "timeout"
    assert world.run_of(long.run_id).info.status == "FAILED"
    assert world.over(waiting.run_id).exit_reason == "queue_timeout"
    assert world.run_of(waiting.run_id).info.status == "FAILED"


def test_killed_agent_is_replaced_and_the_attempt_adopted(world: World) -> None:
    run = world.submit(FAULTY, "script", {"steps": 150, "step_s": 0.05})
    world.running(run.run_id)
    agent = world.agent_process()
    assert agent is not None
    agent.signal(signal.SIGKILL)
    assert run.wait() is True
    task = world.over(run.run_id)
    assert (task.state, task.attempt) == (State.FINISHED, 1)


def test_everything_killed_at_once_is_repaired_by_the_next_agent(world: World) -> None:
    run = world.submit(FAULTY, "script", LONG, {"retry_delays_s": [0], "max_retries": 1})
    folder = world.running(run.run_id)
    processes_ = [world.agent_process(), world.shim_process(folder)]
    for process in processes_:
        assert process is not None
        process.signal(signal.SIGKILL)
    wait_for(lambda: not world.agent.alive())
    world.agent.start()
    folder = world.running(run.run_id, attempt=2)
    assert [a.reason for a in world.store.attempts(run.run_id)] == ["lost", ""]
    world.submit(FAULTY, "script", QUICK)
    run.cancel()
    assert world.over(run.run_id).state is State.KILLED
    assert world.training_processes() == []


def test_nested_run_shares_its_parents_devices(world: World, tmp_path: Path) -> None:
    project = tmp_path / "outer"
    project.mkdir()
    (project / "MLproject").write_text(
        "name: outer\nentry_points:\n  main:\n    command: "
        f'"mlflow run {FAULTY} -e script -P steps=3 --backend rlsched"\n'
    )
    run = world.submit(project, config={"cpu_slots": 2})
    assert world.over(run.run_id, 90).state is State.FINISHED
    (child,) = [t for t in world.store.tasks() if t.run_id != run.run_id]
    assert child.state is State.FINISHED
    assert world.run_of(child.run_id).data.tags["mlflow.parentRunId"] == run.run_id
    assert world.store.attempts(child.run_id)[0].devices == ()


@pytest.mark.same_world
def test_resumed_run_goes_on_under_the_same_id(world: World) -> None:
    params = {"steps": 100, "step_s": 0.02, "every": 5}
    run = world.submit(FAULTY, "count", params, {"grace_s": 0})
    folder = world.running(run.run_id)
    wait_for(lambda: list((folder.parent.parent / "checkpoints").glob("*/manifest.json")))
    run.cancel()
    assert world.over(run.run_id).state is State.KILLED
    again = world.submit(FAULTY, "count", params, {"resume_run_id": run.run_id})
    assert again.run_id == run.run_id
    assert again.wait() is True
    task = world.over(run.run_id)
    assert (task.state, task.attempt) == (State.FINISHED, 2)
    assert world.run_of(run.run_id).info.status == "FINISHED"


@pytest.mark.same_world
def test_resumed_run_keeps_its_parameters(world: World) -> None:
    run = world.submit(FAULTY, "script", {**QUICK, "exit_code": 2})
    assert world.over(run.run_id).state is State.FAILED
    with pytest.raises(ExecutionException, match="that run has steps=5, not 6"):
        world.submit(FAULTY, "script", {"steps": 6}, {"resume_run_id": run.run_id})
    assert world.run_of(run.run_id).info.status == "FAILED"


@pytest.mark.same_world
def test_short_run_tells_what_it_reported(world: World) -> None:
    run = world.submit(FAULTY, "count", {"steps": 4, "step_s": 0.01})
    task = world.over(run.run_id)
    assert task.state is State.FINISHED
    history = world.client.get_metric_history(run.run_id, "rlsched/loss")
    assert [point.step for point in history] == [1]
    assert 0.25 <= history[-1].value <= 1.0, "a mean of 1, 1/2, 1/3, 1/4"


@pytest.mark.same_world
def test_environment_is_the_submitters_interpreter(world: World) -> None:
    run = world.submit(FAULTY, "script", {**QUICK, "exit_code": 2})
    world.over(run.run_id)
    environment = protocol.read_json(Path(world.task(run.run_id).spec.run_dir) / "environment.json")
    assert environment is not None
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))
