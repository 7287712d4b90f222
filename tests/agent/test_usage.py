"""What an attempt's devices did between two decisions."""

from __future__ import annotations

import pytest

from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.agent.usage import uses
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device, Reading

GB = 10**9
GPUS = [Device(f"GPU-{i}", "nvidia", i, "H100", memory_bytes=80 * GB) for i in range(2)]
SLOTS = [Device(f"cpu-{i}", "cpu", i, "CPU slot") for i in range(4)]


def memory(settings: dict[str, object], devices: list[Device], gpus: int) -> list[tuple]:
    """Memory used and to be had of each device, in GB, by two samples."""
    samples = [
        Sample(
            {},
            tuple(Reading(memory_used_bytes=n * GB, memory_total_bytes=80 * GB) for n in used),
            memory_bytes=sum(used) * GB,
            device_bytes=tuple(None if n == 50 else (n - 20) * GB for n in used),
        )
        for used in ((30, 40), (60, 50))
    ]
    found = uses(RunConfig.model_validate(settings), devices, gpus, samples, 240 * GB)
    return [(use.memory_used / GB, use.memory_total / GB) for use in found]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(60, 80), (50, 80)]),
        ({"memory_cap_gb": 70}, [(60, 70), (50, 70)]),
        # Of a part of a device, what the run's own processes use, as far as that is known.
        ({"gpu_fraction": 0.75}, [(40, 60), (20, 60)]),
        ({"gpu_fraction": 0.75, "memory_cap_gb": 45}, [(40, 45), (20, 45)]),
    ],
)
def test_memory_of_a_device_is_measured_against_its_cap(
    settings: dict[str, object], expected: list[tuple[float, float]]
) -> None:
    assert memory(settings, GPUS, 2) == expected


def test_memory_of_the_processes_is_shared_by_what_stands_for_devices() -> None:
    assert memory({}, SLOTS[:1], 1) == [(110, 240)]
    assert memory({"cpu_slots": 2, "memory_cap_gb": 100}, SLOTS, 2) == [(55, 100)] * 4
    assert memory({"cpu_slots": 2}, SLOTS, 2) == [(55, 120)] * 4
