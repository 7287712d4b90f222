"""``rlsched devices``: what this host has, how busy it is, and who holds it."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import (
    WrongUsage,
    duration,
    json_option,
    open_existing,
    print_json,
    print_table,
    short,
    store_option,
    table,
)

if TYPE_CHECKING:
    from rich.table import Table

    from mlflow_rlsched.devices.interface import Device, Inventory, Reading
    from mlflow_rlsched.store import Lease, Quarantine, Store

WATCH_S = 2.0
GIB = 2**30


@click.command()
@click.option("--watch", is_flag=True, help="Renew the table every 2 seconds until Ctrl-C.")
@store_option
@json_option
def devices(watch: bool, url: str, as_json: bool) -> None:
    """Show this host's devices: readings, who holds them, or why they are not offered."""
    if watch and as_json:
        raise WrongUsage("--watch and --json exclude each other")
    from mlflow_rlsched.devices import open_inventory
    from mlflow_rlsched.devices.cpu import CpuSlotsError

    with ExitStack() as opened:
        try:
            inventory = opened.enter_context(closing(open_inventory()))
        except CpuSlotsError as error:
            raise WrongUsage(str(error)) from error
        store = open_existing(url)
        if store is not None:
            opened.enter_context(closing(store))
        if as_json:
            print_json({"devices": device_rows(inventory, store)})
        elif watch:
            _watch(inventory, store)
        else:
            print_table(_table(device_rows(inventory, store)))


def _watch(inventory: Inventory, store: Store | None) -> None:
    from rich.live import Live

    try:
        with Live(auto_refresh=False) as live:
            while True:
                live.update(_table(device_rows(inventory, store)), refresh=True)
                time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return


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


def _table(rows: list[dict[str, Any]]) -> Table:
    headings = ["#", "DEVICE", "KIND", "NAME", "MEMORY", "USE", "POWER", "TEMPERATURE", "STATE"]
    return table(
        headings,
        (
            (
                row["index"],
                row["id"][:12],
                row["kind"],
                row["name"],
                _pair(row["memory_used_bytes"], row["memory_total_bytes"], GIB, "GiB"),
                _value(row["utilization_percent"], "%"),
                _pair(row["power_watts"], row["power_limit_watts"], 1, "W"),
                _value(row["temperature_celsius"], "°C"),
                _state(row),
            )
            for row in rows
        ),
    )


def _state(row: dict[str, Any]) -> str:
    parts = [
        f"{short(held['run_id'])} {held['name']} ({held['user']})"
        + (f" {held['amount']} %" if held["amount"] != 100 else "")
        + (", draining" if held["draining"] else "")
        for held in row["held_by"]
    ]
    if row["not_offered"]:
        parts.append(row["not_offered"])
    return "; ".join(parts) or "free"


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _pair(used: float | None, total: float | None, scale: int, unit: str) -> str:
    if used is None:
        return "" if total is None else f"{total / scale:.0f} {unit}"
    limit = "" if total is None else f" of {total / scale:.0f}"
    return f"{used / scale:.1f}{limit} {unit}"
