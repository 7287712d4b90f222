from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from mlflow_rlsched.simulator.cluster import Grant, Job, Pool, Scheduler, figures, replay
from mlflow_rlsched.simulator.goodput_schedulers import FlowTime, Goodput
from mlflow_rlsched.simulator.schedulers import SCHEDULERS, Backfill, ShortestRemaining
from mlflow_rlsched.simulator.workload import Application, JobSpec, read_workload

ONE = Pool(nodes=1, gpus_per_node=1)
TWO = Pool(nodes=1, gpus_per_node=2, restart_s=5)


@pytest.fixture
def toy(profiles: Path, workload: Path) -> Application:
    return read_workload(workload, profiles)[0].application


def jobs(toy: Application, *gpus: int) -> list[Job]:
    """a, b, c ... that ask for so many devices."""
    return [Job(JobSpec(chr(97 + n), 0, toy, count, 10)) for n, count in enumerate(gpus)]


def test_a_short_job_passes_one_that_waits(toy: Application) -> None:
    waiting = jobs(toy, 1, 3, 2)
    pool = Pool(nodes=1, gpus_per_node=3)
    assert Backfill().share(waiting, pool) == {"a": 1, "c": 2}  # 130 s, and c ends after 90
    waiting[0].held, waiting[0].epoch, waiting[0].progress = {0: 1}, 1, 50
    assert Backfill().share(waiting, pool) == {"a": 1}  # b can begin after 50 s


def test_a_long_job_passes_where_it_leaves_enough(toy: Application) -> None:
    waiting = jobs(toy, 2, 3, 1, 1)
    waiting[0].held = {0: 2}  # 60 s: c would take longer, but b leaves a device
    assert Backfill().share(waiting, Pool(nodes=1, gpus_per_node=4)) == {"a": 2, "c": 1}


def test_who_runs_keeps_its_devices_under_backfill(toy: Application) -> None:
    waiting = jobs(toy, 1, 1)
    waiting[1].held = {0: 1}
    assert Backfill().share(waiting, ONE) == {"b": 1}


def test_the_shortest_takes_the_devices_of_others(toy: Application) -> None:
    waiting = jobs(toy, 1, 1)
    waiting[0].held = {0: 1}
    waiting[1].epoch, waiting[1].progress = 1, 90
    assert ShortestRemaining().share(waiting, ONE) == {"b": 1}


def test_a_job_reports_its_setting_and_how_much_it_has_left(toy: Application) -> None:
    (job,) = jobs(toy, 2)
    job.give(Grant({0: 2}, 15), 0)
    job.advance(0, 6)
    assert job.measure().batch == 16  # 8 each
    assert job.measure().step_s == pytest.approx(0.6)
    # 60 % of the way from no noise at batch 10 to nothing but noise at batch 20
    assert job.measure().noise_scale == pytest.approx(10 * 0.6 / 0.4)
    assert job.steps_left == pytest.approx(100 - 10 / (0.6 / 1.6 + 0.4))


@pytest.mark.parametrize("scheduler", [Goodput(), FlowTime(), FlowTime(shared=False)])
def test_a_new_job_is_tried_on_one_device(toy: Application, scheduler: Scheduler) -> None:
    (job,) = jobs(toy, 2)
    first = scheduler.decide([job], TWO)
    assert first == {"a": Grant({0: 1}, 10)}
    job.give(first["a"], 5)
    job.advance(0, 10)
    second = scheduler.decide([job], TWO)
    assert second["a"].held == {0: 2}


def test_what_one_job_measured_holds_for_the_next(toy: Application) -> None:
    scheduler = FlowTime()
    first, second = jobs(toy, 1, 1)
    for _ in range(2):
        first.give(scheduler.decide([first], TWO)["a"], 5)
        first.advance(0, 10)
    assert scheduler.decide([second], TWO)["b"].held == {0: 2}


def test_a_job_that_is_nearly_done_is_not_stopped_for_a_new_one(toy: Application) -> None:
    specs = [JobSpec("a", 0, toy, 1, 10), JobSpec("b", 61, toy, 1, 10)]
    a, b = replay(specs, FlowTime(), ONE)
    assert a.finished_s == pytest.approx(30 + 100)
    assert a.starts == b.starts == 1


class Watched:
    """Another scheduler, whose grants are looked at."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def decide(self, jobs: Sequence[Job], pool: Pool) -> Mapping[str, Grant]:
        grants = self.scheduler.decide(jobs, pool)
        assert grants.keys() <= {job.spec.name for job in jobs}
        for node in range(pool.nodes):
            held = sum(grant.held.get(node, 0) for grant in grants.values())
            assert held <= pool.gpus_per_node
        for grant in grants.values():
            assert grant.held.keys() <= set(range(pool.nodes))
            assert 10 <= grant.batch <= 20
            assert sum(grant.held.values()) >= 1
        return grants


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_keeps_to_the_devices_and_ends_all_jobs(
    toy: Application, name: str
) -> None:
    random = np.random.default_rng(0)
    specs = [
        JobSpec(f"job {n}", when, toy, int(random.integers(1, 5)), 10)
        for n, when in enumerate(np.sort(random.uniform(0, 600, 20)))
    ]
    pool = Pool(nodes=2, gpus_per_node=4)
    found = [figures(replay(specs, Watched(SCHEDULERS[name]()), pool), pool) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["finished"] == 20
