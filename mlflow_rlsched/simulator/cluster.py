"""A cluster that replays a workload: jobs come, a scheduler gives them devices, they progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mlflow_rlsched.simulator.profiles import DataError
from mlflow_rlsched.simulator.workload import JobSpec, Placement


@dataclass(frozen=True)
class Pool:
    """A cluster of like nodes.

    Attributes:
        nodes: Nodes.
        gpus_per_node: Devices of each.
        interval_s: Seconds between two decisions.
        restart_s: Seconds that a job loses whenever it is given devices.
    """

    nodes: int = 16
    gpus_per_node: int = 4
    interval_s: float = 60.0
    restart_s: float = 30.0

    @property
    def gpus(self) -> int:
        """All devices."""
        return self.nodes * self.gpus_per_node


@dataclass
class Job:
    """A job on its way.

    Attributes:
        spec: As it was submitted.
        held: Devices that it holds, by node.
        epoch: Epochs done.
        progress: Progress in steps at the base batch.
        restart_left_s: What is left of the last restart.
        starts: How often it was given devices.
        ran_s: Seconds with devices.
        gpu_s: Device-seconds.
        finished_s: When it was done, or None.
    """

    spec: JobSpec
    held: Mapping[int, int] = field(default_factory=dict)
    epoch: int = 0
    progress: float = 0.0
    restart_left_s: float = 0.0
    starts: int = 0
    ran_s: float = 0.0
    gpu_s: float = 0.0
    finished_s: float | None = None

    @property
    def gpus(self) -> int:
        """Devices held."""
        return sum(self.held.values())

    def give(self, held: Mapping[int, int], restart_s: float) -> None:
        """Hold these devices from now on."""
        if held and held != self.held:
            self.restart_left_s = restart_s
            self.starts += 1
        self.held = held

    def advance(self, now: float, seconds: float) -> None:
        """Train for ``seconds`` from ``now`` on, or until done."""
        if not self.held:
            return
        left = seconds - self._restart(seconds)
        app = self.spec.application
        placement: Placement = tuple(self.held[node] for node in sorted(self.held))
        rates, ends = app.rates(placement, self.spec.batch), app.profile.epoch_ends
        while left > 0 and self.finished_s is None:
            rate = float(rates[self.epoch])
            needed = float(ends[self.epoch] - self.progress) / rate
            if needed > left:
                self.progress += rate * left
                left = 0.0
                continue
            left -= needed
            self.progress = float(ends[self.epoch])
            self.epoch += 1
            if self.epoch == len(ends):
                self.finished_s = now + seconds - left
        self.ran_s += seconds - left
        self.gpu_s += (seconds - left) * self.gpus

    def _restart(self, seconds: float) -> float:
        spent = min(self.restart_left_s, seconds)
        self.restart_left_s -= spent
        return spent


class Scheduler(Protocol):
    """Decides how many devices each job holds. One object serves one replay."""

    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """Devices by name of job, at most the pool's in all; called once a decision.

        Args:
            jobs: Jobs that are submitted and not done, in the order of their submission.
            pool: The cluster.

        Returns:
            The jobs that shall run, in the order in which they choose their nodes. A job that
            keeps its number of devices keeps the devices.
        """
        ...


def replay(specs: Sequence[JobSpec], scheduler: Scheduler, pool: Pool) -> list[Job]:
    """Let a scheduler run a workload to its end.

    Args:
        specs: The jobs, in the order of their submission.
        scheduler: Who gives devices.
        pool: The cluster.

    Raises:
        DataError: A job asks for more devices than the cluster has.
    """
    for spec in specs:
        if spec.gpus > pool.gpus:
            raise DataError(
                f"job {spec.name!r} asks for {spec.gpus} GPUs and the cluster has {pool.gpus}:"
                " give it more nodes or more GPUs a node"
            )
    jobs = [Job(spec) for spec in specs]
    now, came = 0.0, 0
    active: list[Job] = []
    while active or came < len(jobs):
        if not active:
            following = jobs[came].spec.submitted_s
            now = max(now, math.ceil(following / pool.interval_s) * pool.interval_s)
        while came < len(jobs) and jobs[came].spec.submitted_s <= now:
            active.append(jobs[came])
            came += 1
        _place(active, scheduler.share(active, pool), pool)
        for job in active:
            job.advance(now, pool.interval_s)
        now += pool.interval_s
        active = [job for job in active if job.finished_s is None]
    return jobs


def _place(jobs: Sequence[Job], share: Mapping[str, int], pool: Pool) -> None:
    """Give each job its share: on the emptiest nodes, so on as few as possible."""
    free = dict.fromkeys(range(pool.nodes), pool.gpus_per_node)
    moved = {job.spec.name: job for job in jobs}
    for job in jobs:
        wanted = share.get(job.spec.name, 0)
        if wanted and wanted == job.gpus:
            del moved[job.spec.name]
            for node, count in job.held.items():
                free[node] -= count
    for name in [*share, *(moved.keys() - share.keys())]:
        if name in moved:
            moved[name].give(_nodes(free, share.get(name, 0)), pool.restart_s)


def _nodes(free: dict[int, int], count: int) -> dict[int, int]:
    held: dict[int, int] = {}
    while count > 0:
        node = max(free, key=lambda n: free[n])
        taken = min(free[node], count)
        held[node] = taken
        free[node] -= taken
        count -= taken
    return held


def figures(jobs: Sequence[Job], pool: Pool) -> dict[str, float]:
    """What a replay came to.

    Returns:
        Average, median and 99th percentile of the jobs' completion times (submission to end);
        ``makespan_s`` from the first submission to the last end; ``gpu_hours`` of all jobs;
        ``utilisation``, the part of the pool's device-hours over the makespan that jobs held;
        ``restarts`` of all jobs after their first start; ``finished``, the number of jobs.
    """
    ends = np.array([job.finished_s for job in jobs], float)
    took = ends - [job.spec.submitted_s for job in jobs]
    makespan = float(ends.max() - jobs[0].spec.submitted_s)
    gpu_s = sum(job.gpu_s for job in jobs)
    return {
        "avg_jct_s": float(took.mean()),
        "p50_jct_s": float(np.percentile(took, 50)),
        "p99_jct_s": float(np.percentile(took, 99)),
        "makespan_s": makespan,
        "gpu_hours": gpu_s / 3600,
        "utilisation": gpu_s / (pool.gpus * makespan),
        "restarts": sum(job.starts - 1 for job in jobs),
        "finished": len(jobs),
    }
