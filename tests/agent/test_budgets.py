"""What the pool gives to runs whose number of devices can change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.agent.budgets import Asking, Prospect, budgets, expected_s, speeds
from mlflow_rlsched.policy.advice import Knowledge
from mlflow_rlsched.policy.goodput import Timings, assumed, fit
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.limits import Limits

STEEP = np.arange(1.0, 9) ** 0.9
"""Speed on 1 to 8."""


def run(name: str, held: int, **more: Any) -> Prospect:
    values: dict[str, Any] = {
        "priority": 0,
        "weight": 1.0,
        "each": 1,
        "least": 1,
        "most": 8,
        "speed": STEEP,
        "left_s": 1000.0,
        "restart_s": 5.0,
        **more,
    }
    return Prospect(name, held=held, **values)


def waits(count: int, priority: float = 0, each: int = 100) -> list[Asking]:
    return [Asking(priority, each)] * count


def given_to(
    runs: Sequence[Prospect], waiting: Sequence[Asking] = (), room: int | None = None
) -> dict[str, int]:
    if room is None:
        room = sum(each.held * each.each for each in runs)
    found = budgets(runs, waiting, len(waiting), room, room)
    return {run_id: budget.gpus for run_id, budget in found.items()}


def test_room_is_made_for_as_many_as_can_start() -> None:
    assert given_to([run("a", 4)], waits(1)) == {"a": 3}
    assert given_to([run("a", 4)], waits(3)) == {"a": 1}
    assert given_to([run("a", 4)], waits(9)) == {"a": 1}
    assert given_to([run("a", 4, least=3)], waits(2)) == {"a": 3}
    assert given_to([run("a", 4)], waits(3), room=6) == {"a": 3}, "two are free"


def test_the_reason_says_how_many_of_how_many_and_for_whom() -> None:
    (found,) = budgets([run("a", 4)], waits(3), 3, 4, 5).values()
    assert found.why == "the pool gives this run at most 1 of 5 devices while 3 wait"
    (found,) = budgets([run("a", 2, each=2)], waits(1, each=200), 1, 4, 4).values()
    assert found.why == "the pool gives this run at most 2 of 4 devices while 1 waits"


def test_who_cannot_be_helped_takes_nothing_and_nobody_behind_does() -> None:
    assert given_to([run("a", 4)], [Asking(0, 400), *waits(1)]) == {"a": 4}
    assert given_to([run("a", 4)], [*waits(1), Asking(0, math.inf), *waits(1)]) == {"a": 3}


def test_nobody_makes_room_for_a_lower_priority() -> None:
    high, low = run("high", 3, priority=5), run("low", 3)
    assert given_to([high, low], waits(9)) == {"high": 3, "low": 1}
    assert given_to([high, low], waits(3, priority=5)) == {"high": 2, "low": 1}
    assert given_to([high, low], [*waits(1, priority=5), *waits(9)]) == {"high": 3, "low": 1}


def test_parts_of_devices_add_up() -> None:
    assert given_to([run("a", 4)], waits(2, each=50)) == {"a": 3}
    assert given_to([run("a", 4)], waits(3, each=50)) == {"a": 2}


def test_while_somebody_waits_nobody_grows() -> None:
    assert given_to([run("a", 1), run("b", 3)], waits(1), room=8) == {"a": 1, "b": 3}


def test_if_nobody_waits_there_is_room_for_growth() -> None:
    assert given_to([run("a", 1)], room=8) == {"a": 8}
    assert given_to([run("a", 1, most=3)], room=8) == {"a": 3}
    flat = np.array([1.0, 1.01])
    assert given_to([run("a", 1, speed=flat)], room=4) == {"a": 4}, "as nobody else wants them"


def test_who_is_nearly_done_gets_what_brings_the_end_nearer() -> None:
    soon, late = run("soon", 1, left_s=300.0), run("late", 3, left_s=30_000.0)
    found = given_to([soon, late])
    assert found["soon"] > 1
    assert found["late"] < 3
    told = budgets([soon, late], [], 0, 4, 4)["late"].why
    assert told.endswith("of 4 devices, as others end sooner with more")


def test_a_change_has_to_be_worth_its_restart() -> None:
    soon, late = run("soon", 1, left_s=70.0), run("late", 3, left_s=30_000.0)
    costly = [run("soon", 1, left_s=70.0, restart_s=60.0), late]
    assert given_to([soon, late])["soon"] > 1
    assert given_to(costly) == {"soon": 1, "late": 3}


def test_the_weight_of_a_user_counts() -> None:
    runs = [run("a", 2, weight=9.0), run("b", 2, weight=1.0)]
    found = given_to(runs)
    assert found["a"] > found["b"] >= 1
    assert given_to([run("a", 2, weight=0.0), run("b", 2)]) == {"a": 1, "b": 3}


def test_slots_are_counted_by_what_a_run_takes_of_them() -> None:
    found = given_to([run("a", 2, each=2), run("b", 2)], waits(1))
    assert found in ({"a": 1, "b": 2}, {"a": 2, "b": 1})


@given(
    held=st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 2), st.floats(0, 1e5)),
        min_size=1,
        max_size=5,
    ),
    asked=st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([30, 100, 400])), max_size=4),
    free=st.integers(0, 4),
)
def test_no_more_is_given_than_there_is(
    held: list[tuple[int, int, int, float]], asked: list[tuple[int, int]], free: int
) -> None:
    runs = [
        run(str(n), gpus, priority=priority, each=each, left_s=left_s)
        for n, (gpus, priority, each, left_s) in enumerate(held)
    ]
    room = free + sum(each.held * each.each for each in runs)
    waiting = [Asking(priority, amount) for priority, amount in asked]
    found = given_to(runs, waiting, room)
    assert all(each.least <= found[each.run_id] <= each.most for each in runs)
    if waiting:
        assert all(found[each.run_id] <= each.held for each in runs)
    for each in runs:  # whoever takes all that it may leaves enough to the others
        others = sum(min(found[r.run_id], r.held) * r.each for r in runs if r is not each)
        assert others + found[each.run_id] * each.each <= room


def measured(*counts: int) -> History:
    """What is remembered of a run that ran on so many devices, nearly twice as fast on two."""
    timings = Timings.none(1)
    for count in counts:
        timings.add(np.zeros(1, int), *(np.array([x]) for x in (float(count), 64.0, 1 / count)))
    return History(notes=Knowledge(timings, fit(assumed(timings), timings, iterations=20)).notes())


def test_without_a_model_more_devices_are_not_hoped_for() -> None:
    found = speeds(History(), Limits(gpus_max=8), 3, None, True)
    assert len(found) == 3
    assert 1 == found[0] < found[1] < found[2] < 3


@pytest.mark.parametrize(("counts", "most"), [((1,), 2), ((1, 2), 4), ((1, 4), 8), ((1, 5), 8)])
def test_twice_the_devices_that_were_measured_are_thought_of(
    counts: tuple[int, ...], most: int
) -> None:
    found = speeds(measured(*counts), Limits(gpus_max=8, batch_initial=64), max(counts), 64, False)
    assert len(found) == most
    assert found[0] == 1
    assert found[1] > 1.3


def test_a_batch_that_cannot_grow_feeds_no_more_devices_than_it_has_samples() -> None:
    found = speeds(measured(1, 2), Limits(gpus_max=8, batch_initial=3), 2, 3, False)
    assert found[2] > 0
    assert found[3] == 0


def test_a_run_that_tells_no_progress_takes_as_long_as_it_ran() -> None:
    record = {"time": 100.0, "elapsed_s": 50.0, "history": {"progress": 0.25}}
    assert expected_s(record, 110.0) == 140
    assert expected_s({**record, "history": {}}, 110.0) == 50
    assert expected_s(None, 0.0) == 0
