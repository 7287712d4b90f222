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
        each: Devices that count as one of the run's ``gpus``: its CPU slots, or 1.
        least: Devices that it goes on with when there are no more.
    """

    devices: int
    amount: int
    each: int = 1
    least: int = 0


def demand(config: RunConfig, nested: bool, kind: str, gpus: int | None = None) -> Demand:
    """What a task asks of a host whose devices are of ``kind``.

    Args:
        config: Its configuration.
        nested: Whether it shares the devices of another run.
        kind: ``cpu``, or the kind of the accelerators.
        gpus: How many it goes on with, once it has run; None before.
    """
    if nested:
        return Demand(0, 0)
    each = config.cpu_slots if kind == "cpu" else 1
    amount = max(1, math.ceil(100 * config.gpu_fraction - 1e-9))
    count = least = config.gpus.initial if gpus is None else gpus
    if gpus is not None and config.gpus.are_elastic:
        least = min(config.gpus.min, gpus)
    return Demand(count * each, amount, each, least * each)


def gpus_held(config: RunConfig, nested: bool, kind: str, devices: int) -> int:
    """How many of the run's ``gpus`` so many leased devices are."""
    return config.gpus.initial if nested else devices // demand(config, nested, kind).each


def memory_cap(config: RunConfig, device: Device | None) -> float | None:
    """Most memory of a device that a run may use, bytes; None where nothing but its size bounds it.

    A run that leases a part of a device has that part of its memory: what runs on one device may
    use never adds up to more than there is.

    Args:
        config: The run's configuration.
        device: The device, or None for one whose memory is not its own.
    """
    caps = []
    if config.memory_cap_gb is not None:
        caps.append(config.memory_cap_gb * 1e9)
    if config.gpu_fraction < 1 and device is not None and device.memory_bytes is not None:
        caps.append(config.gpu_fraction * device.memory_bytes)
    return min(caps, default=None)


def suits(device: Device, config: RunConfig) -> bool:
    """Whether a device, or the part of it that the task leases, meets what the task requires."""
    wanted = config.requires
    if wanted.gpu_type is not None and wanted.gpu_type.lower() not in device.name.lower():
        return False
    if wanted.memory_gb is not None:
        needed = wanted.memory_gb * 1e9 / config.gpu_fraction
        return device.memory_bytes is None or device.memory_bytes >= needed
    return True
