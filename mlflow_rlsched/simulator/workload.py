"""Jobs of a workload and what they do on a placement."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.interpolate import LinearNDInterpolator  # type: ignore[import-untyped]
from scipy.spatial import QhullError  # type: ignore[import-untyped]

from mlflow_rlsched.simulator.models import Floats, gain
from mlflow_rlsched.simulator.profiles import DataError, Profile, read_columns, read_profile

Placement = tuple[int, ...]
"""Devices on each node that a job is on, in the order of the nodes."""


class Application:
    """A measured application on any placement and batch size.

    Attributes:
        profile: What was measured.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._rates: dict[tuple[Placement, int], Floats] = {}

    @cached_property
    def _measured(self) -> dict[Placement, tuple[Floats, Floats, Floats]]:
        """Local batch, step and synchronisation time by placement."""
        steps = self.profile.steps
        labels = np.array(steps.placement)
        found: dict[Placement, tuple[Floats, Floats, Floats]] = {}
        for label in filter(None, dict.fromkeys(steps.placement)):
            rows = np.flatnonzero(labels == label)
            rows = rows[np.argsort(steps.local_batch[rows])]
            columns = steps.local_batch[rows], steps.step_time[rows], steps.sync_time[rows]
            found[tuple(map(int, label))] = columns
        return found

    def split(self, batch: int, gpus: int) -> tuple[int, int]:
        """Batch of a device and gradients accumulated before the last, for a total batch.

        One device takes at least two gradients a step above the base batch: from their
        difference the gradient noise is measured.
        """
        each = math.ceil(batch / gpus)
        more = math.ceil(each / self.profile.local_batch[1]) - 1
        if gpus == 1 and batch > self.profile.batches[0]:
            more = max(1, more)
        local = min(math.ceil(each / (more + 1)), self.profile.batches[-1] // (gpus * (more + 1)))
        return max(local, 1), more

    def step_time(self, placement: Placement, batch: int) -> float:
        """Seconds for an optimizer step: interpolated within what was measured, else modelled."""
        local, more = self.split(batch, sum(placement))
        turns = (placement[i:] + placement[:i] for i in range(len(placement)))
        seen = self._measured.get(min(turns))
        if seen is not None and seen[0][0] <= local <= seen[0][-1]:
            step, sync = (float(np.interp(local, seen[0], times)) for times in seen[1:])
        else:
            step, sync = self._between(len(placement), sum(placement), local)
        if math.isnan(step):
            model = self.profile.steps.fit.throughput
            return float(model.step_time(len(placement), sum(placement), local, more))
        return step + more * (step - sync)

    def _between(self, nodes: int, gpus: int, local_batch: int) -> tuple[float, float]:
        """Step and synchronisation time between the measured ones; NaN outside of them."""
        if self._surface is None:
            return math.nan, math.nan
        step, sync = self._surface([nodes, gpus, local_batch])[0]
        return float(step), float(sync)

    @cached_property
    def _surface(self) -> LinearNDInterpolator | None:
        """Linear interpolation over nodes, devices and local batch; None for too few rows."""
        steps = self.profile.steps
        points = np.column_stack([steps.nodes, steps.gpus, steps.local_batch])
        points, place = np.unique(points, axis=0, return_inverse=True)
        sums = [np.bincount(place, times) for times in (steps.step_time, steps.sync_time)]
        try:
            return LinearNDInterpolator(points, np.column_stack(sums) / np.bincount(place)[:, None])
        except QhullError:
            return None

    def rates(self, placement: Placement, batch: int) -> Floats:
        """Progress a second in each epoch, in steps at the base batch."""
        key = placement, batch
        if key not in self._rates:
            local, more = self.split(batch, sum(placement))
            total = local * (more + 1) * sum(placement)
            sqr, var = (self.profile.at_batch(total, name) for name in ("sqr", "var"))
            worth = gain(sqr, var, total / self.profile.batches[0])
            self._rates[key] = worth / self.step_time(placement, batch)
        return self._rates[key]


@dataclass(frozen=True)
class JobSpec:
    """A job as it is submitted.

    Attributes:
        name: Its name.
        submitted_s: When, seconds.
        application: What it trains.
        gpus: Devices that it asks for.
        batch: Total batch size, samples.
    """

    name: str
    submitted_s: float
    application: Application
    gpus: int
    batch: int


def read_workload(path: Path, profiles: Path) -> list[JobSpec]:
    """The jobs of a workload, in the order of their submission.

    Args:
        path: Table with the columns name, time, application, num_replicas and batch_size.
        profiles: Folder with a folder for each application.

    Raises:
        DataError: A file is missing or wrong, or a job asks for what was not measured.
    """
    whole = ("num_replicas", "batch_size")
    table = read_columns(path, ("name", "application"), ("time", *whole))
    _check_names(path, table["name"])
    known = _folders(profiles)
    applications: dict[str, Application] = {}
    jobs = []
    for i, name in enumerate(table["name"]):
        app, when = table["application"][i], float(table["time"][i])
        if app not in applications:
            if app not in known:
                raise DataError(f"{path}: job {name!r}: {_unknown(app, known, profiles)}")
            applications[app] = Application(read_profile(known[app]))
        gpus, batch = (_count(path, name, column, table[column][i]) for column in whole)
        batches = applications[app].profile.batches
        if not batches[0] <= batch <= batches[-1]:
            raise DataError(
                f"{path}: job {name!r}: batch_size is {batch}; {app} was measured from"
                f" {batches[0]} to {batches[-1]}"
            )
        if gpus > batch:
            raise DataError(
                f"{path}: job {name!r}: num_replicas is {gpus}; a batch of {batch} leaves some of"
                " them without a sample"
            )
        jobs.append(JobSpec(name, when, applications[app], gpus, batch))
    return sorted(jobs, key=lambda job: job.submitted_s)


def _check_names(path: Path, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{path}: two jobs are called {name!r}; give each its own name")
        seen.add(name)


def _folders(profiles: Path) -> dict[str, Path]:
    try:
        return {folder.name: folder for folder in sorted(profiles.iterdir()) if folder.is_dir()}
    except OSError as error:
        raise DataError(f"{profiles}: {error.strerror}") from error


def _unknown(app: str, known: Mapping[str, Path], profiles: Path) -> str:
    near = difflib.get_close_matches(app, known, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"application {app!r} has no folder in {profiles}{hint}"


def _count(path: Path, job: str, column: str, cell: str) -> int:
    value = float(cell)
    if value < 1 or not value.is_integer():
        raise DataError(f"{path}: job {job!r}: {column} is {cell!r}; write a whole number from 1")
    return int(value)
