"""Equals take turns where runs set ``quantum_s``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mlflow_rlsched.agent.preemption import MOST, Runner
from mlflow_rlsched.agent.turns import QUANTUM_OVER, take_turns, turn_s
from mlflow_rlsched.store import LEARNING_PRIORITY, Task
from tests.agent.simulated import GPUS as HOST_GPUS
from tests.agent.simulated import Host
from tests.agent.test_placement import task
from tests.agent.test_preemption import of, runner, situation

Q = 60.0


def turns(*running: Runner, first: Task, waited_s: float = Q) -> list[str]:
    found, ranking = situation([first], running, waited_s=waited_s)
    way = take_turns(found, lambda _: waited_s, running, ranking)
    return [each.run_id for each in way.runners] if way else []


def holder(name: str, *devices: int, **more: Any) -> Runner:
    """A runner whose turn is just over."""
    return runner(name, *devices, **{"held_s": Q, "quantum_s": Q, **more})


def test_who_has_had_a_turn_makes_way_for_an_equal_that_has_waited_as_long() -> None:
    waits = task("w", gpus=4)
    assert turns(holder("r", 0, 1, 2, 3), first=waits) == ["r"]
    assert turns(holder("r", 0, 1, 2, 3), first=waits, waited_s=Q - 1) == []
    for other in (
        {"held_s": Q - 1},
        {"quantum_s": None},
        {"resumes": False},
        {"priority": 1},
        {"priority": -1},
    ):
        assert turns(holder("r", 0, 1, 2, 3, **other), first=waits) == []
    assert turns(holder("r", 0, 1, 2, 3, preemptions=MOST), first=waits) == ["r"]
    assert turns(first=task("w", priority=LEARNING_PRIORITY, gpus=4)) == []


def test_who_has_held_for_longest_goes_first_and_nobody_in_vain() -> None:
    running = [holder("new", 0, 1), holder("old", 2, 3, held_s=2 * Q)]
    assert turns(*running, first=task("w", gpus=2)) == ["old"]
    assert turns(*running, first=task("w", gpus=4)) == ["old", "new"]
    young = holder("new", 0, 1, held_s=0.0)
    assert turns(young, running[1], first=task("w", gpus=4)) == []
    assert turns(running[1], first=task("w", gpus=2)) == [], "what is free is enough"
    leaves = holder("leaves", 0, leaves=True)
    assert turns(leaves, running[1], first=task("w", gpus=2)) == []


def test_who_would_be_the_first_again_stays() -> None:
    """Its user holds less than the user of whoever waits, or so does its experiment."""
    mine = of("ben", task("w"))
    others = [holder(name, n) for n, name in enumerate("abc")]
    bens = [replace(each, task=of("ben", each.task)) for each in others]
    ada = holder("ada", 3, held_s=9 * Q)
    assert turns(*bens, ada, first=mine) == ["a"]

    def at(experiment: str, task_: Task) -> Task:
        return replace(task_, spec=replace(task_.spec, experiment_id=experiment))

    there = [replace(each, task=at("1", each.task)) for each in others]
    alone = replace(ada, task=at("2", ada.task))
    assert turns(*there, alone, first=at("1", task("w"))) == ["a"]
    assert turns(*there, alone, first=at("2", task("w"))) == ["ada"]


def test_the_length_of_a_turn_goes_by_the_weights() -> None:
    assert [turn_s(Q, *weights) for weights in ((1, 1), (3, 1), (1, 3), (0, 1), (0, 0))] == [
        Q,
        3 * Q,
        Q,
        Q,
        Q,
    ]
    assert math.isinf(turn_s(Q, 1, 0))
    weights = {"ada": 3.0}
    run = holder("r", 0, 1, 2, 3)
    run = replace(run, task=of("ada", task("r", weights=weights)))
    waits = of("ben", task("w", gpus=4, weights=weights))
    assert turns(run, first=waits) == []
    assert turns(replace(run, held_s=3 * Q), first=waits) == ["r"]


def live(host: Host, seconds: float) -> list[str]:
    """Let time pass; returns which runs began, in their order. Who is asked to leave does."""
    known, began = set(host.trainings), []
    until = host.clock.now + seconds
    while host.clock.now < until:
        host.tick()
        for folder, training in host.trainings.items():
            if folder not in known:
                known.add(folder)
                began.append(training.run_id)
        for training in host.live():
            host.report(training, loss=1.0)
            if training.leaves:
                host.report(training, event="stopped")
                host.end(training, 75)
        host.work(5.0)
    return began


def test_three_equals_on_one_set_of_devices_take_turns(host: Host) -> None:
    settings = {"gpus": HOST_GPUS, "quantum_s": Q, "heartbeat_s": 1e6}
    runs = [host.submit(0, None, ["resume"], **settings) for _ in range(3)]
    order = live(host, 6.5 * Q)
    assert order == (runs * 2)[: len(order)]
    assert len(order) >= 5
    for run_id in runs[:2]:
        over = [attempt for attempt in host.store.attempts(run_id) if attempt.ended_at]
        assert {attempt.reason for attempt in over} == {QUANTUM_OVER}
        assert all(a.ended_at - a.started_at >= Q for a in over if a.ended_at)
    # One that comes now is behind those who have had their turns and wait again.
    last = host.submit(0, None, ["resume"], **settings)
    assert live(host, 4 * Q).index(last) >= 1


def test_what_has_had_a_turn_is_known_to_the_next_agent(host: Host) -> None:
    settings = {"gpus": HOST_GPUS, "quantum_s": Q, "heartbeat_s": 1e6}
    first, second = (host.submit(0, None, ["resume"], **settings) for _ in range(2))
    host.tick()
    (training,) = host.live()
    host.report(training, loss=1.0)
    host.work(Q)
    host.tick()
    assert training.leaves
    host.kill_agent()
    host.end(training, 75)
    host.tick()
    assert [attempt.reason for attempt in host.store.attempts(first)] == [QUANTUM_OVER]
    assert [each.run_id for each in host.live()] == [second]
