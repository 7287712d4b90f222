"""When waiting runs are expected to start, and what that rests on."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched import decision_log
from mlflow_rlsched.daemon import user_name
from mlflow_rlsched.trust import shared_rules
from mlflow_rlsched.words import duration, short

if TYPE_CHECKING:
    from mlflow_rlsched.agent.forecast import Holding, Reservation
    from mlflow_rlsched.config import RunConfig
    from mlflow_rlsched.devices.demand import Demand
    from mlflow_rlsched.store import DeviceShare, Outlook, Store, Task

MOST = 100
"""Waiting runs that are looked at: the first ones."""

HISTORY = 200
"""Finished runs that say how long such a run takes."""


def expected_starts(store: Store, now: float, url: str) -> dict[str, dict[str, Any]]:
    """When the first waiting runs of this host start, by run id.

    Args:
        store: The store.
        now: Seconds since the epoch.
        url: The store's URL.

    Returns:
        ``in_s``, seconds from now, or None when that is not known; ``after``, the runs that it
        waits for; ``text``, a sentence for people.
    """
    from mlflow_rlsched.agent.forecast import forecast, held_by_run, usual_s
    from mlflow_rlsched.agent.placement import Scene, within_quota
    from mlflow_rlsched.agent.ranking import Ranking, weight_of
    from mlflow_rlsched.devices import open_inventory
    from mlflow_rlsched.devices.demand import suits
    from mlflow_rlsched.store import State

    host = socket.gethostname()
    queued = store.tasks([State.QUEUED], host, MOST)
    rules = shared_rules(url)
    theirs = {} if rules is None else {"quotas": rules.quotas, "weights": rules.weights}
    configs = {
        task.run_id: config.model_copy(update=theirs)
        for task in queued
        if (config := _config(task)) is not None
    }
    waiting = [task for task in queued if task.run_id in configs]
    if not waiting:
        return {}
    held = held_by_run(store.leases(host))
    running = [(task, held.get(task.run_id, [])) for task in store.tasks([State.RUNNING], host)]
    inventory = open_inventory()
    try:
        kind, devices = inventory.kind, inventory.devices()
    finally:
        inventory.close()
    free = {device.id: 100 for device in devices}
    for shares in held.values():
        for share in shares:
            free[share.device] = free.get(share.device, 100) - share.amount
    scene = Scene(lambda task: configs[task.run_id], lambda _: devices, free, kind)
    amounts = [(task, sum(share.amount for share in shares)) for task, shares in running]
    order: list[Task] = []
    capped: dict[str, dict[str, Any]] = {}
    ranking = Ranking(
        waiting,
        lambda task: max(0.0, now - task.submitted_at),
        amounts,
        partial(weight_of, scene.configs),
    )
    for task in ranking:
        config, wants = configs[task.run_id], scene.wants(task)
        user = task.spec.user
        if within_quota(config, wants, user, ranking.held(user)) < wants.least:
            text = _over_quota(task, config, wants)
            capped[task.run_id] = {"in_s": None, "after": [], "text": text}
            continue
        order.append(task)
        ranking.give(task, wants.devices * wants.amount)
    finished = store.tasks([State.FINISHED], host, HISTORY)
    outlooks = {attempt.run_id: attempt.outlook for attempt in store.running_attempts(host)}
    found = forecast(
        order,
        scene.wants,
        lambda task: [d.id for d in devices if suits(d, configs[task.run_id])],
        free,
        [
            _holding(store, task, shares, waiting, now, outlooks.get(task.run_id))
            for task, shares in running
        ],
        lambda task: usual_s(task, finished),
    )
    return capped | {
        run_id: {
            "in_s": start.in_s if math.isfinite(start.in_s) else None,
            "after": [holding.run_id for holding in start.after],
            "text": _text(start),
        }
        for run_id, start in found.items()
    }


def _config(task: Task) -> RunConfig | None:
    """Its configuration; None for one that another version wrote and this one cannot read."""
    from mlflow_rlsched.config import RunConfig

    try:
        return RunConfig.model_validate(task.spec.config)
    except ValueError:
        return None


def _holding(
    store: Store,
    task: Task,
    shares: Sequence[DeviceShare],
    waiting: Sequence[Task],
    now: float,
    outlook: Outlook | None,
) -> Holding:
    from mlflow_rlsched.agent.forecast import Holding, left_of

    if outlook is not None and task.spec.user != user_name():  # whose files cannot be read
        left_s = math.inf if outlook.ends_at is None else max(0.0, outlook.ends_at - now)
        return Holding(task.run_id, shares, left_s, outlook.basis)
    timeout_s = task.spec.config.get("timeout_s")
    left = None
    attempts = store.attempts(task.run_id)
    if timeout_s is not None:
        left = timeout_s - sum((each.ended_at or now) - each.started_at for each in attempts)
    record = decision_log.last(Path(task.spec.run_dir))
    left_s, basis = left_of(record, left, now)
    if record is not None and "resume" in record.get("training", {}).get("can", ()):
        turn_s = _turn_left_s(store, task, now - attempts[-1].started_at, waiting, now)
        if turn_s < left_s:
            left_s, basis = turn_s, f"its turn of quantum_s {task.spec.config['quantum_s']:g} s"
    return Holding(task.run_id, shares, left_s, basis)


def _turn_left_s(
    store: Store, task: Task, held_s: float, waiting: Sequence[Task], now: float
) -> float:
    """Seconds until a running task makes way for the first equal of those that wait."""
    from mlflow_rlsched.agent.turns import turn_s

    config = _config(task)
    if config is None or config.quantum_s is None:
        return math.inf
    left = math.inf
    for other in waiting:
        if other.priority == task.priority:
            ended = [each.ended_at for each in store.attempts(other.run_id)[-1:]]
            waited_s = now - (ended[0] if ended and ended[0] else other.submitted_at)
            own, its = (config.weights.get(each.spec.user, 1.0) for each in (task, other))
            turn_left = turn_s(config.quantum_s, own, its) - held_s
            left = min(left, max(0.0, turn_left, config.quantum_s - waited_s))
    return left


def _over_quota(task: Task, config: RunConfig, wants: Demand) -> str:
    user, needed = task.spec.user, wants.least * wants.amount / 100
    quota = f"the quota of {user} is {config.quotas[user]}"
    if needed > config.quotas[user]:
        return f"never starts: it wants {needed:g} devices at once, and {quota}; cancel it"
    return f"waits for another run of {user}: {quota}"


def _text(start: Reservation) -> str:
    if not start.after:
        where = "" if math.isfinite(start.in_s) else ": not all that it wants is offered now"
        return f"starts as soon as its devices are free{where}"
    last = start.after[-1]
    if math.isinf(start.in_s):
        return f"waits for {short(last.run_id)}: {last.basis}"
    return f"starts in about {duration(start.in_s)}, after {short(last.run_id)} ({last.basis})"
