"""This host's devices: readings, who holds them, or why they are not offered."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from mlflow_rlsched.words import duration

if TYPE_CHECKING:
    from mlflow_rlsched.devices.interface import Device, Inventory, Reading
    from mlflow_rlsched.store import Lease, Quarantine, Store


def device_rows(inventory: Inventory, store: Store | None) -> list[dict[str, Any]]:
    """What ``devices`` shows of each device."""
    host = socket.gethostname()
    leases = store.leases(host) if store else []
    closed = {q.device: q for q in store.quarantined(host)} if store else {}
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    allowed = {d.id for d in inventory.allowed(None if limit is None else limit.split(","))}
    rows = []
    for device in inventory.devices():
        reading = inventory.read(device)
        mine = [lease for lease in leases if lease.share.device == device.id]
        free, note = _offer(inventory, device, reading, mine, closed.get(device.id))
        if device.id not in allowed:
            free, note = 0, note or f"left out by CUDA_VISIBLE_DEVICES={limit}"
        rows.append(
            {
                "id": device.id,
                "kind": device.kind,
                "index": device.index,
                "name": device.name,
                "parent": device.parent,
                "utilization_percent": reading.utilization_percent,
                "memory_used_bytes": reading.memory_used_bytes,
                "memory_total_bytes": reading.memory_total_bytes or device.memory_bytes,
                "power_watts": reading.power_watts,
                "power_limit_watts": reading.power_limit_watts,
                "temperature_celsius": reading.temperature_celsius,
                "throttle_reasons": reading.throttle_reasons and list(reading.throttle_reasons),
                "free_percent": free,
                "held_by": [_holder(store, lease) for lease in mine if store],
                "not_offered": note,
            }
        )
    return rows


def _offer(
    inventory: Inventory,
    device: Device,
    reading: Reading,
    leases: list[Lease],
    closing_: Quarantine | None,
) -> tuple[int, str | None]:
    """Hundredths of a device that can still be leased, and why it is less than our leases leave."""
    from mlflow_rlsched.devices.locks import WHOLE, LockError, free_amount, lock_dir

    left = WHOLE - sum(lease.share.amount for lease in leases)
    now = time.time()
    if closing_ is not None and closing_.until > now:
        time_left = duration(closing_.until - now)
        return 0, f"in quarantine for {time_left} after {failures(closing_)}: {closing_.reason}"
    if reading.lost:
        return 0, "it does not answer"
    try:
        unlocked = free_amount(lock_dir(), device.id, device.parent)
    except LockError as error:
        return 0, str(error)
    if unlocked < left:
        return unlocked, f"{left - unlocked} % held by another store or user"
    stranger = None if leases else inventory.occupied(device, reading)
    return (left, None) if stranger is None else (0, stranger)


def failures(quarantine: Quarantine) -> str:
    """How often a device has failed with no success in between."""
    count = quarantine.failures
    return f"{count} failure{'s' * (count != 1)} in a row"


def _holder(store: Store, lease: Lease) -> dict[str, Any]:
    task = store.get(lease.run_id)
    ended = task is None or task.state.final or task.attempt != lease.attempt
    return {
        "run_id": lease.run_id,
        "name": task.spec.label if task else "",
        "user": task.spec.user if task else "",
        "amount": lease.share.amount,
        "draining": ended,
    }
