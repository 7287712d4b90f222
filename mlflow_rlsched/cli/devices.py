"""``rlsched devices``: what this host has, how busy it is, and who holds it."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import (
    WrongUsage,
    json_option,
    open_existing,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.overview.devices import device_rows
from mlflow_rlsched.words import short

if TYPE_CHECKING:
    from rich.table import Table

    from mlflow_rlsched.devices.interface import Inventory
    from mlflow_rlsched.store import Store

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
