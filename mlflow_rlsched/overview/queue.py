"""What waits and what runs, by rank, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched import decision_log
from mlflow_rlsched.overview.expected import expected_starts
from mlflow_rlsched.words import duration

if TYPE_CHECKING:
    from mlflow_rlsched.store import Lease, Store, Task


def queue_rows(store: Store, now: float, url: str) -> list[dict[str, Any]]:
    """What ``queue`` shows of each waiting or running task, by rank."""
    from mlflow_rlsched.store import State

    starts = expected_starts(store, now, url)
    held: dict[str, list[Lease]] = {}
    for lease in store.leases():
        held.setdefault(lease.run_id, []).append(lease)
    return [
        {
            "run_id": task.run_id,
            "name": task.spec.label,
            "state": task.state.value,
            "priority": task.priority,
            "user": task.spec.user,
            "submitted_at": task.submitted_at,
            "age_s": max(0.0, now - task.submitted_at),
            "wants": wants(task),
            "holds": [
                {"device": lease.share.device, "amount": lease.share.amount}
                for lease in held.get(task.run_id, [])
            ],
            "attempt": task.attempt,
            "why": why(task, now, starts.get(task.run_id)),
            "expected": starts.get(task.run_id),
            "budget": budget(task),
        }
        for task in store.tasks([State.QUEUED, State.RUNNING])
    ]


def wants(task: Task) -> dict[str, Any]:
    """What a task asks for: GPUs, hundredths of each, CPU slots where there are no GPUs."""
    config = task.spec.config
    nested = task.spec.parent_attempt_dir is not None
    asked = int(config.get("gpus", {}).get("initial", 1)) if task.gpus is None else task.gpus
    gpus = 0 if nested else asked
    return {
        "gpus": gpus,
        "amount": math.ceil(100 * float(config.get("gpu_fraction", 1.0))),
        "cpu_slots": gpus * int(config.get("cpu_slots", 1)),
        "shares_parent": nested,
    }


def budget(task: Task) -> dict[str, Any] | None:
    """What the pool gave a running task at its last decision; None where it gave nothing.

    Returns:
        ``gpus``, the most that it may have, and ``why``.
    """
    from mlflow_rlsched.store import State

    gpus = task.spec.config.get("gpus", {})
    if task.state is not State.RUNNING or gpus.get("max", 1) <= gpus.get("initial", 1):
        return None
    record = decision_log.last(Path(task.spec.run_dir))
    if record is None or record.get("attempt") != task.attempt:
        return None
    found: dict[str, Any] | None = record.get("budget")
    return found


def why(task: Task, now: float, start: Mapping[str, Any] | None = None) -> str:
    """Why a task waits, or what is being done to it; ``start`` is of ``expected_starts``."""
    from mlflow_rlsched.store import State

    parts = []
    if task.cancel_by is not None and not task.state.final:
        parts.append(f"{task.cancel_by} cancelled it")
    elif task.not_before > now:
        parts.append(f"will be tried again in {duration(task.not_before - now)}")
    elif start is not None:
        parts.append(start["text"])
    if task.message and task.state is not State.RUNNING:  # else it is of the attempt before
        parts.append(task.message)
    return "; ".join(parts)
