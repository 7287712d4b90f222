"""Schedulers of a cluster to compare with."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_rlsched.simulator.cluster import Job, Pool, Scheduler
from mlflow_rlsched.simulator.workload import Application, JobSpec, Placement

DEMOTED_AFTER = 16 * 3600.0
"""Attained service from which a job yields to those with less, device-seconds."""


class Fixed:
    """First come, first served: each job gets what it asks for and keeps it to its end."""

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """In strict order: a job that does not fit holds back those behind it."""
        free = pool.gpus
        given = {}
        for job in jobs:
            if job.spec.gpus > free:
                break
            given[job.spec.name] = job.spec.gpus
            free -= job.spec.gpus
        return given


class Tiresias:
    """Discretised least attained service with two queues (Tiresias, Gu et al. 2019).

    A job runs in the first queue until its attained service reaches ``DEMOTED_AFTER``, then in
    the second. Each queue is served in the order in which jobs came to it, and whoever fits runs.
    """

    def __init__(self) -> None:
        self._demoted: list[str] = []

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """The devices that it asks for, to each job whose turn it is."""
        wanted = {job.spec.name: job.spec.gpus for job in jobs}
        self._demoted = [name for name in self._demoted if name in wanted]
        self._demoted += [
            job.spec.name
            for job in jobs
            if job.ran_s * job.spec.gpus >= DEMOTED_AFTER and job.spec.name not in self._demoted
        ]
        free = pool.gpus
        given = {}
        for name in [*(name for name in wanted if name not in self._demoted), *self._demoted]:
            if wanted[name] <= free:
                given[name] = wanted[name]
                free -= wanted[name]
        return given


class Optimus:
    """Devices to where one more saves the most time (Optimus, Peng et al. 2018).

    It is told the steps that are left and the time of a step on any number of devices.
    """

    def __init__(self) -> None:
        self._step_times: dict[tuple[Application, int, int], float] = {}

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """A device for each job as long as there are any, then by the largest gain."""
        running = jobs[: pool.gpus]
        counts = dict.fromkeys((job.spec.name for job in running), 1)
        gains = {job.spec.name: self._gain(job, 1, pool) for job in running}
        by_name = {job.spec.name: job for job in running}
        for _ in range(pool.gpus - len(running)):
            name = max(gains, key=lambda n: gains[n])
            if gains[name] <= 0:
                break
            counts[name] += 1
            gains[name] = self._gain(by_name[name], counts[name], pool)
        return dict(sorted(counts.items(), key=lambda item: item[1]))

    def _gain(self, job: Job, gpus: int, pool: Pool) -> float:
        """Seconds that one more device saves until the job is done."""
        spec = job.spec
        if gpus >= spec.batch // spec.application.profile.local_batch[0]:
            return 0.0
        less, more = (self._step_time(spec, count, pool) for count in (gpus, gpus + 1))
        return (less - more) * _steps_left(job)

    def _step_time(self, spec: JobSpec, gpus: int, pool: Pool) -> float:
        key = spec.application, spec.batch, gpus
        if key not in self._step_times:
            full, rest = divmod(gpus, pool.gpus_per_node)
            placement: Placement = (pool.gpus_per_node,) * full + ((rest,) if rest else ())
            self._step_times[key] = spec.application.step_time(placement, spec.batch)
        return self._step_times[key]


def _steps_left(job: Job) -> float:
    """Optimizer steps after the current epoch, which counts as one."""
    done = job.spec.application.profile.at_batch(job.spec.batch, "iteration")
    return max(float(done[-1] - done[job.epoch]), 1.0)


SCHEDULERS: dict[str, type[Scheduler]] = {
    "fixed": Fixed,
    "tiresias": Tiresias,
    "optimus": Optimus,
}
