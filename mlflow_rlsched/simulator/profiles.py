"""Measured trainings in the public format of Pollux's simulator, one folder an application.

``placements.csv`` and ``scalability.csv`` hold step times, ``validation-<batch>.csv`` the course
of a training at that batch size, a row an epoch.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mlflow_rlsched.simulator.models import Fit, Floats, fit

LOCAL_BATCH_MAX = {"yolov3": 8}
"""Largest batch of a device where the published simulator takes less than was measured, samples."""

_VALIDATION = "validation-"


class DataError(ValueError):
    """A profile or a workload that cannot be used: the file, what is wrong and a remedy."""


def read_columns(path: Path, texts: Sequence[str], numbers: Sequence[str]) -> dict[str, list[str]]:
    """The named columns of a CSV file; those of ``numbers`` hold finite numbers of at least 0.

    Raises:
        DataError: The file is missing, is no such table or is empty.
    """
    wanted = [*texts, *numbers]
    found: dict[str, list[str]] = {name: [] for name in wanted}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in wanted if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{path}: no column {missing[0]!r}; its first line must name"
                    f" {', '.join(wanted)}"
                )
            for row in reader:
                for name in wanted:
                    cell = row[name]
                    if not (_is_number(cell) if name in numbers else cell):
                        kind = "a number of at least 0" if name in numbers else "a name"
                        raise DataError(
                            f"{path}, line {reader.line_num}: {name} is {cell or ''!r};"
                            f" write {kind}"
                        )
                    found[name].append(cell)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file: {error}") from error
    if not found[wanted[0]]:
        raise DataError(f"{path} holds no row")
    return found


def _is_number(cell: str | None) -> bool:
    try:
        value = float(cell or "")
    except ValueError:
        return False
    return math.isfinite(value) and value >= 0


@dataclass(frozen=True)
class Steps:
    """Measured step times, arrays of one length.

    Attributes:
        placement: Devices on each node as digits, ``244`` for nodes with 2, 4 and 4; empty when
            only their number is known.
        nodes: Nodes.
        gpus: Devices.
        local_batch: Samples on each device.
        step_time: Seconds for a step.
        sync_time: Seconds of it that went to synchronisation.
    """

    placement: list[str]
    nodes: Floats
    gpus: Floats
    local_batch: Floats
    step_time: Floats
    sync_time: Floats

    @cached_property
    def fit(self) -> Fit:
        """The throughput model of these measurements."""
        return fit(self.nodes, self.gpus, self.local_batch, self.step_time, self.sync_time)


@dataclass(frozen=True)
class Course:
    """A training at one batch size, a value an epoch.

    Attributes:
        progress: Steps at the base batch size that are done at the end of the epoch.
        iteration: Optimizer steps done by then.
        metric: Validation metric then.
        sqr: Squared norm of the gradient.
        var: Variance of the gradient of a base batch.
    """

    progress: Floats
    iteration: Floats
    metric: Floats
    sqr: Floats
    var: Floats


@dataclass(frozen=True)
class Profile:
    """A measured application.

    Attributes:
        name: Its name.
        steps: Its step times.
        courses: Its trainings by batch size, the smallest (the base) first.
    """

    name: str
    steps: Steps
    courses: dict[int, Course]

    @property
    def batches(self) -> list[int]:
        """Measured batch sizes, samples; the first is the base."""
        return list(self.courses)

    @cached_property
    def local_batch(self) -> tuple[int, int]:
        """Smallest and largest batch of a device, samples."""
        local = self.steps.local_batch
        smallest, largest = int(local.min()), int(local.max())
        return smallest, min(largest, LOCAL_BATCH_MAX.get(self.name, largest))

    @cached_property
    def epochs(self) -> int:
        """Epochs that were measured at every batch size; then a training is done."""
        return min(len(course.progress) for course in self.courses.values())

    @cached_property
    def epoch_ends(self) -> Floats:
        """Progress at the end of each epoch: the least over all batch sizes."""
        ends = [course.progress[: self.epochs] for course in self.courses.values()]
        return np.asarray(np.min(ends, axis=0))

    def at_batch(self, batch: float, column: str) -> Floats:
        """A column of the courses, interpolated linearly between measured batch sizes.

        Args:
            batch: Total batch size, samples; the nearest that was measured counts beyond.
            column: Name of an attribute of ``Course``.
        """
        values = [getattr(course, column)[: self.epochs] for course in self.courses.values()]
        batch = min(max(batch, self.batches[0]), self.batches[-1])
        place = min(int(np.searchsorted(self.batches, batch, "right")), len(values) - 1)
        if place == 0:
            return np.asarray(values[0])
        low, high = self.batches[place - 1], self.batches[place]
        share = (batch - low) / (high - low)
        return np.asarray((1 - share) * values[place - 1] + share * values[place])


def read_profile(folder: Path) -> Profile:
    """The application measured in ``folder``.

    Raises:
        DataError: A file is missing or wrong.
    """
    courses = {}
    for path in folder.glob(f"{_VALIDATION}*.csv"):
        digits = path.stem.removeprefix(_VALIDATION)
        if not digits.isdecimal() or int(digits) == 0:
            raise DataError(f"{path}: name it {_VALIDATION}<batch size>.csv")
        courses[int(digits)] = _course(path)
    if not courses:
        raise DataError(f"{folder} holds no {_VALIDATION}<batch size>.csv")
    return Profile(folder.name, _steps(folder), dict(sorted(courses.items())))


def _course(path: Path) -> Course:
    columns = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
    table = read_columns(path, (), columns)
    course = Course(*(np.array(table[name], float) for name in columns))
    for name, values in (("progress", course.progress), ("iteration", course.iteration)):
        if np.any(np.diff(values, prepend=0) <= 0):
            raise DataError(f"{path}: {name} must grow from row to row")
    if np.any(course.sqr + course.var <= 0):
        raise DataError(f"{path}: grad_sqr and grad_var are both 0 in a row")
    return course


def _steps(folder: Path) -> Steps:
    path = folder / "placements.csv"
    times = ("local_bsz", "step_time", "sync_time")
    table = read_columns(path, ("placement",), times)
    for cell in table["placement"]:
        if not cell.isdecimal() or "0" in cell:
            raise DataError(
                f"{path}: placement is {cell!r}; write the devices of each node, as 244"
            )
    placement = table["placement"]
    nodes = [float(len(cell)) for cell in placement]
    gpus = [float(sum(map(int, cell))) for cell in placement]
    columns = [np.array(table[name], float) for name in times]
    more = folder / "scalability.csv"
    if more.exists():
        table = read_columns(more, (), ("num_nodes", "num_replicas", *times))
        placement = placement + [""] * len(table["num_nodes"])
        nodes += map(float, table["num_nodes"])
        gpus += map(float, table["num_replicas"])
        columns = [
            np.append(column, np.array(table[name], float))
            for column, name in zip(columns, times, strict=True)
        ]
    local, step, sync = columns
    if np.any(local < 1) or np.any(step <= 0) or np.any(sync > step):
        raise DataError(
            f"{folder}: a row of the step times has no sample, takes no time, or synchronises"
            " longer than its step"
        )
    return Steps(placement, np.array(nodes), np.array(gpus), local, step, sync)
