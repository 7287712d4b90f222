"""Many runs on few devices, and trouble of all kinds for a while."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from mlflow_rlsched.agent.preemption import MOST, PREEMPTED
from mlflow_rlsched.agent.ranking import RESIZED
from mlflow_rlsched.agent.recovery import RETRIED
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import Attempt, State
from tests.chaos import invariants, plans, quick_agent
from tests.chaos.havoc import Havoc
from tests.world import World, environment_of

INTENDED = {PREEMPTED, RESIZED, "oom", "stopped", "cancelled"}


@pytest.fixture
def crowded(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    world.env["RLSCHED_CPU_SLOTS"] = str(plans.SLOTS)
    for name, text in environment_of(world).items():
        monkeypatch.setenv(name, text)
    return world


def check(world: World, havoc: Havoc) -> None:
    tasks = world.store.tasks()
    assert {task.run_id for task in tasks} == set(havoc.accepted)
    spans: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for task in tasks:
        ledger = invariants.read_ledger(Path(task.spec.params["ledger"]))
        attempts = world.store.attempts(task.run_id)
        print(task.run_id, task.spec.params, [(len(a.devices), a.reason) for a in attempts])
        if task.run_id in havoc.cancelled and task.state is State.KILLED:
            assert task.exit_reason == "cancelled"
            invariants.check_told(world, task)
        else:
            invariants.check_ending(world, task, ledger)
        if attempts:
            invariants.check_attempts(world, task, ledger, invariants.TROUBLE | INTENDED)
        if task.spec.entry_point == "count":
            invariants.check_resumptions(task, ledger)
        invariants.check_metrics(world, task)
        assert task.retries == sum(attempt.reason in RETRIED for attempt in attempts)
        assert task.ooms == sum(attempt.reason == "oom" for attempt in attempts)
        assert sum(attempt.reason == PREEMPTED for attempt in attempts) <= MOST
        for attempt in attempts:
            check_devices(task.spec.config, attempt)
            for share in attempt.devices:
                assert attempt.ended_at is not None
                spans[share.device].append((attempt.started_at, attempt.ended_at, task.run_id))
    assert set(spans) <= {f"cpu-{slot}" for slot in range(plans.SLOTS)}
    for device, used in spans.items():
        for first, second in itertools.pairwise(sorted(used)):
            assert first[1] <= second[0], f"{device} was held by {first} and {second} at once"
    invariants.check_nothing_is_left(world)


def check_devices(config: dict[str, dict[str, int]], attempt: Attempt) -> None:
    gpus = len(attempt.devices) / int(config["cpu_slots"])  # type: ignore[call-overload]
    assert config["gpus"]["min"] <= gpus <= config["gpus"]["max"]


def survive(world: World, seed: int, seconds: float) -> None:
    havoc = Havoc(world)
    havoc.wreak(plans.draw_crowd(seed, seconds))
    havoc.see_to_the_end(0.0, 240.0 + 2 * seconds)
    assert havoc.endings() >= {RESIZED, PREEMPTED}
    check(world, havoc)


def test_a_crowd_comes_through(crowded: World) -> None:
    survive(crowded, 1, 12.0)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2000, 2003))
def test_a_crowd_comes_through_minutes_of_trouble(crowded: World, seed: int) -> None:
    survive(crowded, seed, 240.0)
