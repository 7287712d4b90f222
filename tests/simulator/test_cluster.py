from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mlflow_rlsched.simulator.cluster import Job, Pool, Sharing, figures, replay
from mlflow_rlsched.simulator.schedulers import DEMOTED_AFTER, Fixed, Optimus, Tiresias
from mlflow_rlsched.simulator.workload import Application, JobSpec, Placement, read_workload
from tests.simulator.conftest import write_table, write_workload

POOL = Pool(nodes=1, gpus_per_node=2, interval_s=60, restart_s=30)


@pytest.fixture
def toy(profiles: Path, workload: Path) -> Application:
    return read_workload(workload, profiles)[0].application


@pytest.mark.parametrize(
    ("placement", "batch", "seconds"),
    [
        ((1,), 10, 1.0),
        ((1,), 20, 2.0),  # two gradients of 10, from which the noise is measured
        ((2,), 10, 0.6),
        ((2,), 20, 0.6),
        ((1, 1), 10, 0.8),
    ],
)
def test_a_step_takes_as_long_as_was_measured(
    toy: Application, placement: Placement, batch: int, seconds: float
) -> None:
    assert toy.step_time(placement, batch) == pytest.approx(seconds)


def test_what_was_not_measured_is_modelled(toy: Application) -> None:
    model = toy.profile.steps.fit.throughput
    assert toy.step_time((2, 2), 20) == pytest.approx(float(model.step_time(2, 4, 5)))


def test_twelve_devices_on_a_node_are_not_one_and_two(toy: Application, profiles: Path) -> None:
    model = toy.profile.steps.fit.throughput
    assert toy.step_time((12,), 20) == pytest.approx(float(model.step_time(1, 12, 1)))


def test_progress_counts_what_a_batch_is_worth(toy: Application) -> None:
    assert toy.rates((2,), 10) == pytest.approx([1 / 0.6] * 2)
    assert toy.rates((2,), 20) == pytest.approx([2 / 0.6] * 2)
    # 15 on two devices are 16: 60 % of the way from no noise to noise alone
    assert toy.rates((2,), 15) == pytest.approx([1 / (0.6 / 1.6 + 0.4) / 0.6] * 2)


def test_a_job_alone(toy: Application) -> None:
    (job,) = replay([JobSpec("a", 70, toy, 1, 10)], Fixed(), POOL)
    # decided at 120, 30 s of start, 100 steps of 1 s
    assert job.finished_s == pytest.approx(120 + 30 + 100)
    assert figures([job], POOL) == pytest.approx(
        {
            "avg_jct_s": 180,
            "p50_jct_s": 180,
            "p99_jct_s": 180,
            "makespan_s": 180,
            "gpu_hours": 130 / 3600,
            "utilisation": 130 / 360,
            "restarts": 0,
            "finished": 1,
        }
    )


def test_first_come_first_served_in_strict_order(toy: Application) -> None:
    specs = [
        JobSpec("a", 0, toy, 1, 10),
        JobSpec("b", 1, toy, 2, 10),
        JobSpec("c", 2, toy, 1, 10),
    ]
    a, b, c = replay(specs, Fixed(), POOL)
    assert a.finished_s == pytest.approx(130)
    assert b.finished_s == pytest.approx(180 + 30 + 60)
    assert c.finished_s == pytest.approx(300 + 30 + 100)


def test_least_attained_service_lets_a_newer_job_pass(toy: Application) -> None:
    jobs = [Job(JobSpec(name, 0, toy, 2, 10)) for name in "ab"]
    scheduler = Tiresias()
    assert scheduler.share(jobs, POOL) == {"a": 2}
    jobs[0].ran_s = DEMOTED_AFTER / 2
    assert scheduler.share(jobs, POOL) == {"b": 2}
    jobs[1].ran_s = DEMOTED_AFTER / 2
    assert scheduler.share(jobs, POOL) == {"a": 2}  # it was there first


def test_optimus_gives_devices_where_they_save_most(toy: Application) -> None:
    pool = Pool(nodes=1, gpus_per_node=3)
    fresh = Job(JobSpec("fresh", 0, toy, 1, 10))
    ending = Job(JobSpec("ending", 0, toy, 1, 10), epoch=1, progress=50)
    assert Optimus().share([ending, fresh], pool) == {"ending": 1, "fresh": 2}
    # a third device would take the local batch below what was measured
    assert Optimus().share([fresh], pool) == {"fresh": 2}


def test_a_device_each_comes_first(toy: Application) -> None:
    jobs = [Job(JobSpec(name, 0, toy, 1, 10)) for name in "abc"]
    assert Optimus().share(jobs, POOL) == {"a": 1, "b": 1}


class Alternating(Sharing):
    """Gives its only job one device, then two, and so on."""

    def __init__(self) -> None:
        self.count = 0

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        self.count += 1
        return {jobs[0].spec.name: 1 + self.count % 2}


def test_every_change_of_devices_costs_a_restart(toy: Application) -> None:
    (job,) = replay([JobSpec("a", 0, toy, 1, 10)], Alternating(), POOL)
    # 30 s of each minute are lost: 50 steps, 30 steps, 20 steps in 12 s
    assert job.finished_s == pytest.approx(120 + 30 + 12)
    assert figures([job], POOL)["restarts"] == 2


def test_jobs_keep_their_devices_and_new_ones_take_the_emptiest_node(toy: Application) -> None:
    pool = Pool(nodes=3, gpus_per_node=2)
    specs = [JobSpec(name, when, toy, n, 20) for name, when, n in (("a", 0, 1), ("b", 61, 2))]
    specs.append(JobSpec("c", 61, toy, 3, 20))
    a, b, c = replay(specs, Fixed(), pool)
    assert (a.held, b.held, c.held) == ({0: 1}, {1: 2}, {2: 2, 0: 1})


def test_jobs_start_by_their_time_whatever_the_order_of_rows(
    profiles: Path, workload: Path
) -> None:
    write_workload(workload, ("late", 500, "toy", 1, 10), ("early", 0, "toy", 1, 10))
    assert [job.name for job in read_workload(workload, profiles)] == ["early", "late"]


def test_a_profile_may_lack_the_larger_placements(profiles: Path, workload: Path) -> None:
    write_table(
        profiles / "toy" / "scalability.csv",
        "num_nodes,num_replicas,local_bsz,step_time,sync_time",
        [(6, 6, 5, 2.0, 0.5), (6, 6, 20, 2.0, 0.5)],
    )
    toy = read_workload(workload, profiles)[0].application
    assert toy.step_time((1,) * 6, 20) > 0
