"""Learning as a task of the queue: made once, last in line, and no trouble to anybody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.learning.transitions import transitions_of
from mlflow_rlsched.registry import MODEL
from mlflow_rlsched.store import LEARNING_PRIORITY, State, Task, Transition
from mlflow_rlsched.submission import learning
from mlflow_rlsched.submission.learning import FEWEST, NAME, start_if_due
from mlflow_rlsched.versions import Versions
from tests.chaos import quick_agent
from tests.learning.recording import growing, idle, keep
from tests.world import FAULTY, World, wait_for

PROJECT = Path(__file__).parent / "project"
DDPG = {"policy": "ddpg", "retry_delays_s": [0], "cpu_slots": 2}


def enough(world: World, count: int = FEWEST) -> None:
    """Let so many transitions have come in, made by a version whose networks saw one number."""
    data = {"inputs": [0.5]}
    new = [Transition("gone", number, data, learnable=True) for number in range(count)]
    world.store.add_transitions(new)


def learning_tasks(world: World) -> list[Task]:
    return [task for task in world.store.tasks() if task.priority == LEARNING_PRIORITY]


def learning_runs(world: World) -> list[str]:
    experiment = world.client.get_experiment_by_name(MODEL)
    if experiment is None:
        return []
    return [run.info.run_id for run in world.client.search_runs([experiment.experiment_id])]


def test_submissions_make_one_task_that_comes_last_and_ends(world: World) -> None:
    Versions().promote(idle())
    enough(world)
    params = {"steps": 60, "step_s": 0.1}
    config = {**DDPG, "decision_interval_s": 1000}
    runs = [world.submit(FAULTY, "count", params, config) for _ in range(2)]
    (task,) = wait_for(lambda: learning_tasks(world), 60)
    assert task.spec.label == NAME
    assert task.spec.config["policy"] == "fixed"
    assert [t.run_id for t in world.unfinished()][-1] == task.run_id
    (row,) = [
        row
        for row in json.loads(world.rlsched("queue", "--json").stdout)["runs"]
        if row["run_id"] == task.run_id
    ]
    assert (row["name"], row["wants"]["cpu_slots"]) == (NAME, 1)
    assert all(run.wait() for run in runs)
    over = world.over(task.run_id)
    assert over.state is State.FINISHED, over.message
    output = (Path(over.spec.run_dir) / "attempts" / "1" / "output.log").read_text()
    assert "no decision on a run can be learned from yet" in output
    assert len(learning_tasks(world)) == 1
    assert learning_runs(world) == [task.run_id]
    assert not world.store.is_time_to_learn(1), "it has learned nothing from itself"


def test_of_two_that_make_it_one_does_and_nothing_is_left_of_the_other(world: World) -> None:
    enough(world)
    world.agent.create()
    world.agent.held.touch()  # nobody starts it meanwhile
    env = {**os.environ, "RLSCHED_CFG_STORE": world.store_url}
    argv = [sys.executable, "-m", "mlflow_rlsched.submission.learning"]
    makers = [subprocess.Popen(argv, env=env, cwd="/") for _ in range(3)]
    assert [maker.wait(60) for maker in makers] == [0, 0, 0]
    (task,) = learning_tasks(world)
    assert learning_runs(world) == [task.run_id]
    assert [folder.name for folder in (world.home / "runs").iterdir()] == [task.run_id]
    assert list((world.home / "submissions").iterdir()) == []
    assert world.run_of(task.run_id).info.status == "SCHEDULED"


def test_a_running_one_makes_way_and_goes_on_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    versions = Versions()
    versions.promote(idle())
    runs = growing(12)
    keep(world.store, world.root / "recorded", runs)
    for run_id in runs:
        world.store.request_cancel(run_id, "the test")  # they are over
    learnt = sum(len(records) - 1 for records in runs.values())
    enough(world, max(0, FEWEST - learnt))
    first = world.submit(FAULTY, "count", {"steps": 1}, DDPG)
    (task,) = wait_for(lambda: learning_tasks(world), 60)
    folder = world.running(task.run_id, seconds=60)
    assert first.wait()
    second = world.submit(FAULTY, "count", {"steps": 3, "step_s": 0.1}, DDPG)
    assert second.wait()
    assert world.task(task.run_id).attempt >= 1
    ended = json.loads((folder / "exit.json").read_text())
    assert ended["reason"] == "preempted"
    world.running(task.run_id, attempt=2, seconds=60)
    world.store.request_cancel(task.run_id, "the test")
    world.agent.wake()
    over = world.over(task.run_id)
    assert (over.state, over.retries) == (State.KILLED, 0)


@pytest.mark.parametrize("policy", ["rules", "fixed"])
def test_who_does_not_use_the_learned_policy_starts_no_learning(
    world: World, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough(world)
    monkeypatch.setattr(learning.processes, "spawn_detached", lambda *_: pytest.fail("started"))
    start_if_due(world.store, RunConfig(policy=policy, store=world.store_url), world.tracking_uri)


def test_nothing_is_made_without_torch_or_inside_a_run_or_too_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(learning.processes, "spawn_detached", lambda *args: started.append(args))
    config = RunConfig(policy="ddpg", store=world.store_url)
    start_if_due(world.store, config, world.tracking_uri)
    assert not started
    enough(world)
    with monkeypatch.context() as patch:
        patch.setattr(learning, "find_spec", lambda _: None)
        start_if_due(world.store, config, world.tracking_uri)
    with monkeypatch.context() as patch:
        patch.setenv("RLSCHED_ATTEMPT_DIR", "/somewhere")
        start_if_due(world.store, config, world.tracking_uri)
    assert not started
    start_if_due(world.store, config, world.tracking_uri)
    assert len(started) == 1


def test_what_goes_wrong_is_not_the_submissions(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enough(world)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(learning.processes, "spawn_detached", full)
    with caplog.at_level("DEBUG"):
        config = RunConfig(policy="ddpg", store=world.store_url)
        start_if_due(world.store, config, world.tracking_uri)
    assert "no learning task: [Errno 28] No space left on device" in caplog.text


def test_transitions_are_complete_and_in_order_whenever_the_agent_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    Versions().promote(idle())
    config = {**DDPG, "decision_interval_s": 0.3}
    run = world.submit(PROJECT, config=config)
    run_dir = Path(world.task(run.run_id).spec.run_dir)
    for decided in (2, 4, 6, 8, 10):
        # Right after a record was written: before or while its transition is kept.
        wait_for(lambda n=decided: len(list(decision_log.read(run_dir))) >= n, 60)
        agent = wait_for(world.agent_process, 30)
        agent.signal(signal.SIGKILL)
        wait_for(lambda a=agent: not a.alive(), 30)
        world.agent.start()
    wait_for(lambda: len(list(decision_log.read(run_dir))) >= 14, 60)
    run.cancel()
    world.over(run.run_id)
    records = list(decision_log.read(run_dir))
    kept = [item for _, item in world.store.transitions(run.run_id)]
    assert kept == transitions_of(run.run_id, records, Weights())
    assert [item.decision for item in kept] == list(range(1, len(records)))
    assert all(item.learnable for item in kept)
    noises = {tuple(item.data["noise"]) for item in kept}
    assert len(noises) > 5, "real runs explore"
