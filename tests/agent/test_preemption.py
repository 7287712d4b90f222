"""Who makes way for whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mlflow_rlsched.agent.forecast import Holding
from mlflow_rlsched.agent.placement import Plan, Scene, plan
from mlflow_rlsched.agent.preemption import MOST, MOST_KINDS, Runner, make_way
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
    ends: Mapping[str, float] = {},
) -> tuple[Plan, Ranking]:
    """The plan when runners hold their devices, and what each user holds."""
    taken = {share.device for each in runners for share in each.shares}
    scene = Scene(
        lambda t: RunConfig.model_validate(t.spec.config),
        lambda _: devices,
        {device.id: 0 if device.id in taken else 100 for device in devices},
        "nvidia",
        [
            Holding(each.task.run_id, each.shares, ends.get(each.task.run_id, math.inf))
            for each in runners
        ],
    )
    holds = [(each.task, 100 * len(each.shares)) for each in runners]
    ranking = Ranking(waiting, lambda _: waited_s, holds, partial(weight_of, scene.configs))
    return plan(ranking, scene), ranking


def way(
    waiting: Sequence[Task],
    runners: Sequence[Runner],
    devices: Sequence[Device] = GPUS,
    ends: Mapping[str, float] = {},
) -> tuple[str, list[str]] | None:
    """For whom somebody makes way, and who."""
    found, ranking = situation(waiting, runners, devices, ends=ends)
    made = make_way(found, runners, ranking)
    return made and (made.task.run_id, [each.run_id for each in made.runners])


def victims(
    waiting: Sequence[Task], runners: Sequence[Runner], devices: Sequence[Device] = GPUS
) -> list[str]:
    made = way(waiting, runners, devices)
    return made[1] if made else []


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


MIXED = [Device("GPU-0", "nvidia", 0, "L4"), Device("GPU-1", "nvidia", 1, "L4"), *GPUS[2:]]


def test_where_nobody_can_make_way_for_the_first_the_next_is_looked_at() -> None:
    first = task("first", priority=5, gpus=2, requires={"gpu_type": "L4"})
    second = task("second", order=1, priority=4, requires={"gpu_type": "H100"})
    running = [
        runner("high", 0, priority=9),
        runner("low-l4", 1, order=1),
        runner("low", 2, order=2),
        runner("other", 3, order=3, priority=4),
    ]
    assert way([first, second], running, MIXED) == ("second", ["low"])
    assert way([second, first], running, MIXED) == ("second", ["low"])
    assert way([first], running, MIXED) is None
    anywhere = task("second", order=1, priority=4, requires={"gpu_type": "L4"})
    assert way([first, anywhere], running, MIXED) is None, "the first would get it"


def test_none_is_helped_with_what_another_would_get() -> None:
    first = task("first", priority=5, gpus=2)
    short = task("short", order=1, priority=4, timeout_s=100.0)
    running = [
        runner("a", 0, priority=9),
        runner("b", 1, priority=9),
        runner("c", 2, priority=9),
        runner("low", 3),
    ]
    ends = {"a": 500.0, "b": 600.0, "c": 700.0}
    assert way([first, short], running, GPUS, ends) == ("short", ["low"]), "it is over by then"
    long = task("long", order=1, priority=4, timeout_s=1000.0)
    assert way([first, long], running, GPUS, ends) is None


def test_a_free_device_that_is_promised_to_another_does_not_count() -> None:
    first = task("first", priority=5, gpus=2, requires={"gpu_type": "L4"})
    second = task("second", order=1, priority=4)
    running = [runner("high", 1, priority=9), runner("low", 2), runner("also", 3, priority=4)]
    assert way([first, second], running, MIXED) == ("second", ["low"])


def test_so_many_kinds_are_looked_at_and_not_more() -> None:
    l4 = [
        task(f"w{n}", n, priority=5, requires={"gpu_type": "L4", "memory_gb": n + 1})
        for n in range(MOST_KINDS)
    ]
    last = task("last", MOST_KINDS, priority=4, requires={"gpu_type": "H100"})
    running = [runner("high", 0, 1, priority=9), runner("low", 2), runner("same", 3, priority=4)]
    assert way([*l4[1:], last], running, MIXED) == ("last", ["low"])
    assert way([*l4, last], running, MIXED) is None


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
