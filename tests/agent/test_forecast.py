"""When devices become free, and waiting tasks start."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlflow_rlsched.agent.forecast import (
    UNKNOWN,
    Holding,
    Reservation,
    earliest,
    forecast,
    left_of,
    usual_s,
)
from mlflow_rlsched.devices.demand import Demand
from mlflow_rlsched.store import DeviceShare, State, Task
from tests.task_specs import make_spec

DEVICES = ["d0", "d1", "d2"]


def holding(run_id: str, *devices: str, left_s: float = math.inf, amount: int = 100) -> Holding:
    return Holding(run_id, [DeviceShare(device, amount) for device in devices], left_s)


def task(run_id: str, **changes: object) -> Task:
    made = Task(make_spec(run_id), State.QUEUED, 0, 0.0, 1)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("progress", "timeout", "seconds", "basis"),
    [
        (0.25, None, 300.0 - 20.0, "it is 25% done"),
        (0.25, 50.0, 300.0 - 20.0, "it is 25% done"),
        (0.99, None, 0.0, "it is 99% done"),
        (None, 50.0, 50.0, "its timeout_s ends then"),
        (0.0, 50.0, 50.0, "its timeout_s ends then"),
        (None, None, math.inf, UNKNOWN),
    ],
)
def test_what_a_run_has_left(
    progress: float | None, timeout: float | None, seconds: float, basis: str
) -> None:
    record = {"history": {"progress": progress}, "elapsed_s": 100.0, "time": 1000.0}
    assert left_of(record, timeout, 1020.0) == (pytest.approx(seconds), basis)


def test_a_run_without_decisions() -> None:
    assert left_of(None, None, 0.0) == (math.inf, UNKNOWN)


def test_the_devices_that_are_free_first() -> None:
    free = {"d0": 100}
    early, late = holding("early", "d1", left_s=10), holding("late", "d2", left_s=90)
    two = Demand(2, 100)
    assert earliest(two, DEVICES, free, [late, early]) == Reservation(10, ["d0", "d1"], (early,))
    assert earliest(Demand(1, 100), DEVICES, free, [late, early]) == Reservation(0.0, ["d0"])
    assert earliest(two, ["d0", "d2"], free, [late, early]).in_s == 90
    assert earliest(Demand(4, 100), DEVICES, free, [late, early]) == Reservation(math.inf)


def test_an_end_that_is_not_known_is_no_date() -> None:
    silent = holding("silent", "d0")
    assert earliest(Demand(1, 100), ["d0"], {}, [silent]) == Reservation(math.inf, (), (silent,))


def test_parts_of_devices_add_up() -> None:
    parts = [holding("a", "d0", left_s=5, amount=40), holding("b", "d0", left_s=9, amount=30)]
    assert earliest(Demand(1, 60), ["d0"], {"d0": 30}, parts).in_s == 5
    assert earliest(Demand(1, 80), ["d0"], {"d0": 30}, parts).in_s == 9


def test_those_who_wait_start_one_after_the_other() -> None:
    found = forecast(
        [task("a"), task("b"), task("none"), task("c")],
        lambda task: Demand(0 if task.run_id == "none" else 1, 100),
        lambda _: ["d0"],
        {},
        [holding("r", "d0", left_s=10)],
        lambda task: {"a": 100.0}.get(task.run_id),
    )
    assert found["a"].in_s == 10
    assert found["b"].in_s == 110
    assert [waits.run_id for waits in found["b"].after] == ["a"]
    assert found["none"].in_s == 0
    assert math.isinf(found["c"].in_s), "nobody knows how long such a run takes"


def test_the_usual_length_is_that_of_the_same_kind() -> None:
    done = [
        task(str(n), state=State.FINISHED, started_at=0.0, ended_at=seconds)
        for n, seconds in enumerate([10.0, 30.0, 20.0])
    ]
    failed = task("f", state=State.FAILED, started_at=0.0, ended_at=1.0)
    other = Task(make_spec("o", entry_point="other"), State.FINISHED, 0, 0.0, 1)
    other = replace(other, started_at=0.0, ended_at=999.0)
    assert usual_s(task("a"), [*done, failed, other]) == 20.0
    assert usual_s(task("a"), [failed, other]) is None
