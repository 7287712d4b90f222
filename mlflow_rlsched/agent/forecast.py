"""When devices become free, and so when waiting tasks will start (pure).

A forecast is as good as what runs tell of themselves: the progress of those that report it, else
their ``timeout_s``. A run that tells neither has no known end, and what needs its devices has no
expected start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from mlflow_rlsched.devices.demand import Demand
from mlflow_rlsched.store import DeviceShare, Lease, State, Task

UNKNOWN = "it tells no progress and has no timeout_s"


@dataclass(frozen=True)
class Holding:
    """What a running task holds, and for how long.

    Attributes:
        run_id: The task.
        shares: Its devices.
        left_s: Seconds until it ends; infinite when that is not known.
        basis: What that rests on, for people.
    """

    run_id: str
    shares: Sequence[DeviceShare]
    left_s: float = math.inf
    basis: str = UNKNOWN


@dataclass(frozen=True)
class Reservation:
    """When a task can start, and on what.

    Attributes:
        in_s: Seconds from now; infinite when that is not known.
        devices: Ids of the devices; empty when that is not known.
        after: What ends before: the holdings that it waits for. None of them, and no known time:
            all that ends is not enough.
    """

    in_s: float
    devices: Sequence[str] = ()
    after: Sequence[Holding] = ()


def held_by_run(leases: Iterable[Lease]) -> dict[str, list[DeviceShare]]:
    """What each run holds, those too whose attempt is over and whose devices are not empty yet."""
    held: dict[str, list[DeviceShare]] = {}
    for lease in leases:
        held.setdefault(lease.run_id, []).append(lease.share)
    return held


def left_of(
    record: Mapping[str, Any] | None, timeout_in_s: float | None, now: float
) -> tuple[float, str]:
    """Seconds that a running task has left, and what that rests on.

    Args:
        record: Its last decision.
        timeout_in_s: Seconds until its ``timeout_s`` is over, or None without one.
        now: Seconds since the epoch.
    """
    progress = record["history"].get("progress") if record else None
    if record and progress:
        left = record["elapsed_s"] * (1 - progress) / progress
        return max(0.0, left - max(0.0, now - record["time"])), f"it is {progress:.0%} done"
    if timeout_in_s is not None:
        return max(0.0, timeout_in_s), "its timeout_s ends then"
    return math.inf, UNKNOWN


def earliest(
    wants: Demand, suited: Sequence[str], free: Mapping[str, int], holdings: Sequence[Holding]
) -> Reservation:
    """When what is wanted has room on the suited devices, if nothing else starts before.

    Args:
        wants: What is wanted.
        suited: Ids of the devices that may be given.
        free: Hundredths free now by device id.
        holdings: What runs.
    """
    left = {device: free.get(device, 0) for device in suited}
    room = {device for device, amount in left.items() if amount >= wants.amount}
    ends = tuple(sorted(holdings, key=lambda holding: holding.left_s))
    count = 0
    while len(room) < wants.devices:
        if count == len(ends):
            return Reservation(math.inf)
        for share in ends[count].shares:
            if share.device in left:
                left[share.device] += share.amount
                if left[share.device] >= wants.amount:
                    room.add(share.device)
        count += 1
    in_s = ends[count - 1].left_s if count else 0.0
    if math.isinf(in_s):
        return Reservation(in_s, after=ends[:count])
    chosen = [device for device in suited if device in room]
    return Reservation(in_s, chosen[: wants.devices], ends[:count])


def forecast(
    tasks: Sequence[Task],
    wants: Callable[[Task], Demand],
    suited: Callable[[Task], Sequence[str]],
    free: Mapping[str, int],
    holdings: Sequence[Holding],
    usual: Callable[[Task], float | None],
) -> dict[str, Reservation]:
    """When each of the waiting tasks is expected to start, by its run id.

    Args:
        tasks: They, in the order in which they start.
        wants: What a task wants.
        suited: Ids of the devices that a task may have.
        free: Hundredths free now by device id.
        holdings: What runs.
        usual: Seconds that such a task takes, as far as that is known.
    """
    left, running = dict(free), list(holdings)
    found: dict[str, Reservation] = {}
    now = 0.0
    for task in tasks:
        asked = wants(task)
        if not asked.devices:
            found[task.run_id] = Reservation(0.0)
            continue
        start = earliest(asked, suited(task), left, running)
        now = max(now, start.in_s)
        found[task.run_id] = replace(start, in_s=now)
        if math.isinf(now):
            continue
        for holding in [holding for holding in running if holding.left_s <= now]:
            running.remove(holding)
            _give_back(left, holding)
        for device in start.devices:
            left[device] -= asked.amount
        shares = [DeviceShare(device, asked.amount) for device in start.devices]
        length = usual(task)
        basis = UNKNOWN if length is None else "such runs take about as long"
        running.append(Holding(task.run_id, shares, now + (length or math.inf), basis))
    return found


def _give_back(left: dict[str, int], holding: Holding) -> None:
    for share in holding.shares:
        left[share.device] = left.get(share.device, 0) + share.amount


def usual_s(task: Task, finished: Sequence[Task]) -> float | None:
    """Usual length of runs of the same entry point of the same project, seconds."""
    lengths = [
        other.ended_at - other.started_at
        for other in finished
        if other.state is State.FINISHED
        and other.ended_at is not None
        and other.started_at is not None
        and (other.spec.project_uri, other.spec.entry_point)
        == (task.spec.project_uri, task.spec.entry_point)
    ]
    return median(lengths) if lengths else None
