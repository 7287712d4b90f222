"""What was measured between two decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlflow_rlsched.policy.action import Setting
from mlflow_rlsched.protocol import Report

ENDINGS = ("done", "oom", "diverged", "failed")

LARGEST = 1e30
"""No number that was read counts as larger, nor its inverse: products and ratios stay finite."""


def bounded(value: float | None) -> float | None:
    """``value`` if it is finite, within plus and minus ``LARGEST``; next to nothing is 0."""
    if value is None or not math.isfinite(value):
        return None
    if abs(value) < 1 / LARGEST:
        return 0.0
    return min(max(value, -LARGEST), LARGEST)


@dataclass(frozen=True)
class DeviceUse:
    """Use of one leased device over an interval; None is "not measured".

    Attributes:
        utilisation: Mean share of time in which it computed, 0 to 1.
        memory_used: Peak memory in use, bytes.
        memory_total: Memory that the run may use: the device's, or its cap; bytes.
        power: Mean power, watts.
        power_limit: Enforced power limit, watts.
    """

    utilisation: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    power: float | None = None
    power_limit: float | None = None


@dataclass(frozen=True)
class Budget:
    """What the pool gives a run, of which its policy makes what it wants.

    Attributes:
        gpus: Most devices.
        why: Why not more, for people.
    """

    gpus: int
    why: str


@dataclass(frozen=True)
class Interval:
    """What was measured of a run since the last decision; None is "not measured".

    Both times are at least 0: one that is not, or is not finite, counts as 0.

    Attributes:
        duration_s: Length of the interval, seconds.
        elapsed_s: Time that the run has been training, over all attempts, at its end, seconds.
        setting: What was in force.
        devices: Use of the leased devices.
        network_rate: Bytes per second, sent and received.
        host_cpu: Use of the CPU slots held, 0 to 1.
        reports: What the training reported, oldest first.
        objective: Values of the objective metric that were seen, oldest first.
        can: What the training can do (``protocol.CAPABILITIES``).
        pressure: Devices that waiting tasks ask for, over the devices of the pool.
        free_gpus: Devices that the run may take now, by shares and quotas.
        budget: Devices that the pool gives it; None where the pool has not looked at it.
        acknowledged: Whether the training has applied the last directive.
        oom_batch: Batch size at which the training ran out of memory in this interval, samples.
        ending: How the run ended in this interval (one of ``ENDINGS``), or None.
    """

    duration_s: float
    elapsed_s: float
    setting: Setting
    devices: Sequence[DeviceUse] = ()
    network_rate: float | None = None
    host_cpu: float | None = None
    reports: Sequence[Report] = ()
    objective: Sequence[float] = ()
    can: frozenset[str] = field(default_factory=frozenset)
    pressure: float | None = None
    free_gpus: int | None = None
    budget: Budget | None = None
    acknowledged: bool = True
    oom_batch: int | None = None
    ending: str | None = None

    def __post_init__(self) -> None:
        for name in ("duration_s", "elapsed_s"):
            object.__setattr__(self, name, max(bounded(getattr(self, name)) or 0.0, 0.0))

    def losses(self) -> list[float]:
        """The finite losses that were reported, oldest first."""
        told = (bounded(report.numbers.get("loss")) for report in self.reports)
        return [loss for loss in told if loss is not None]
