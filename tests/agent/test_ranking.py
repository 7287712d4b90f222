"""In which order waiting tasks are looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlflow_rlsched.agent.ranking import AGEING_S, Ranking, effective_priority
from mlflow_rlsched.store import LEARNING_PRIORITY, State, Task
from tests.task_specs import make_spec


def task(run_id: str, order: int, priority: int = 0, **spec: Any) -> Task:
    return Task(make_spec(run_id, **spec), State.QUEUED, priority, 0.0, order)


def order(tasks: list[Task], holds: list[tuple[Task, int]] | None = None, **waited: float) -> str:
    """The run ids in their order; each is given a device when it comes."""
    ranking = Ranking(tasks, lambda task: waited.get(task.run_id, 0.0), holds or [])
    found = ""
    for each in ranking:
        ranking.give(each, 100)
        found += each.run_id
    return found


def test_higher_priority_then_older() -> None:
    assert order([task("a", 3), task("b", 1), task("c", 2, priority=1)]) == "cba"


def test_waiting_is_worth_priority() -> None:
    low, high = task("a", 1, priority=0), task("b", 2, priority=3)
    assert order([low, high], a=2.9 * AGEING_S) == "ba"
    assert order([low, high], a=3 * AGEING_S) == "ab"


def test_who_learns_never_comes_before_anybody() -> None:
    learns = task("l", 1, priority=LEARNING_PRIORITY)
    assert effective_priority(learns, 1e9) == LEARNING_PRIORITY
    assert order([learns, task("a", 2, priority=-1_000_000)], l=1e9) == "al"


def test_equals_share() -> None:
    mine = [task(name, n, experiment_id="1") for n, name in enumerate("abc")]
    other = [task(name, 10 + n, experiment_id="2") for n, name in enumerate("xy")]
    assert order(mine + other) == "axbyc"
    assert order(mine + other, [(mine[0], 200)]) == "xyabc"
    theirs = [task("z", 20, user="ada", experiment_id="3")]
    assert order(mine[1:] + theirs, [(mine[0], 100)]) == "zbc"


def test_users_share_by_their_weights() -> None:
    weights = {"ada": 2.0, "ben": 1.0, "eve": 0.0}
    names = {"ada": "abcd", "ben": "xyz", "eve": "e"}
    tasks = [
        task(name, 10 - n, user=user)
        for user, those in names.items()
        for n, name in enumerate(reversed(those))
    ]
    ranking = Ranking(tasks, lambda _: 0.0, weight=lambda each: weights[each.spec.user])
    found = ""
    for each in ranking:
        ranking.give(each, 100)
        found += each.run_id
    assert found == "axbycdze", "two for ada to one for ben; eve when nobody else is left"
    assert ranking.held("ada") == 400


@pytest.mark.parametrize("priority", [0, 9])
def test_who_is_being_resized_comes_first(priority: int) -> None:
    resized = replace(task("r", 5), exit_reason="resized")
    assert order([task("a", 1, priority=priority), resized], a=1e6) == "ra"
