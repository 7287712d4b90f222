"""What a run asks of a host's devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device


@dataclass(frozen=True)
class Demand:
    """What a task wants.

    Attributes:
        devices: How many devices.
        amount: Hundredths of each.
    """

    devices: int
    amount: int


def demand(config: RunConfig, nested: bool, kind: str) -> Demand:
    """What a task asks of a host whose devices are of ``kind``."""
    if nested:
        return Demand(0, 0)
    per_device = config.cpu_slots if kind == "cpu" else 1
    amount = max(1, math.ceil(100 * config.gpu_fraction - 1e-9))
    return Demand(config.gpus.initial * per_device, amount)


def suits(device: Device, config: RunConfig) -> bool:
    """Whether a device meets what the task requires of it."""
    wanted = config.requires
    if wanted.gpu_type is not None and wanted.gpu_type.lower() not in device.name.lower():
        return False
    if wanted.memory_gb is not None:
        return device.memory_bytes is None or device.memory_bytes >= wanted.memory_gb * 1e9
    return True
