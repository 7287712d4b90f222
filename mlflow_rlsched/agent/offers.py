"""What this host can offer to those who wait, and to those who run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from mlflow_rlsched.agent.budgets import Asking, Prospect, budgets, expected_s, speeds
from mlflow_rlsched.agent.forecast import Holding, held_by_run
from mlflow_rlsched.agent.others import Foreign
from mlflow_rlsched.agent.placement import Scene, pressure, with_room, within_quota
from mlflow_rlsched.agent.pool import DRAIN_S, Pool
from mlflow_rlsched.agent.preemption import PREEMPTED, Runner
from mlflow_rlsched.agent.ranking import RESIZED, Ranking, effective_priority, weight_of
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import Demand, demand, suits
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.devices.locks import WHOLE
from mlflow_rlsched.policy.interval import Budget
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

    def pressure(self, ready: Sequence[Task]) -> float:
        """Devices that tasks which may start now ask for, over all devices."""
        return pressure(ready, self._configs, len(self._pool.devices()))

    def runners(self, running: Sequence[Supervised | Foreign]) -> list[Runner]:
        """For ``make_way``: what runs."""
        shares = held_by_run(self._store.leases(self._host))
        preemptions = self._store.endings(PREEMPTED)
        outlooks = ((s, self._outlook(s)) for s in running)
        return [
            Runner(
                s.task,
                shares.get(s.run_id, []),
                told.least,
                told.resumes,
                told.leaves,
                preemptions.get(s.run_id, 0),
                # Between users the fair share decides, not turns.
                0.0 if isinstance(s, Foreign) else s.held_s(),
                None if isinstance(s, Foreign) else s.config.quantum_s,
            )
            for s, told in outlooks
        ]

    def budgets(
        self,
        running: Sequence[Supervised | Foreign],
        waiting: Sequence[Task],
        waited_s: Callable[[Task], float],
    ) -> dict[str, Budget]:
        """How many ``gpus`` each running task of ours may have whose number can change.

        Args:
            running: All that runs.
            waiting: Who waits for devices, in the order in which they start.
            waited_s: How long a task has waited.
        """
        held = held_by_run(self._store.leases(self._host))
        users: Counter[str] = Counter()
        for each in running:
            users[each.task.spec.user] += sum(s.amount for s in held.get(each.run_id, ()))
        free = sum(amount == WHOLE for amount in self._pool.free().values())
        runs = []
        for each in running:
            has = len(held.pop(each.run_id, ()))
            if isinstance(each, Foreign):
                continue
            wants = self._wants(each.config)
            is_ours = each.tuning.is_elastic and each.stopping is None and wants.amount == WHOLE
            if not has or not is_ours:
                continue
            if each.tuning.leaves is not None:
                free += has - min(has, each.tuning.leaves_with * wants.each)
                continue
            user = each.task.spec.user
            most = replace(wants, devices=each.tuning.limits.gpus_max * wants.each - has)
            more = within_quota(each.config, most, user, users[user]) // wants.each
            users[user] += more * wants.each * WHOLE  # nobody else is given the same
            runs.append(self._prospect(each, has // wants.each, more))
        free += sum(len(shares) for shares in held.values())  # being emptied: as good as free
        room = free + sum(run.held * run.each for run in runs)
        asking = (self._asking(task, waited_s(task)) for task in waiting)
        return budgets(runs, asking, len(waiting), room, len(self._pool.devices()))

    def _wants(self, config: RunConfig) -> Demand:
        return demand(config, nested=False, kind=self._pool.inventory.kind)

    def _prospect(self, run: Supervised, held: int, more: int) -> Prospect:
        """What a run expects of its devices, and of so many more."""
        tuning, limits = run.tuning, run.tuning.limits
        batch_is_live = "batch_size" in (run.can or ())
        speed = speeds(tuning.history, limits, held, tuning.setting.batch_size, batch_is_live)
        return Prospect(
            run.run_id,
            run.task.priority,
            weight_of(self._configs, run.task),
            self._wants(run.config).each,
            held,
            tuning.least_gpus,
            limits.gpus_max,
            speed[: held if tuning.declined else held + more],
            expected_s(tuning.record, time.time()),
            limits.restart_cost_s,
        )

    def _asking(self, task: Task, waited_s: float) -> Asking:
        config, offered = self._configs(task), self._of(task)
        nested = task.spec.parent_attempt_dir is not None
        wants = demand(config, nested, self._pool.inventory.kind, task.gpus)
        suited = sum(suits(device, config) for device in offered)
        amount = wants.least * wants.amount if suited == len(self._pool.devices()) else math.inf
        if task.exit_reason == RESIZED:  # what it gave back is its own
            return Asking(math.inf, amount)
        return Asking(effective_priority(task, waited_s), amount)

    def tell(self, running: Iterable[Supervised]) -> None:
        """Let other users' agents know what can be expected of our running tasks."""
        self._store.tell_outlooks(self._host, {s.run_id: self._outlook(s) for s in running})

    def _outlook(self, running: Supervised | Foreign) -> Outlook:
        """What can be expected of a running task."""
        if isinstance(running, Foreign):
            return running.outlook
        each = self._wants(running.config).each
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
        wants = self._wants(supervised.config)
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
