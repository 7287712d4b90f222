"""Schedulers of a cluster to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlflow_rlsched.simulator.cluster import Job, Pool, Scheduler, Sharing
from mlflow_rlsched.simulator.goodput_schedulers import FlowTime, Goodput
from mlflow_rlsched.simulator.workload import Application, JobSpec, Placement

DEMOTED_AFTER = 16 * 3600.0
"""Attained service from which a job yields to those with less, device-seconds."""


class Fixed(Sharing):
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


class Backfill(Sharing):
    """First come, first served, and whoever delays nobody passes (EASY: Lifka 1995).

    It is told how long jobs take. The first that does not fit is promised the time at which enough
    devices will be free; those behind it start if they end by then, or leave it enough.
    """

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """What they ask for, to those that run and to those whose turn it is."""
        given = {job.spec.name: job.spec.gpus for job in jobs if job.held}
        free = pool.gpus - sum(given.values())
        waiting = [job for job in jobs if not job.held]
        while waiting and waiting[0].spec.gpus <= free:
            job = waiting.pop(0)
            given[job.spec.name] = job.spec.gpus
            free -= job.spec.gpus
        if not waiting:
            return given
        due, spare = self._promise(
            waiting[0], [job for job in jobs if job.spec.name in given], pool
        )
        for job in waiting[1:]:
            in_time = _seconds_left(job, pool) <= due
            if job.spec.gpus <= free and (in_time or job.spec.gpus <= spare):
                given[job.spec.name] = job.spec.gpus
                free -= job.spec.gpus
                spare -= 0 if in_time else job.spec.gpus
        return given

    def _promise(self, first: Job, running: Sequence[Job], pool: Pool) -> tuple[float, int]:
        """Seconds until the first that waits fits, and the devices that it leaves then."""
        ends = sorted((_seconds_left(job, pool), job.spec.gpus) for job in running)
        spare = pool.gpus - sum(gpus for _, gpus in ends) - first.spec.gpus
        due = 0.0
        while spare < 0:
            due, gpus = ends.pop(0)
            spare += gpus
        return due, spare


class ShortestRemaining(Sharing):
    """Who has least left to do comes first, and takes from the others. It is told the times."""

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """What they ask for, to the shortest that fit."""
        free = pool.gpus
        given = {}
        for job in sorted(jobs, key=lambda job: _seconds_left(job, pool)):
            if job.spec.gpus <= free:
                given[job.spec.name] = job.spec.gpus
                free -= job.spec.gpus
        return given


class Tiresias(Sharing):
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


class Optimus(Sharing):
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
            self._step_times[key] = spec.application.step_time(_packed(gpus, pool), spec.batch)
        return self._step_times[key]


def _packed(gpus: int, pool: Pool) -> Placement:
    """On as few nodes as can be."""
    full, rest = divmod(gpus, pool.gpus_per_node)
    return (pool.gpus_per_node,) * full + ((rest,) if rest else ())


def _seconds_left(job: Job, pool: Pool) -> float:
    """Time until a job is done on the devices that it asks for."""
    app, spec = job.spec.application, job.spec
    rates, ends = app.rates(_packed(spec.gpus, pool), spec.batch), app.profile.epoch_ends
    left = np.diff(ends[job.epoch :], prepend=job.progress)
    restart = job.restart_left_s if job.held else pool.restart_s
    return restart + float((left / rates[job.epoch :]).sum())


def _steps_left(job: Job) -> float:
    """Optimizer steps after the current epoch, which counts as one."""
    done = job.spec.application.profile.at_batch(job.spec.batch, "iteration")
    return max(float(done[-1] - done[job.epoch]), 1.0)


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "fixed": Fixed,
    "backfill": Backfill,
    "shortest": ShortestRemaining,
    "tiresias": Tiresias,
    "optimus": Optimus,
    "goodput": Goodput,
    "flowtime": FlowTime,
}
