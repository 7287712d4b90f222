"""Who makes way for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mlflow_rlsched.agent.placement import Scene
from mlflow_rlsched.agent.preemption import MOST, Runner, make_way
from mlflow_rlsched.agent.ranking import Ranking, weight_of
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import LEARNING_PRIORITY, DeviceShare, Task
from tests.agent.test_placement import GPUS, task


def runner(name: str, *devices: int, priority: int = 0, order: int = 0, **more: Any) -> Runner:
    settings = {
        "least": len(devices),
        "resumes": True,
        "leaves": False,
        "preemptions": 0,
        "held_s": 0.0,
        "quantum_s": None,
        **more,
    }
    shares = [DeviceShare(f"GPU-{device}") for device in devices]
    return Runner(task(name, order, priority), shares, **settings)


def situation(
    waiting: Sequence[Task],
    runners: Sequence[Runner],
    devices: Sequence[Device] = GPUS,
    waited_s: float = 0.0,
) -> tuple[Scene, Ranking]:
    """What there is when runners hold their devices, and the order of those who wait."""
    taken = {share.device for each in runners for share in each.shares}
    scene = Scene(
        lambda t: RunConfig.model_validate(t.spec.config),
        lambda _: devices,
        {device.id: 0 if device.id in taken else 100 for device in devices},
        "nvidia",
    )
    holds = [(each.task, 100 * len(each.shares)) for each in runners]
    return scene, Ranking(waiting, lambda _: waited_s, holds, partial(weight_of, scene.configs))


def victims(
    waiting: Sequence[Task], runners: Sequence[Runner], devices: Sequence[Device] = GPUS
) -> list[str]:
    scene, ranking = situation(waiting, runners, devices)
    return [found.run_id for found in make_way(waiting, runners, scene, ranking)]


def test_a_higher_priority_takes_from_the_lowest_and_of_these_from_the_newest() -> None:
    running = [
        runner("old", 0, order=1),
        runner("new", 1, order=2),
        runner("high", 2, priority=5),
        runner("low", 3, priority=-1, order=0),
    ]
    assert victims([task("w", priority=1, gpus=1)], running) == ["low"]
    assert victims([task("w", priority=1, gpus=2)], running) == ["low", "new"]
    assert victims([task("w", priority=1, gpus=3)], running) == ["low", "new", "old"]
    assert victims([task("w", priority=1, gpus=4)], running) == [], "it would be in vain"
    assert victims([task("w", priority=9, gpus=4)], running) == ["low", "new", "old", "high"]


def test_equals_do_not_make_way() -> None:
    assert victims([task("w", priority=0, gpus=4)], [runner("r", 0, 1, 2, 3)]) == []


def test_runs_that_can_shrink_come_first() -> None:
    running = [runner("rigid", 0, order=9), runner("elastic", 1, 2, 3, least=1, order=1)]
    assert victims([task("w", priority=1, gpus=2)], running) == ["elastic"]
    assert victims([task("w", priority=1, gpus=3)], running) == ["rigid", "elastic"]


@pytest.mark.parametrize("more", [{"resumes": False}, {"preemptions": MOST}, {"priority": 1}])
def test_who_cannot_resume_or_had_to_too_often_stays(more: dict[str, Any]) -> None:
    assert victims([task("w", priority=1, gpus=4)], [runner("r", 0, 1, 2, 3, **more)]) == []


def test_nobody_else_is_asked_while_somebody_leaves() -> None:
    running = [runner("leaves", 0, 1, leaves=True), runner("stays", 2, 3)]
    assert victims([task("w", priority=1, gpus=4)], running) == []


def test_nobody_makes_way_for_one_that_would_fit() -> None:
    waiting = [task("w", priority=1, gpus=2)]
    assert victims(waiting, [runner("r", 0, 1)]) == [], "it waits for its turn only"
    assert victims(waiting, [runner("r", 0, 1, 2)]) == ["r"]


def test_devices_that_do_not_suit_are_not_taken() -> None:
    devices = [Device("GPU-0", "nvidia", 0, "L4"), *GPUS[1:]]
    running = [runner("l4", 0, order=9), runner("h100", 1, 2, 3, order=1)]
    waiting = [task("w", priority=1, requires={"gpu_type": "H100"})]
    assert victims(waiting, running, devices) == ["h100"]


def test_who_learns_makes_way_for_anybody_who_waits() -> None:
    learns, works = runner("learns", 0, priority=LEARNING_PRIORITY), runner("works", 1, 2, 3)
    lowest = task("w", priority=-1_000_000)
    assert victims([lowest], [learns, works]) == ["learns"]
    assert victims([task("l", priority=LEARNING_PRIORITY)], [learns, works]) == []
    assert victims([], [learns]) == []


def of(user: str, task_: Task) -> Task:
    return replace(task_, spec=replace(task_.spec, user=user))


@pytest.mark.parametrize(
    ("weights", "given"),
    [
        ({}, ["r3", "r2"]),  # two each
        ({"ben": 3.0}, ["r3", "r2", "r1"]),
        ({"ada": 3.0}, ["r3"]),
        ({"ben": 0.0}, []),
        ({"ada": 0.0, "ben": 0.0}, []),
    ],
)
def test_a_user_who_holds_more_than_a_fair_share_gives_it_back(
    weights: dict[str, float], given: list[str]
) -> None:
    running = [runner(f"r{n}", n, order=n) for n in range(4)]
    running = [
        replace(r, task=of("ada", task(r.task.run_id, r.task.order, weights=weights)))
        for r in running
    ]
    found = []
    while made := victims([of("ben", task("w", weights=weights))], running):
        (name,) = made
        found.append(name)
        # What it gives is ben's from now on.
        running = [
            replace(r, task=of("ben", replace(r.task, spec=replace(r.task.spec, run_id="b"))))
            if r.task.run_id == name
            else r
            for r in running
        ]
    assert found == given
