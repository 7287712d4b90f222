"""A cluster that replays a workload: jobs come, a scheduler gives them devices, they progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

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


@dataclass(frozen=True)
class Grant:
    """What a job trains with until the next decision.

    Attributes:
        held: Devices by node.
        batch: Total batch size, samples.
    """

    held: Mapping[int, int]
    batch: int


@dataclass(frozen=True)
class Measurement:
    """What a training measures of its setting.

    Attributes:
        batch: Total batch size, as the devices share it, samples.
        step_s: Time of an optimizer step, seconds.
        noise_scale: Gradient noise scale, samples.
    """

    batch: int
    step_s: float
    noise_scale: float


@dataclass
class Span:
    """A stretch of time in which a job held the same devices.

    Attributes:
        start_s: Its start.
        end_s: Its end, as far as it is known.
        held: Devices by node.
    """

    start_s: float
    end_s: float
    held: Mapping[int, int]


@dataclass
class Job:
    """A job on its way.

    Attributes:
        spec: As it was submitted.
        held: Devices that it holds, by node.
        batch: Total batch size, samples.
        epoch: Epochs done.
        progress: Progress in steps at the base batch.
        restart_left_s: What is left of the last restart.
        starts: How often it was given devices.
        ran_s: Seconds with devices.
        gpu_s: Device-seconds.
        finished_s: When it was done, or None.
        spans: What it held when, oldest first.
    """

    spec: JobSpec
    held: Mapping[int, int] = field(default_factory=dict)
    batch: int = 0
    epoch: int = 0
    progress: float = 0.0
    restart_left_s: float = 0.0
    starts: int = 0
    ran_s: float = 0.0
    gpu_s: float = 0.0
    finished_s: float | None = None
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batch = self.batch or self.spec.batch

    @property
    def gpus(self) -> int:
        """Devices held."""
        return sum(self.held.values())

    @property
    def placement(self) -> Placement:
        """Devices on each node that it is on."""
        return tuple(self.held[node] for node in sorted(self.held))

    @property
    def steps_left(self) -> float:
        """Progress that is left, in steps at the base batch: what a training knows of itself."""
        return float(self.spec.application.profile.epoch_ends[-1] - self.progress)

    def measure(self) -> Measurement:
        """What a training that has devices reports of its setting."""
        app = self.spec.application
        local, more = app.split(self.batch, self.gpus)
        total = local * (more + 1) * self.gpus
        sqr, var = (app.profile.at_batch(total, name)[self.epoch] for name in ("sqr", "var"))
        noise = app.profile.batches[0] * max(float(var), 0.0) / max(float(sqr), 1e-12)
        return Measurement(total, app.step_time(self.placement, self.batch), noise)

    def give(self, grant: Grant, restart_s: float) -> None:
        """Train so from now on; a change of the batch alone costs nothing."""
        if grant.held and grant.held != self.held:
            self.restart_left_s = restart_s
            self.starts += 1
        self.held = grant.held
        self.batch = grant.batch

    def advance(self, now: float, seconds: float) -> None:
        """Train for ``seconds`` from ``now`` on, or until done."""
        if not self.held:
            return
        left = seconds - self._restart(seconds)
        app = self.spec.application
        rates, ends = app.rates(self.placement, self.batch), app.profile.epoch_ends
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
        self._note(now, now + seconds - left)

    def _note(self, start: float, end: float) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.end_s == start and last.held == self.held:
            last.end_s = end
        else:
            self.spans.append(Span(start, end, self.held))

    def _restart(self, seconds: float) -> float:
        spent = min(self.restart_left_s, seconds)
        self.restart_left_s -= spent
        return spent


class Scheduler(Protocol):
    """Decides what each job trains with. One object serves one replay."""

    def decide(self, jobs: Sequence[Job], pool: Pool) -> Mapping[str, Grant]:
        """What the jobs that shall run train with, by name; called once a decision.

        Args:
            jobs: Jobs that are submitted and not done, in the order of their submission.
            pool: The cluster.
        """
        ...


class Sharing(ABC):
    """A scheduler that decides on numbers of devices; the batches are those submitted."""

    @abstractmethod
    def share(self, jobs: Sequence[Job], pool: Pool) -> dict[str, int]:
        """Devices by name of job, at most the pool's in all.

        Args:
            jobs: Jobs that are submitted and not done, in the order of their submission.
            pool: The cluster.

        Returns:
            The jobs that shall run, in the order in which they choose their nodes. A job that
            keeps its number of devices keeps the devices.
        """

    def decide(self, jobs: Sequence[Job], pool: Pool) -> Mapping[str, Grant]:
        """Each job on the emptiest nodes, so on as few as possible."""
        share = self.share(jobs, pool)
        free = dict.fromkeys(range(pool.nodes), pool.gpus_per_node)
        by_name = {job.spec.name: job for job in jobs}
        held = {
            name: by_name[name].held for name, count in share.items() if count == by_name[name].gpus
        }
        for nodes in held.values():
            for node, count in nodes.items():
                free[node] -= count
        for name in [name for name in share if name not in held]:
            held[name] = _emptiest(free, share[name])
        return {name: Grant(nodes, by_name[name].spec.batch) for name, nodes in held.items()}


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
        grants = scheduler.decide(active, pool)
        for job in active:
            job.give(grants.get(job.spec.name, Grant({}, job.batch)), pool.restart_s)
            job.advance(now, pool.interval_s)
        now += pool.interval_s
        active = [job for job in active if job.finished_s is None]
    return jobs


def _emptiest(free: dict[int, int], count: int) -> dict[int, int]:
    held: dict[int, int] = {}
    while count > 0:
        node = max(free, key=lambda n: free[n])
        taken = min(free[node], count)
        held[node] = taken
        free[node] -= taken
        count -= taken
    return held


def schedule(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Which job held what when, as JSON values; times in seconds of the workload.

    Returns:
        For each job ``name``, ``application``, ``submitted_s``, ``finished_s`` and ``spans``, each
        with ``start_s``, ``end_s`` and ``held``, devices by the number of the node.
    """
    return [
        {
            "name": job.spec.name,
            "application": job.spec.application.profile.name,
            "submitted_s": job.spec.submitted_s,
            "finished_s": job.finished_s,
            "spans": [asdict(span) for span in job.spans],
        }
        for job in jobs
    ]


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
