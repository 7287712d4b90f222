"""Drawing simulated runs at random, round the measured applications of ``apps.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.random import Generator

from mlflow_rlsched.simulator.measured import Bounds
from mlflow_rlsched.simulator.models import Floats, Throughput
from mlflow_rlsched.simulator.parameters import (
    CURVE,
    HORIZON,
    REPORTS,
    Effects,
    Parameters,
    Range,
    Ranges,
    nodes,
)
from mlflow_rlsched.simulator.windows import Flags


@cache
def applications() -> dict[str, dict[str, Any]]:
    """The measured applications (``apps.json``)."""
    text = (files("mlflow_rlsched.simulator") / "apps.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)["apps"]
    return table


def draw(
    random: Generator,
    runs: int,
    effects: Effects | None = None,
    ranges: Ranges | None = None,
    apps: Sequence[str] | None = None,
) -> Parameters:
    """Draw runs.

    Args:
        random: Source of randomness.
        runs: How many.
        effects: What they are subject to.
        ranges: How widely they differ.
        apps: Applications that they are like; all by default.
    """
    return _Draw(random, runs, effects or Effects(), ranges or Ranges(), apps).parameters()


class _Draw:
    """One drawing of runs."""

    def __init__(
        self,
        random: Generator,
        runs: int,
        effects: Effects,
        ranges: Ranges,
        apps: Sequence[str] | None,
    ) -> None:
        self.random, self.runs, self.effects, self.ranges = random, runs, effects, ranges
        table = [applications()[name] for name in apps or applications()]
        self.kind = random.integers(len(table), size=runs)
        self.table = table

    def spread(self, between: Range) -> Floats:
        """Uniform in the logarithm."""
        low, high = np.log(between)
        return np.asarray(np.exp(self.random.uniform(low, high, self.runs)))

    def uniform(self, low: float, high: float) -> Floats:
        return self.random.uniform(low, high, self.runs)

    def of(self, *keys: str | int) -> Floats:
        """An entry of each run's application."""
        found = []
        for app in self.table:
            entry: Any = app
            for key in keys:
                entry = entry[key]
            found.append(entry)
        return np.asarray(found, float)[self.kind]

    def curve(self, name: str) -> Floats:
        """Logarithm of an application's course over the progress, runs x ``CURVE``."""
        at = np.linspace(0, 1, CURVE)
        curves = [np.interp(at, app["progress"], np.log(app[name])) for app in self.table]
        return np.asarray(curves)[self.kind]

    def sometimes(self, on: bool, share: float, between: Range) -> Floats:
        """0 for most runs, else drawn; 0 for all when switched off."""
        drawn = np.where(self.random.random(self.runs) < share, self.spread(between), 0.0)
        return drawn if on else np.zeros(self.runs)

    def parameters(self) -> Parameters:
        ranges, effects, runs = self.ranges, self.effects, self.runs
        rows = [self.of("throughput", f.name) for f in fields(Throughput)]
        rows[:-1] = [row * self.spread(ranges.coefficient) for row in rows[:-1]]
        model = Throughput(*rows)
        base = self.of("batch", 0)
        initial = np.rint(base * self.spread(ranges.batch_start))
        gpus_max = np.floor(self.spread((ranges.gpus_max[0], ranges.gpus_max[1] + 0.999)))
        gpus = np.floor(1 + self.random.random(runs) ** 2 * np.minimum(gpus_max, initial))
        gpus = np.minimum(gpus, gpus_max)
        per_node = self.random.choice([1.0, 2, 4, 8], runs)
        step_s = model.step_time(nodes(gpus, per_node), gpus, initial / gpus)
        length = self.spread(ranges.length_s)
        rigid_gpus, rigid_batch = map(self._some, (ranges.rigid_gpus, ranges.rigid_batch))
        bounds = Bounds(
            gpus_min=np.where(rigid_gpus, gpus, 1.0),
            gpus_max=np.where(rigid_gpus, gpus, gpus_max),
            restart_s=self.spread(ranges.restart_s) if effects.restarts else np.zeros(runs),
            batch_initial=initial,
            batch_min=np.where(rigid_batch, initial, np.maximum(np.rint(base / 4), 2)),
            batch_max=np.where(
                rigid_batch, initial, np.rint(base * self.spread(ranges.batch_headroom))
            ),
            sgd=self.random.random(runs) < 0.5,
            price=self.spread(ranges.price),
            interval_s=np.clip(length / self.spread(ranges.decisions), 1, 60),
        )
        log_sqr = self.curve("grad_sqr")
        noise = np.log10(base)[:, None] + (self.curve("grad_var") - log_sqr) / np.log(10)
        tilt = self.uniform(*ranges.noise_growth)[:, None] * np.linspace(-1, 1, CURVE)
        noise = np.clip(noise + np.log10(self.spread(ranges.noise_scale))[:, None] + tilt, 0, 6)
        middle = 10 ** noise.mean(axis=1)
        worth = (1 + middle / base) / (1 + middle / initial)
        return Parameters(
            throughput=np.stack(rows, axis=1),
            gpus_per_node=per_node,
            base_batch=base,
            gpus_start=gpus,
            steps=length / step_s * worth,
            planned=length / step_s * initial * self.spread(ranges.plan),
            noise_scale=noise,
            grad_sqr=log_sqr - log_sqr[:, :1],
            horizon_s=HORIZON * length,
            bounds=bounds,
            **self._learning(),
            **self._memory(np.asarray(initial / gpus)),
            **self._world(np.asarray(initial / step_s)),
        )

    def _some(self, share: float) -> Flags:
        """Some of the runs; where there are none, what else is drawn stays the same."""
        return self.random.random(self.runs) < share if share else np.zeros(self.runs, bool)

    def _learning(self) -> dict[str, Any]:
        ranges, on, random = self.ranges, self.effects.learning_rate, self.random
        nothing = np.zeros(self.runs)
        edge = np.where(
            random.random(self.runs) < 0.5,
            self.spread(ranges.lr_edge),
            self.spread(ranges.lr_soft),
        )
        explodes = random.random(self.runs) < 0.2
        return {
            "loss_floor": self.uniform(0.0, 0.5),
            "loss_knee": self.spread((0.01, 0.5)),
            "loss_delay": self.spread((1.0, 8.0)),
            "loss_power": self.spread((0.1, 0.6)),
            "loss_noise": self.spread((0.01, 0.12)),
            "loss_excess": self.spread((0.01, 0.3)) if on else nothing,
            "loss_top": np.where(explodes, np.inf, self.uniform(0.95, 1.6)),
            "lr_optimum": self.spread(ranges.lr_optimum),
            "lr_drift": self.uniform(0.0, 0.3),
            "lr_fall_below": self.spread(ranges.lr_fall_below) if on else nothing,
            "lr_fall_above": self.spread(ranges.lr_fall_above) if on else nothing,
            "lr_diverges": edge if on else np.full(self.runs, 1e9),
            "reports": random.choice([1.0, 2, REPORTS], self.runs),
        }

    def _memory(self, local_batch: Floats) -> dict[str, Any]:
        total = self.random.choice([8e9, 16e9, 24e9, 40e9, 80e9], self.runs)
        used = total * self.uniform(*self.ranges.memory_use)
        fixed = self.uniform(*self.ranges.memory_fixed)
        growing = (1 - fixed) / local_batch if self.effects.memory else np.zeros(self.runs)
        return {
            "memory_base": used * fixed,
            "memory_sample": used * growing,
            "memory_total": total,
        }

    def _world(self, rate: Floats) -> dict[str, Any]:
        effects, random, runs = self.effects, self.random, self.runs
        sparse = random.random((3, runs)) < [[0.1], [0.3], [0.2]]
        has = ~sparse if effects.missing else np.ones_like(sparse)
        noise = self.spread((0.005, 0.05))
        return {
            "power_idle": self.uniform(0.1, 0.3),
            "power_limit": random.choice([70.0, 250, 300, 400, 700], runs),
            "gradient_bytes": self.spread((1e6, 2e9)),
            "input_rate": rate * self.spread(self.ranges.input_share),
            "slow_input": self.sometimes(effects.input_bound, 0.5, (0.05, 1.0)),
            "interference": self.uniform(0.05, 0.5),
            "interfered": self.sometimes(effects.interference, 0.3, (0.05, 0.5)),
            "phase_s": self.spread((30.0, 3000.0)),
            "reading_noise": noise if effects.noise else np.zeros(runs),
            "unread": self.sometimes(effects.missing, 0.5, self.ranges.unread),
            "has_devices": has[0],
            "has_gradients": has[1],
            "has_progress": has[2],
            "late": self.sometimes(effects.late, 0.5, (0.01, 0.2)),
            "failures": self.sometimes(effects.device_loss, 0.2, self.ranges.failures),
            "demand": self.sometimes(effects.pressure, 0.6, (0.1, 4.0)),
        }
