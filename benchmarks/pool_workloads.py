"""Workloads that nobody measured: drawn jobs of drawn applications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.random import Generator

from mlflow_rlsched.simulator.drawing import applications
from mlflow_rlsched.simulator.models import Throughput, gain
from mlflow_rlsched.simulator.profiles import Course, Profile, Steps
from mlflow_rlsched.simulator.workload import Application, JobSpec, Placement

HOURS = 8
"""Hours in which the jobs come, some busier than others."""

SPREAD = 0.4
"""Standard deviation of the logarithms by which drawn applications differ from measured ones."""

SHARES = {
    "ncf": 263,
    "cifar10": 242,
    "deepspeech2": 58,
    "bert": 36,
    "yolov3": 30,
    "imagenet": 11,
}
"""How many of 640 jobs are of each kind: as in the public workloads of Pollux together."""

ASKED = {
    "ncf": ((1, 32768),),
    "cifar10": ((6, 2048), (8, 2048), (12, 4096), (16, 4096)),
    "deepspeech2": ((6, 320), (8, 320), (12, 640)),
    "bert": ((6, 384), (8, 384), (12, 384)),
    "yolov3": ((4, 64),),
    "imagenet": ((24, 3200), (32, 6400), (48, 6400)),
}
"""Devices and batch sizes that jobs of each kind ask for: the usual ones of those workloads."""

_COURSES = 6  # batch sizes at which an application's course is known


class Modelled(Application):
    """An application whose steps take what the throughput model says."""

    def __init__(self, profile: Profile, throughput: Throughput) -> None:
        super().__init__(profile)
        self._throughput = throughput

    def step_time(self, placement: Placement, batch: int) -> float:
        """Seconds for an optimizer step."""
        gpus = sum(placement)
        local, more = self.split(batch, gpus)
        return float(self._throughput.step_time(len(placement), gpus, local, more))


def drawn(random: Generator) -> dict[str, Application]:
    """An application like each measured one: its times, lengths and noise are scaled at random."""
    return {name: _like(name, table, random) for name, table in applications().items()}


def _like(name: str, table: Mapping[str, Any], random: Generator) -> Application:
    scale = dict(
        zip(("compute", "across", "within", "noise", "length"), _scales(random), strict=True)
    )
    kinds = {"c": scale["compute"], "n": scale["across"], "r": scale["within"]}
    values = {
        field.name: table["throughput"][field.name] * kinds.get(field.name[-1], 1.0)
        for field in fields(Throughput)
        if field.name != "gamma"
    }
    throughput = Throughput(**values, gamma=table["throughput"]["gamma"])
    local = np.array(table["local_batch"], float)
    ones = np.ones(len(local))
    seconds = throughput.gradient_time(local)
    steps = Steps([""] * len(local), ones, ones, local, seconds, np.zeros(len(local)))
    progress = np.array(table["progress"]) * table["steps"] * scale["length"]
    sqr, var = np.array(table["grad_sqr"]), np.array(table["grad_var"]) * scale["noise"]
    metric = np.array(table["metric"])
    low, high = table["batch"]
    courses = {}
    for batch in np.unique(np.geomspace(low, high, _COURSES).round().astype(int)):
        iteration = np.cumsum(np.diff(progress, prepend=0) / gain(sqr, var, batch / low))
        courses[int(batch)] = Course(progress, iteration, metric, sqr, var)
    return Modelled(Profile(name, steps, courses), throughput)


def _scales(random: Generator) -> list[float]:
    return [float(value) for value in np.exp(SPREAD * random.normal(size=5))]


def workload(random: Generator, apps: Mapping[str, Application], jobs: int) -> list[JobSpec]:
    """Jobs of these applications, in the order of their submission."""
    names = [name for name in SHARES if name in apps]
    parts = np.array([SHARES[name] for name in names], float)
    busy = random.dirichlet(np.full(HOURS, 4.0))
    slots = random.choice(HOURS, jobs, p=busy) + random.random(jobs)
    found = []
    for number, when in enumerate(np.sort(slots) * 3600):
        name = names[random.choice(len(names), p=parts / parts.sum())]
        gpus, batch = ASKED[name][random.integers(len(ASKED[name]))]
        found.append(JobSpec(f"{name}-{number}", float(when), apps[name], gpus, batch))
    return found
