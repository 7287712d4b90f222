"""Small applications in the public format, made up so that results can be computed by hand."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest


def write_table(path: Path, columns: str, rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns.split(","))
        writer.writerows(rows)


def write_application(folder: Path) -> None:
    """100 steps at batch 10 in two epochs; a step takes 1 s, or 0.6 s on two devices of a node.

    There is no gradient noise at batch 10 and nothing but noise at batch 20: a step there is
    worth one, and two, at batch 10.
    """
    write_table(
        folder / "placements.csv",
        "placement,local_bsz,step_time,sync_time",
        [(1, 5, 1.0, 0), (1, 20, 1.0, 0), (2, 5, 0.6, 0.1), (2, 20, 0.6, 0.1), (11, 5, 0.8, 0.3)],
    )
    columns = "progress,iteration,metric,grad_sqr,grad_var"
    rows = [(50, 50, 0.5, 1, 0), (100, 100, 0.9, 1, 0)]
    write_table(folder / "validation-10.csv", columns, rows)
    rows = [(50, 25, 0.5, 0, 1), (100, 50, 0.9, 0, 1)]
    write_table(folder / "validation-20.csv", columns, rows)


def write_workload(path: Path, *rows: Sequence[object]) -> None:
    """Rows of name, time, application, devices, batch size."""
    write_table(path, "name,time,application,num_replicas,batch_size", rows)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """A folder with the application ``toy``."""
    write_application(tmp_path / "profiles" / "toy")
    return tmp_path / "profiles"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A workload of two jobs."""
    path = tmp_path / "workload.csv"
    write_workload(path, ("a", 0, "toy", 2, 10), ("b", 30, "toy", 1, 10))
    return path
