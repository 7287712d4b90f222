"""What a benchmark prints: figures with their goals, as a table or as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import click
import psutil
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: What was measured.
        value: The measured value.
        unit: Its unit.
        goal: The bound that it should keep (an upper one), in the same unit.
        baseline: What it is compared with, measured in the same run, or None.
        note: How it was measured.
    """

    name: str
    value: float
    unit: str
    goal: float
    baseline: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the goal was reached."""
        return self.value <= self.goal


def machine() -> dict[str, object]:
    """The machine that a figure belongs to."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in open("/proc/cpuinfo", encoding="utf-8")  # noqa: SIM115
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def show(figures: Iterable[Figure], as_json: bool) -> None:
    """Print the figures."""
    rows = [{**asdict(figure), "met": figure.met} for figure in figures]
    if as_json:
        print(json.dumps({"machine": machine(), "figures": rows}, indent=2))
        return
    table = Table("figure", "value", "goal", "met", "baseline", "how")
    for row in rows:
        table.add_row(
            str(row["name"]),
            f"{row['value']:.4g} {row['unit']}",
            f"≤ {row['goal']:.4g}",
            "yes" if row["met"] else "no",
            "" if row["baseline"] is None else f"{row['baseline']:.4g}",
            str(row["note"]),
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def command(measure: Callable[[bool], list[Figure]]) -> click.Command:
    """The command line of a benchmark: ``--json`` and ``--quick``."""

    @click.command(help=sys.modules[measure.__module__].__doc__)
    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
    @click.option("--quick", is_flag=True, help="Fewer and shorter runs, to try the command.")
    def main(as_json: bool, quick: bool) -> None:
        show(measure(quick), as_json)

    return main
