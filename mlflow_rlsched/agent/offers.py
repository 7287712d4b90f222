"""What this host can offer to those who wait, and to those who run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from mlflow_rlsched.agent.forecast import Holding, held_by_run
from mlflow_rlsched.agent.others import Foreign
from mlflow_rlsched.agent.placement import Scene, with_room, within_quota
from mlflow_rlsched.agent.pool import DRAIN_S, Pool
from mlflow_rlsched.agent.preemption import PREEMPTED, Runner
from mlflow_rlsched.agent.ranking import Ranking, weight_of
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import demand
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import Outlook, Store, Task


class Offers:
    """Offers of this host's devices.

    Args:
        pool: The devices.
        store: Holds the leases.
        host: This host's name in the store.
        configs: Configuration of a task.
    """

    def __init__(
        self, pool: Pool, store: Store, host: str, configs: Callable[[Task], RunConfig]
    ) -> None:
        self._pool = pool
        self._store = store
        self._host = host
        self._configs = configs

    def to(
        self, ready: Sequence[Task], running: Sequence[Supervised | Foreign], waiting: Waiting
    ) -> tuple[Ranking, Scene]:
        """For ``plan``: the order of those who wait, and what there is for them."""
        held = held_by_run(self._store.leases(self._host))
        shares = {s.run_id: held.pop(s.run_id, []) for s in running}
        amounts = [(s.task, sum(x.amount for x in shares[s.run_id])) for s in running]
        holdings = [s.holding(shares[s.run_id]) for s in running]
        holdings += [Holding(run_id, left, DRAIN_S) for run_id, left in held.items()]
        scene = Scene(
            self._configs,
            self._of,
            self._pool.free(),
            self._pool.inventory.kind,
            holdings,
            held.keys(),
            waiting.is_late,
            self._pool.closed,
        )
        return Ranking(ready, waiting.waited_s, amounts, partial(weight_of, self._configs)), scene

    def runners(self, running: Sequence[Supervised | Foreign]) -> list[Runner]:
        """For ``make_way``: what runs."""
        shares = held_by_run(self._store.leases(self._host))
        preemptions = self._store.endings(PREEMPTED)
        outlooks = ((s, self.outlook(s)) for s in running)
        return [
            Runner(
                s.task,
                shares.get(s.run_id, []),
                told.least,
                told.resumes,
                told.leaves,
                preemptions.get(s.run_id, 0),
            )
            for s, told in outlooks
        ]

    def outlook(self, running: Supervised | Foreign) -> Outlook:
        """What can be expected of a running task."""
        if isinstance(running, Foreign):
            return running.outlook
        each = demand(running.config, nested=False, kind=self._pool.inventory.kind).each
        holding = running.holding(())
        return Outlook(
            running.tuning.least_gpus * each,
            "resume" in (running.can or ()),
            running.stopping is not None or running.tuning.leaves is not None,
            time.time() + holding.left_s if math.isfinite(holding.left_s) else None,
            holding.basis,
        )

    def more_gpus(self, supervised: Supervised, running: Iterable[Supervised]) -> int:
        """How many more ``gpus`` a running task may have where nobody waits.

        Args:
            supervised: The task.
            running: All that runs: what its user holds counts against the quota.
        """
        wants = demand(supervised.config, nested=False, kind=self._pool.inventory.kind)
        held = {device.id for device in supervised.devices}
        others = {id_: amount for id_, amount in self._pool.free().items() if id_ not in held}
        room = with_room(supervised.config, wants, self._of(supervised.task), others)
        user = supervised.task.spec.user
        theirs = {s.run_id for s in running if s.task.spec.user == user}
        leases = self._store.leases(self._host)
        used = sum(lease.share.amount for lease in leases if lease.run_id in theirs)
        wants = replace(wants, devices=len(room))
        return within_quota(self._configs(supervised.task), wants, user, used) // wants.each

    def _of(self, task: Task) -> list[Device]:
        """Devices that the agent's and the task's own limits allow."""
        mine = self._pool.devices()
        if task.spec.device_limit is None:
            return mine
        allowed = {device.id for device in self._pool.inventory.allowed(task.spec.device_limit)}
        return [device for device in mine if device.id in allowed]
