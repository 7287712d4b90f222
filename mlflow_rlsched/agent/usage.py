"""What an attempt's devices did between two decisions, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import memory_cap
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.policy.interval import DeviceUse


def uses(
    config: RunConfig,
    devices: Sequence[Device],
    gpus: int,
    samples: Sequence[Sample],
    memory_total: int,
) -> list[DeviceUse]:
    """Use of each device; a CPU slot's is its part of what the processes used.

    Args:
        config: The run's configuration.
        devices: What the attempt holds.
        gpus: How many of the run's ``gpus`` that is.
        samples: Taken since the last decision.
        memory_total: Memory of the host, bytes.
    """
    return [
        _of_slot(config, len(devices), gpus, samples, memory_total)
        if device.kind == "cpu"
        else _of_accelerator(config, device, place, samples)
        for place, device in enumerate(devices)
    ]


def _of_slot(
    config: RunConfig, slots: int, gpus: int, samples: Sequence[Sample], memory_total: int
) -> DeviceUse:
    cores = [s.cores for s in samples if s.cores is not None]
    memory = [s.memory_bytes for s in samples if s.memory_bytes is not None]
    parts = max(1, gpus)
    return DeviceUse(
        utilisation=min(1.0, fmean(cores) / slots) if cores else None,
        memory_used=max(memory) / parts if memory else None,
        memory_total=_within(memory_total / parts, memory_cap(config, None)),
    )


def _of_accelerator(
    config: RunConfig, device: Device, place: int, samples: Sequence[Sample]
) -> DeviceUse:
    readings = [s.readings[place] for s in samples if place < len(s.readings)]
    busy = [r.utilization_percent for r in readings if r.utilization_percent is not None]
    if config.gpu_fraction < 1:  # the rest of the device is of others
        sizes = [s.device_bytes[place] for s in samples if place < len(s.device_bytes)]
    else:
        sizes = [r.memory_used_bytes for r in readings]
    used = [size for size in sizes if size is not None]
    power = [r.power_watts for r in readings if r.power_watts is not None]
    last = readings[-1] if readings else None
    return DeviceUse(
        utilisation=fmean(busy) / 100 if busy else None,
        memory_used=max(used) if used else None,
        memory_total=_within(last.memory_total_bytes, memory_cap(config, device)) if last else None,
        power=fmean(power) if power else None,
        power_limit=last.power_limit_watts if last else None,
    )


def _within(size: float | None, cap: float | None) -> float | None:
    return min((value for value in (size, cap) if value is not None), default=None)


def price(prices: Mapping[str, float], devices: Sequence[Device]) -> float:
    """Price of a device-second: that of the first type whose name a device has, else 1."""
    listed = hourly_price(prices, devices)
    return 1.0 if listed is None else listed / 3600


def hourly_price(prices: Mapping[str, float], devices: Sequence[Device]) -> float | None:
    """Price of a device-hour: that of the first type whose name a device has; None without one."""
    found = (
        price
        for device in devices
        for name, price in prices.items()
        if name.lower() in device.name.lower()
    )
    return next(found, None)
