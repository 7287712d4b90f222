"""What a scheduler can know of the jobs of a cluster from what they report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from mlflow_rlsched.policy.allocation import Batches, fastest
from mlflow_rlsched.policy.goodput import Timings, assumed, fit
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.weighing import Weighing
from mlflow_rlsched.simulator.cluster import Job, Pool

_ITERATIONS = 2  # of the fit, a decision


@dataclass(frozen=True)
class Outlook:
    """What is expected of jobs, one a row.

    Attributes:
        speed: (R, N) speed on each number of devices over that on one; 0 where it is not tried.
        batch: (R, N) the best batches there, samples.
        seconds_left: (R,) time to the end on one device.
    """

    speed: Array
    batch: Array
    seconds_left: Array


class Estimates:
    """The goodput model of each job, fitted while the jobs go on.

    Only what jobs measured of the settings that they were in counts, and how much they have left
    to do; before anything was measured a job is tried on one device.
    """

    def __init__(
        self, pool: Pool, options: Sequence[int], shared: bool, weighing: Weighing
    ) -> None:
        """Know nothing yet.

        Args:
            pool: The cluster.
            options: Numbers of devices to foresee.
            shared: Whether what a job measured holds for all jobs of its application, else for
                itself alone.
            weighing: What is thought of that which was not measured.
        """
        self._weighing = weighing
        self._pool = pool
        self._options = options
        self._shared = shared
        self._rows: dict[str, int] = {}
        self._noise: dict[str, float] = {}
        self._timings = Timings.none(0)
        self._parameters = assumed(self._timings)

    def observe(self, jobs: Sequence[Job]) -> None:
        """Take in what the jobs measured in the last interval, and fit their models."""
        self._begin(jobs)
        unseen = [job for job in jobs if job.gpus and job.ran_s > 0]
        while unseen:  # no row twice at a time
            chosen = {self._row(job): job for job in reversed(unseen)}
            self._measure(chosen)
            unseen = [job for job in unseen if chosen[self._row(job)] is not job]
        rows = np.unique([self._row(job) for job in jobs])
        fitted = fit(
            self._parameters[rows],
            _rows_of(self._timings, rows),
            self._pool.gpus_per_node,
            _ITERATIONS,
        )
        self._parameters[rows] = fitted

    def outlook(self, jobs: Sequence[Job]) -> Outlook:
        """What is expected of these jobs, which were observed."""
        rows = np.array([self._row(job) for job in jobs])
        profiles = [job.spec.application.profile for job in jobs]
        base = np.array([profile.batches[0] for profile in profiles], float)
        batches = Batches(
            base=base,
            most=np.array([profile.batches[-1] for profile in profiles], float),
            least_each=np.array([profile.local_batch[0] for profile in profiles], float),
        )
        noise = np.array([self._noise_of(job) for job in jobs])
        per_node = self._pool.gpus_per_node
        rates, batch = fastest(self._parameters[rows], noise, batches, self._options, per_node)
        measured = self._timings.count[rows] > 0
        most = self._weighing.growth * np.where(measured, self._timings.gpus[rows], 0).max(1)
        tried = np.array(self._options) <= np.maximum(most, 1)[:, None]
        left = base * [job.steps_left for job in jobs] / rates[:, 0]
        known = measured.any(1)
        newcomers = self._weighing.newcomer * np.median(left[known]) if known.any() else 0.0
        return Outlook(
            speed=np.where(tried, rates / rates[:, :1], 0.0),
            batch=batch,
            seconds_left=np.where(known, left, newcomers),
        )

    def _key(self, job: Job) -> str:
        return job.spec.application.profile.name if self._shared else job.spec.name

    def _row(self, job: Job) -> int:
        return self._rows[self._key(job)]

    def _begin(self, jobs: Sequence[Job]) -> None:
        new = {self._key(job): job for job in jobs if self._key(job) not in self._rows}
        fresh = Timings.none(len(new))
        for place, (key, job) in enumerate(new.items()):
            fresh.batch[place, 0] = job.spec.application.profile.batches[0]
            self._rows[key] = len(self._rows)
        names = [field.name for field in fields(Timings)]
        both = ((getattr(self._timings, name), getattr(fresh, name)) for name in names)
        self._timings = Timings(*map(np.concatenate, both))
        self._parameters = np.concatenate([self._parameters, assumed(fresh)])

    def _measure(self, jobs: dict[int, Job]) -> None:
        found = {row: job.measure() for row, job in jobs.items()}
        for row, job in jobs.items():
            self._noise[job.spec.name] = found[row].noise_scale
            self._noise.setdefault(self._key(job), found[row].noise_scale)
        self._timings.add(
            np.array(list(found)),
            np.array([job.gpus for job in jobs.values()], float),
            np.array([seen.batch for seen in found.values()], float),
            np.array([seen.step_s for seen in found.values()]),
        )

    def _noise_of(self, job: Job) -> float:
        """Its own, else that of the first measurement of its like, else unknown."""
        return self._noise.get(job.spec.name, self._noise.get(self._key(job), np.nan))


def _rows_of(timings: Timings, rows: Array) -> Timings:
    return Timings(*(getattr(timings, field.name)[rows] for field in fields(Timings)))
