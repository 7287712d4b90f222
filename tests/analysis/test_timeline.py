"""The time of a run, cut into parts that add up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.analysis.recorded import Launch, RunRecord, Told
from mlflow_rlsched.analysis.steps import steps
from mlflow_rlsched.analysis.timeline import device_seconds_by_part, seconds_by_part, stretches
from mlflow_rlsched.store import State
from tests.analysis.records import START, launch, run, told


def parts(record: RunRecord, **more: object) -> dict[str, float]:
    found = seconds_by_part(stretches(record), **more)  # type: ignore[arg-type]
    return {part: seconds for part, seconds in found.items() if seconds}


def test_a_run_without_trouble() -> None:
    reports = told((30, 0), (50, 100), (90, 300))
    record = run(launch(1, 20, 95, reports), ended=95)
    assert parts(record) == {"queue": 20, "start": 10, "compute": 60, "ending": 5}


def test_what_a_training_does_before_its_first_step_is_starting() -> None:
    """It says hello, builds its model, makes its first step, and then many a second."""
    reports = [Told(START + at, float(step), 8.0 * step) for at, step in ((10, 0), (25, 1))]
    reports += [Told(START + 35, 101.0, 808.0)]
    record = run(launch(1, 0, 35, reports), ended=35)
    assert parts(record) == {"start": 25, "compute": 10}
    (measured,) = steps(run(launch(1, 0, 35, [each._replace(batch=8.0) for each in reports])))
    assert measured.step_s == pytest.approx(0.1)
    resumed = [each._replace(step=(each.step or 0) + 500) for each in reports]
    later = run(launch(1, 0, 5, reason="resized"), launch(2, 5, 40, resumed), ended=40)
    assert parts(later) == {"silent": 5, "restart": 20, "compute": 10, "ending": 5}


def test_what_the_training_waits_for_its_input_is_no_computing() -> None:
    reports = told((10, 0), (20, 100), (30, 200), wait=0.25)
    found = parts(run(launch(1, 0, 30, reports), ended=30))
    assert found == {"start": 10, "input": 5, "compute": 15}


def test_a_wild_part_of_waiting_stays_within_the_time() -> None:
    reports = told((10, 0), (20, 100), wait=7.0)
    assert parts(run(launch(1, 10, 20, reports), submitted=10, ended=20)) == {"input": 10}


def test_communication_is_a_part_of_what_is_left() -> None:
    reports = told((0, 0), (100, 100), wait=0.5)
    found = parts(run(launch(1, 0, 100, reports), ended=100), communication={1: 0.2})
    assert found == {"input": 50, "communication": 10, "compute": 40}


def test_work_after_a_crash_is_done_twice_up_to_where_it_was() -> None:
    first = launch(1, 0, 50, told((10, 0), (50, 400)), reason="killed")
    second = launch(2, 70, 200, told((80, 200), (100, 300), (160, 600), (200, 800)))
    found = parts(run(first, second, ended=200))
    # 200 to 400 samples: 20 s to 300, and a third of the next 60 s.
    assert found == {"start": 10, "compute": 40 + 80, "queue": 20, "restart": 10, "repeated": 40}


def test_a_change_of_devices_is_a_restart_and_not_a_wait() -> None:
    first = launch(1, 0, 40, told((0, 0), (40, 400)), reason="resized")
    second = launch(2, 45, 100, told((60, 400), (100, 1200)), devices=2)
    record = run(first, second, ended=100)
    assert parts(record) == {"compute": 80, "restart": 20}
    held = device_seconds_by_part(record, stretches(record))
    assert {part: value for part, value in held.items() if value} == {
        "compute": 40 + 80,
        "restart": 30,
    }


def test_a_run_that_was_retried_was_over_until_then() -> None:
    first = launch(1, 0, 10, told((0, 0), (10, 10)), reason="user_error")
    second = launch(2, 60, 70, told((60, 10), (70, 20)))
    assert parts(run(first, second, submitted=50, ended=70)) == {
        "compute": 20,
        "over": 40,
        "queue": 10,
    }


def test_a_training_that_tells_nothing() -> None:
    assert parts(run(launch(1, 5, 50), ended=50)) == {"queue": 5, "silent": 45}
    hello = told((10, 0))
    assert parts(run(launch(1, 0, 50, hello), ended=50)) == {"start": 10, "silent": 40}


def test_runs_that_never_started_or_go_on() -> None:
    assert parts(run(state=State.KILLED, ended=30)) == {"queue": 30}
    assert parts(run(state=State.QUEUED, now=40)) == {"queue": 40}
    going = launch(1, 10, None, told((15, 0), (35, 100)))
    assert parts(run(going, now=40, state=State.RUNNING)) == {
        "queue": 10,
        "start": 5,
        "compute": 20,
        "silent": 5,
    }


times = st.floats(0, 1000, allow_nan=False)


@st.composite
def wild(draw: st.DrawFn) -> RunRecord:
    """Attempts and reports in any order, as clocks that are set back would leave them."""
    launches: list[Launch] = []
    for number in range(1, draw(st.integers(0, 3)) + 1):
        points = sorted(draw(st.lists(st.tuples(times, times), max_size=6)))
        wait = draw(st.none() | st.floats(-1, 2))
        reason = draw(st.sampled_from(["killed", "resized", "finished"]))
        launches.append(launch(number, draw(times), draw(times), told(*points, wait=wait), reason))
    return run(*launches, submitted=draw(times), ended=draw(times))


@given(wild())
def test_the_parts_always_add_up(record: RunRecord) -> None:
    found = stretches(record)
    for before, after in pairwise(found):
        assert after.start == pytest.approx(before.end)
    total = sum(seconds_by_part(found, {1: 0.3}).values())
    assert total == pytest.approx(found[-1].end - found[0].start if found else 0.0)
    assert all(seconds >= 0 for seconds in seconds_by_part(found).values())
