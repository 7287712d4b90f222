"""kill -9 of a submitting process: the next agent cleans up after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import State
from tests.test_lifecycle import QUICK
from tests.world import FAULTY, World, wait_for

SUBMIT = """
import json, os, sys
import mlflow
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store.sql import SqlStore

def die(*_, **__):
    os.kill(os.getpid(), 9)

{patch} = die
mlflow.projects.run({project!r}, backend="rlsched", synchronous=False, experiment_id="0",
                    backend_config=json.loads(sys.argv[1]), parameters=json.loads(sys.argv[2]))
"""
POINTS = {
    "before there is a run": "mlflow.MlflowClient.create_run",
    "with a run": "mlflow.MlflowClient.update_run",
    "with a run and its directory": "SqlStore.submit",
}


def killed_submission(world: World, patch: str, config: str = "{}", params: str = "{}") -> None:
    code = SUBMIT.format(patch=patch, project=str(FAULTY))
    command = [sys.executable, "-c", code, config, params]
    done = subprocess.run(command, env=world.env, cwd=world.folder, timeout=60, check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("point", POINTS)
def test_nothing_of_it_is_left(world: World, point: str) -> None:
    killed_submission(world, POINTS[point])
    made = [run.info.run_id for run in world.client.search_runs(["0"])]
    assert len(made) == (point != "before there is a run")
    assert len(list((world.home / "submissions").glob("*.json"))) == 1
    last = world.submit(FAULTY, "script", QUICK)
    wait_for(lambda: not list((world.home / "submissions").iterdir()), 60)
    for run_id in made:
        told = world.run_of(run_id)
        assert told.info.status == "FAILED"
        assert told.data.tags["rlsched.exit_reason"] == "submission_failed"
    assert world.over(last.run_id).state is State.FINISHED
    assert os.listdir(world.home / "runs") == [last.run_id]


def test_a_run_that_was_to_be_resumed_is_not_left_waiting(world: World) -> None:
    before = world.submit(FAULTY, params={"fault": "crash"})
    world.over(before.run_id)
    config = f'{{"resume_run_id": "{before.run_id}"}}'
    killed_submission(world, "SqlStore.submit", config, '{"fault": "crash"}')
    assert world.run_of(before.run_id).info.status == "SCHEDULED"
    agent = world.agent_process()
    assert agent is not None
    agent.signal(signal.SIGTERM)
    wait_for(lambda: not world.agent.alive(), 60)
    world.submit(FAULTY, "script", QUICK)  # its new agent looks at once
    wait_for(lambda: world.run_of(before.run_id).info.status == "FAILED", 60)
    again = world.submit(FAULTY, params={"fault": "crash"}, config={"resume_run_id": before.run_id})
    assert world.over(again.run_id).attempt == 2


def test_a_run_whose_task_arrived_goes_on(world: World) -> None:
    """The record of its submission says nothing then."""
    killed_submission(world, "AgentFiles.start")
    (task,) = world.store.tasks()
    assert task.state is State.QUEUED
    AgentFiles(world.store_url).start()
    assert world.over(task.run_id).state is State.FINISHED


def test_a_run_whose_task_arrived_in_another_store_is_left_alone(world: World) -> None:
    url = f"sqlite:///{world.root}/other.db"
    killed_submission(world, "SqlStore.close", f'{{"store": "{url}"}}')
    (run,) = world.client.search_runs(["0"])
    assert len(list((world.home / "submissions").glob("*.json"))) == 1
    world.submit(FAULTY, "script", QUICK)
    wait_for(lambda: not list((world.home / "submissions").iterdir()), 60)
    assert world.run_of(run.info.run_id).info.status == "SCHEDULED"
    AgentFiles(url).start()
    wait_for(lambda: world.run_of(run.info.run_id).info.status == "FINISHED", 60)
