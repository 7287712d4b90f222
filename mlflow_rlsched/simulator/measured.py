"""What is measured of many runs in an interval, and what bounds them, as arrays of runs."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mlflow_rlsched.policy.action import Setting
from mlflow_rlsched.policy.interval import DeviceUse, Interval
from mlflow_rlsched.policy.limits import LR_SCALE_MAX, LR_SCALE_MIN, Limits
from mlflow_rlsched.protocol import CAPABILITIES, Report
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.windows import Flags

ENDINGS = (None, "done", "oom", "diverged", "failed")
"""``Interval.ending`` by the code in ``Measured.ending``."""

DONE, OOM, DIVERGED, FAILED = range(1, 5)


@dataclass
class Settings:
    """``policy.action.Setting`` of many runs."""

    gpus: Floats
    batch: Floats
    lr_factor: Floats
    lr_scale: Floats

    def copy(self) -> Settings:
        """The same settings in arrays of their own."""
        return Settings(
            self.gpus.copy(), self.batch.copy(), self.lr_factor.copy(), self.lr_scale.copy()
        )

    def where(self, runs: Flags, others: Settings) -> Settings:
        """These settings for some runs, ``others`` for the rest."""
        return Settings(
            *(
                np.where(runs, getattr(self, f.name), getattr(others, f.name))
                for f in fields(Settings)
            )
        )

    def of(self, run: int) -> Setting:
        """The setting of one run."""
        return Setting(
            int(self.gpus[run]),
            int(self.batch[run]),
            float(self.lr_factor[run]),
            float(self.lr_scale[run]),
        )


@dataclass
class Bounds:
    """``policy.limits.Limits`` of many runs; the number of devices is live."""

    gpus_min: Floats
    gpus_max: Floats
    restart_s: Floats
    batch_initial: Floats
    batch_min: Floats
    batch_max: Floats
    sgd: Flags
    price: Floats
    interval_s: Floats
    lr_scale_min: float = LR_SCALE_MIN
    lr_scale_max: float = LR_SCALE_MAX

    def of(self, run: int) -> Limits:
        """The limits of one run."""
        return Limits(
            gpus_min=int(self.gpus_min[run]),
            gpus_max=int(self.gpus_max[run]),
            gpus_are_live=True,
            restart_cost_s=float(self.restart_s[run]),
            batch_initial=int(self.batch_initial[run]),
            batch_min=int(self.batch_min[run]),
            batch_max=int(self.batch_max[run]),
            lr_scale_min=self.lr_scale_min,
            lr_scale_max=self.lr_scale_max,
            optimizer="sgd" if self.sgd[run] else "adam",
            drop_last=True,
            price=float(self.price[run]),
            interval_s=float(self.interval_s[run]),
        )


@dataclass
class Measured:
    """``policy.interval.Interval`` of many runs; NaN is "not measured".

    The use of the devices of a run is that of all but one, and of a straggler. The attributes
    from ``time`` on are reports: arrays of runs x reports.
    """

    duration: Floats
    elapsed: Floats
    settings: Settings
    use: Floats
    use_straggler: Floats
    memory_used: Floats
    memory_total: Floats
    power: Floats
    power_limit: Floats
    network_rate: Floats
    pressure: Floats
    free_gpus: Floats
    acknowledged: Flags
    oom_batch: Floats
    ending: NDArray[np.int_]
    time: Floats
    samples: Floats
    step: Floats
    loss: Floats
    loss_bad: Flags
    grad_sqr: Floats
    grad_var: Floats
    grad_norm: Floats
    memory_bytes: Floats
    progress: Floats
    input_wait: Floats

    @property
    def mean_use(self) -> Floats:
        """Mean utilisation of the devices of each run."""
        gpus = self.settings.gpus
        return np.asarray((self.use * (gpus - 1) + self.use_straggler) / gpus)

    @property
    def memory_told(self) -> Floats:
        """Most memory that a report of the interval told, bytes."""
        return np.asarray(np.fmax.reduce(self.memory_bytes, axis=1))

    def interval(self, run: int) -> Interval:
        """What was measured of one run."""
        setting = self.settings.of(run)
        return Interval(
            duration_s=float(self.duration[run]),
            elapsed_s=float(self.elapsed[run]),
            setting=setting,
            devices=[
                self._device(run, self.use_straggler if i == 0 else self.use)
                for i in range(setting.gpus)
            ],
            network_rate=_known(self.network_rate[run]),
            reports=[r for i in range(self.time.shape[1]) if (r := self._report(run, i)).numbers],
            can=frozenset(CAPABILITIES),
            pressure=_known(self.pressure[run]),
            free_gpus=int(self.free_gpus[run]),
            acknowledged=bool(self.acknowledged[run]),
            oom_batch=None if np.isnan(self.oom_batch[run]) else int(self.oom_batch[run]),
            ending=ENDINGS[self.ending[run]],
        )

    def _device(self, run: int, use: Floats) -> DeviceUse:
        readings = use, self.memory_used, self.memory_total, self.power, self.power_limit
        return DeviceUse(*(_known(values[run]) for values in readings))

    def _report(self, run: int, place: int) -> Report:
        names = (
            "time samples step loss grad_sqr grad_var grad_norm memory_bytes progress input_wait"
        )
        values = {name: _known(getattr(self, name)[run, place]) for name in names.split()}
        numbers = {name: value for name, value in values.items() if value is not None}
        bad = frozenset({"loss"}) if self.loss_bad[run, place] else frozenset[str]()
        return Report(numbers=numbers, nonfinite=bad)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
