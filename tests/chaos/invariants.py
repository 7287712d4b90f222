"""What must be true afterwards, whatever was killed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from mlflow_rlsched.devices.locks import free_amount
from mlflow_rlsched.store import State, Task
from tests.world import World

TROUBLE = frozenset({"killed", "lost", "not_started", "device_busy"})
"""Reasons of endings that are nobody's intention."""


@dataclass(frozen=True)
class Line:
    """A line of a ledger."""

    attempt: int
    pid: int
    event: str
    step: int
    time: float


def read_ledger(path: Path) -> list[Line]:
    """What the attempts of a run did, in their order."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        attempt, pid, event, step, moment = text.split()
        lines.append(Line(int(attempt), int(pid), event, int(step), float(moment)))
    return lines


def check(world: World, accepted: list[str]) -> None:
    """Check everything."""
    tasks = world.store.tasks()
    assert {task.run_id for task in tasks} >= set(accepted)
    spans = defaultdict(list)
    for task in tasks:
        ledger = read_ledger(Path(task.spec.params["ledger"]))
        check_ending(world, task, ledger)
        check_attempts(world, task, ledger)
        if task.spec.entry_point == "count":
            check_resumptions(task, ledger)
        check_metrics(world, task)
        for attempt in world.store.attempts(task.run_id):
            times = [line.time for line in ledger if line.attempt == attempt.number]
            for share in attempt.devices if times else ():
                spans[share.device].append((min(times), max(times), task.run_id, attempt.number))
    for device, used in spans.items():
        for first, second in itertools.pairwise(sorted(used)):
            assert first[1] < second[0], f"{device} was held by {first} and {second} at once"
    check_others(world, {task.run_id for task in tasks})
    check_nothing_is_left(world)


def check_ending(world: World, task: Task, ledger: list[Line]) -> None:
    """A success is a success, a failure a failure, and MLflow says the same."""
    check_told(world, task)
    fails = task.spec.params.get("exit_code", "0") != "0"
    wanted = (State.FAILED, "user_error") if fails else (State.FINISHED, "finished")
    assert (task.state, task.exit_reason) == wanted, task
    assert (ledger[-1].event, ledger[-1].attempt) == ("done", task.attempt), (task, ledger)


def check_told(world: World, task: Task) -> None:
    """MLflow knows how a run ended."""
    run = world.run_of(task.run_id)
    assert run.info.status == task.state.name
    assert run.data.tags["rlsched.state"] == task.state.value
    assert run.data.tags["rlsched.exit_reason"] == task.exit_reason
    assert run.data.tags["rlsched.attempts"] == str(task.attempt)
    assert run.info.end_time is not None


def check_attempts(
    world: World, task: Task, ledger: list[Line], expected: Set[str] = TROUBLE
) -> None:
    """One attempt at a time, each of one process, each with an end and a reason.

    Args:
        world: The host.
        task: The task.
        ledger: What its attempts did.
        expected: Reasons for which an attempt may have ended that was not the last.
    """
    attempts = world.store.attempts(task.run_id)
    assert [attempt.number for attempt in attempts] == list(range(1, task.attempt + 1))
    assert all(attempt.ended_at is not None and attempt.reason for attempt in attempts)
    if task.exit_reason != "cancelled":  # that can happen between two attempts
        assert attempts[-1].reason == task.exit_reason
    assert {attempt.reason for attempt in attempts[:-1]} <= expected, attempts
    numbers = [line.attempt for line in ledger]
    assert numbers == sorted(numbers), f"attempts of {task.run_id} overlapped: {ledger}"
    assert [line.time for line in ledger] == sorted(line.time for line in ledger)
    assert len({line.attempt for line in ledger}) == len({line.pid for line in ledger})


def check_resumptions(task: Task, ledger: list[Line]) -> None:
    """Each attempt goes on from the newest complete checkpoint."""
    saved, last = 0, None
    for _, group in itertools.groupby(ledger, lambda line: line.attempt):
        lines = list(group)
        start = lines[0]
        assert start.event == "start", lines
        # The kill may have come between a save and its line.
        cut = last is not None and (last.event, last.step) == ("step", start.step)
        assert start.step == saved or cut, (saved, ledger)
        steps = [line.step for line in lines if line.event == "step"]
        assert steps == list(range(start.step + 1, start.step + 1 + len(steps)))
        saved = max([start.step, *(line.step for line in lines if line.event == "save")])
        last = lines[-1]
    if task.state is State.FINISHED:
        assert ledger[-1].step == int(task.spec.params["steps"])


def check_metrics(world: World, task: Task) -> None:
    """One continuous history: a step is used once, and steps grow with time."""
    for name in world.run_of(task.run_id).data.metrics:
        history = world.client.get_metric_history(task.run_id, name)
        points = sorted((p.step, p.timestamp, p.value) for p in history)
        steps = [step for step, _, _ in points]
        assert len(steps) == len(set(steps)), (name, points)
        times = [timestamp for _, timestamp, _ in points]
        assert times == sorted(times), (name, points)


def check_others(world: World, known: set[str]) -> None:
    """A run whose submission was killed says so."""
    for run in world.client.search_runs(["0"]):
        if run.info.run_id not in known:
            assert run.info.status == "FAILED"
            assert run.data.tags["rlsched.exit_reason"] == "submission_failed"
    left = (world.home / "submissions").iterdir()
    assert [path for path in left if path.suffix != ".lock"] == []


def check_nothing_is_left(world: World) -> None:
    """No process, no lease, no lock."""
    assert world.training_processes() == []
    assert world.store.leases() == []
    for lock in world.locks.iterdir():
        assert free_amount(world.locks, lock.name) == 100
