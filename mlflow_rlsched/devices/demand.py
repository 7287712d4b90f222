"""What a run asks of a host's devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device

DEVICE_LIMIT = "RLSCHED_DEVICE_LIMIT"
"""Variable of an attempt: the submitter's ``CUDA_VISIBLE_DEVICES``, or ``UNLIMITED``. There that
variable says what the attempt holds, and runs that it submits may queue for more."""

UNLIMITED = "all"


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
    """Whether a device, or the part of it that the task leases, meets what the task requires."""
    wanted = config.requires
    if wanted.gpu_type is not None and wanted.gpu_type.lower() not in device.name.lower():
        return False
    if wanted.memory_gb is not None:
        needed = wanted.memory_gb * 1e9 / config.gpu_fraction
        return device.memory_bytes is None or device.memory_bytes >= needed
    return True
