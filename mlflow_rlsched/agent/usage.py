"""What an attempt's devices did between two decisions, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.policy.interval import DeviceUse


def uses(
    devices: Sequence[Device], samples: Sequence[Sample], memory_total: int
) -> list[DeviceUse]:
    """Use of each device; a CPU slot's is its part of what the processes used.

    Args:
        devices: What the attempt holds.
        samples: Taken since the last decision.
        memory_total: Memory of the host, bytes.
    """
    return [
        _of_slot(len(devices), samples, memory_total)
        if device.kind == "cpu"
        else _of_accelerator(place, samples)
        for place, device in enumerate(devices)
    ]


def _of_slot(slots: int, samples: Sequence[Sample], memory_total: int) -> DeviceUse:
    cores = [s.cores for s in samples if s.cores is not None]
    memory = [s.memory_bytes for s in samples if s.memory_bytes is not None]
    return DeviceUse(
        utilisation=min(1.0, fmean(cores) / slots) if cores else None,
        memory_used=max(memory) if memory else None,
        memory_total=memory_total,
    )


def _of_accelerator(place: int, samples: Sequence[Sample]) -> DeviceUse:
    readings = [s.readings[place] for s in samples if place < len(s.readings)]
    busy = [r.utilization_percent for r in readings if r.utilization_percent is not None]
    used = [r.memory_used_bytes for r in readings if r.memory_used_bytes is not None]
    power = [r.power_watts for r in readings if r.power_watts is not None]
    last = readings[-1] if readings else None
    return DeviceUse(
        utilisation=fmean(busy) / 100 if busy else None,
        memory_used=max(used) if used else None,
        memory_total=last.memory_total_bytes if last else None,
        power=fmean(power) if power else None,
        power_limit=last.power_limit_watts if last else None,
    )


def price(prices: Mapping[str, float], devices: Sequence[Device]) -> float:
    """Price of a device-second: that of the first type whose name a device has, else 1."""
    found = [
        price
        for device in devices
        for name, price in prices.items()
        if name.lower() in device.name.lower()
    ]
    return found[0] / 3600 if found else 1.0
