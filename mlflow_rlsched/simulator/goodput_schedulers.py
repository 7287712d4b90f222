"""Schedulers of a cluster that share it by the jobs' goodput, and choose their batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from mlflow_rlsched.policy.allocation import (
    fairness_worth,
    flow_time_worth,
    horizon,
    keeping,
    place,
    shares,
    sizes,
)
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.weighing import Weighing
from mlflow_rlsched.simulator.cluster import Grant, Job, Pool
from mlflow_rlsched.simulator.estimates import Estimates, Outlook


class ByGoodput(ABC):
    """Fits every job's goodput model as it goes, and gives the devices that are worth most."""

    def __init__(self, shared: bool, weighing: Weighing) -> None:
        """Know nothing yet.

        Args:
            shared: Whether jobs of one application learn from each other's step times.
            weighing: How devices are weighed.
        """
        self._shared = shared
        self._weighing = weighing
        self._estimates: Estimates | None = None

    @abstractmethod
    def worth(
        self, outlook: Outlook, held: Sequence[int], pool: Pool, options: Sequence[int]
    ) -> Array:
        """(R, 1 + N) what no device and each of the options is worth to each job."""

    def decide(self, jobs: Sequence[Job], pool: Pool) -> Mapping[str, Grant]:
        """Devices, on as few nodes as can be, and the best batch on them."""
        options = sizes(pool.gpus, pool.gpus_per_node)
        if self._estimates is None:
            self._estimates = Estimates(pool, options, self._shared, self._weighing)
        self._estimates.observe(jobs)
        outlook = self._estimates.outlook(jobs)
        held = [job.gpus for job in jobs]
        counts = shares(self.worth(outlook, held, pool, options), options, pool.gpus)
        nodes = dict.fromkeys(range(pool.nodes), pool.gpus_per_node)
        places = place(counts, [job.held for job in jobs], nodes)
        return {
            job.spec.name: Grant(places[row], round(outlook.batch[row, options.index(count)]))
            for row, (job, count) in enumerate(zip(jobs, counts, strict=True))
            if count
        }


class Goodput(ByGoodput):
    """No job shall be slow, each knows what it measured itself (Pollux, Qiao et al. 2021)."""

    def __init__(self) -> None:
        super().__init__(shared=False, weighing=Weighing())

    def worth(
        self, outlook: Outlook, held: Sequence[int], pool: Pool, options: Sequence[int]
    ) -> Array:
        """The harmonic mean of the speeds."""
        patience = self._weighing.patience_s
        return fairness_worth(outlook.speed, keeping(options, held, pool.restart_s, patience))


class FlowTime(ByGoodput):
    """Jobs shall be done soon, on average: most to those with least to do, by their goodput."""

    def __init__(self, shared: bool = True, weighing: Weighing | None = None) -> None:
        super().__init__(shared, weighing or Weighing())

    def worth(
        self, outlook: Outlook, held: Sequence[int], pool: Pool, options: Sequence[int]
    ) -> Array:
        """The time that the devices save to all jobs' ends."""
        speed, left = outlook.speed, outlook.seconds_left
        until = horizon(speed, left, pool.interval_s, self._weighing)
        kept = keeping(options, held, pool.restart_s, until)
        return flow_time_worth(speed, kept, left, options, self._weighing)
