"""Waiting tasks when the wall clock jumps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlflow_rlsched.agent import waiting
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.store import State, Task
from tests.task_specs import make_spec

HOUR = 3600.0


class Clocks:
    """Stand for the module ``time``."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.steady = 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_(self, seconds: float, jump: float = 0.0) -> None:
        self.steady += seconds
        self.wall += seconds + jump


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    value = Clocks()
    monkeypatch.setattr(waiting, "time", value)
    return value


def queued(clocks: Clocks, attempt: int = 1, **changes: Any) -> Task:
    fields = {"submitted_at": clocks.wall, "order": 1, "attempt": attempt, **changes}
    return Task(make_spec("r"), State.QUEUED, 0, **fields)


def config(**settings: Any) -> RunConfig:
    return RunConfig.model_validate(settings)


@pytest.mark.parametrize("jump", [-HOUR, 0.0, HOUR])
def test_a_retry_waits_its_delay_whatever_the_clock_says(clocks: Clocks, jump: float) -> None:
    waits = Waiting()
    task = queued(clocks, not_before=clocks.wall + 10)
    waits.see(task, config())
    clocks.pass_(9, jump)
    assert not waits.see(task, config())
    assert not waits.is_ready(task)
    clocks.pass_(1)
    assert waits.is_ready(task)


def test_a_clock_set_back_before_the_agent_started_delays_by_no_more_than_the_longest_delay(
    clocks: Clocks,
) -> None:
    waits = Waiting()
    task = queued(clocks, not_before=clocks.wall + HOUR)
    waits.see(task, config(retry_delays_s=[5, 20]))
    clocks.pass_(23.9)
    assert not waits.is_ready(task)
    clocks.pass_(0.2)
    assert waits.is_ready(task)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_queue_timeout_is_no_matter_of_the_wall_clock(clocks: Clocks, jump: float) -> None:
    waits, settings = Waiting(), config(queue_timeout_s=60)
    task = queued(clocks, attempt=0)
    waits.see(task, settings)
    clocks.pass_(59, jump)
    waits.see(task, settings)
    assert not waits.is_overdue(task, settings)
    clocks.pass_(2)
    assert waits.is_overdue(task, settings)


def test_time_under_an_earlier_agent_counts_before_the_first_attempt_only(clocks: Clocks) -> None:
    settings = config(queue_timeout_s=60)
    first = queued(clocks, attempt=0, submitted_at=clocks.wall - 61)
    later = queued(clocks, attempt=1, submitted_at=clocks.wall - 61)
    for task, overdue in ((first, True), (later, False)):
        waits = Waiting()
        waits.see(task, settings)
        assert waits.is_overdue(task, settings) is overdue


def test_a_new_attempt_begins_a_new_wait(clocks: Clocks) -> None:
    waits, settings = Waiting(), config(queue_timeout_s=60)
    assert waits.see(queued(clocks, attempt=1), settings)
    clocks.pass_(59)
    task = queued(clocks, attempt=2)
    assert waits.see(task, settings)
    clocks.pass_(59)
    assert not waits.is_overdue(task, settings)
    waits.forget("r")
    assert waits.see(task, settings)


def test_the_first_promise_counts_and_what_is_not_known_is_none(clocks: Clocks) -> None:
    waits, task = Waiting(), queued(clocks)
    waits.see(task, config())
    assert not waits.is_late(task, math.inf)
    clocks.pass_(100)
    assert not waits.is_late(task, 50)
    clocks.pass_(50)
    assert not waits.is_late(task, 50)
    clocks.pass_(1)
    assert waits.is_late(task, 50)
    assert waits.is_late(task, math.inf)
    waits.forget("r")
    assert not waits.is_late(task, 50)


def test_the_next_look_is_when_a_delay_ends_that_had_not_at_the_last(clocks: Clocks) -> None:
    waits = Waiting()
    assert waits.next_look_s() is None
    waits.see(queued(clocks), config())
    assert waits.next_look_s() is None
    waits.see(queued(clocks, attempt=2, not_before=clocks.wall + 3), config())
    assert waits.next_look_s() == pytest.approx(3)
    clocks.pass_(4)
    assert waits.next_look_s() == 0
    waits.look()
    assert waits.next_look_s() is None
