from __future__ import annotations

import getpass
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlflow_rlsched.devices.interface import Reading
from mlflow_rlsched.devices.nvidia import NvidiaInventory, NvmlUnavailable
from tests.stubs import nvml

from .conftest import Box

GIB = nvml.GIB
A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-0000-4000-8000-000000000000"
MIG_1, MIG_2 = nvml.slice_uuid(0, 0), nvml.slice_uuid(0, 1)
GONE_PID = 2**22 + 1  # above the kernel's largest PID
NOT_TOLD = 2**64 - 1  # what NVML says for memory that it does not know

Warnings = Callable[[], list[str]]


def ids(devices: list[Any]) -> list[str]:
    return [device.id for device in devices]


# Inventory


def test_devices_are_known_by_uuid_and_numbered_as_nvml_does(box: Box) -> None:
    inventory = box.open({"uuid": B, "name": "Big"}, {"uuid": A, "memory_total": 16 * GIB})
    big, small = inventory.devices()
    assert (big.id, big.kind, big.index, big.name, big.parent) == (B, "nvidia", 0, "Big", None)
    assert (small.id, small.index, small.memory_bytes) == (A, 1, 16 * GIB - GIB // 2)


def test_a_gpu_in_mig_mode_is_replaced_by_its_slices(box: Box) -> None:
    inventory = box.open({"uuid": A, "slices": [{"memory_total": 20 * GIB}, {}]}, {"uuid": B})
    assert ids(inventory.devices()) == [MIG_1, MIG_2, B]
    first, second, _ = inventory.devices()
    assert (first.kind, first.index, first.parent, first.memory_bytes) == ("mig", 0, A, 20 * GIB)
    assert second.name == "NVIDIA Stub MIG 3g.40gb"


def test_a_gpu_in_mig_mode_without_slices_offers_nothing(box: Box) -> None:
    assert ids(box.open({"uuid": A, "slices": []}, {"uuid": B}).devices()) == [B]


def test_devices_are_grouped_by_nvlink_then_by_what_they_share_of_pci_express(box: Box) -> None:
    def groups(*gpus: dict[str, Any]) -> list[list[int]]:
        """Indices of the devices of each group, level by level."""
        devices = box.open(*gpus).devices()
        levels = zip(*(device.groups for device in devices), strict=True)
        return [sorted(Counter(level).values()) for level in levels]

    bridged = [{"numa": n // 4, "switch": n // 4, "nvlink": n // 2} for n in range(8)]
    assert groups(*bridged) == [[4, 4], [2, 2, 2, 2], [1] * 8]
    switched = [{"numa": n // 4, "switch": n // 2, "nvlink": "all"} for n in range(8)]
    assert groups(*switched) == [[4, 4], [2, 2, 2, 2], [1] * 8]
    crossed = [{"numa": n // 2, "nvlink": n % 2} for n in range(4)]
    assert groups(*crossed) == [[2, 2], [1] * 4]
    first, second = [d.groups[0] for d in box.open(*crossed).devices()][:2]
    assert first != second, "a link is better than a NUMA node"
    assert groups({}, {}) == [[1, 1]], "it does not tell"
    assert groups({"numa": 0}) == [[1]]
    assert groups({"numa": 0, "lost": True}, {"numa": 0}, {"numa": 1}) == [[1, 1]]
    sliced = [{"numa": n, "slices": [{}, {}]} for n in range(2)]
    assert groups(*sliced, {"numa": 1}) == [[2, 3], [1, 2, 2]]


@pytest.mark.parametrize(
    "fault",
    [{"lost": True}, {"memory_total": "error 15"}, {"uuid": "error 4"}, {"name": "error 999"}],
)
def test_a_gpu_that_does_not_answer_at_the_start_is_left_out(
    box: Box, warnings: Warnings, fault: dict[str, Any]
) -> None:
    inventory = box.open(fault, {"uuid": B})
    assert [(device.id, device.index) for device in inventory.devices()] == [(B, 1)]
    assert [w for w in warnings() if w.startswith("GPU 0 is left out")]


def test_bindings_that_return_bytes(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName"):
        function = getattr(pynvml, name)
        monkeypatch.setattr(pynvml, name, lambda handle, f=function: f(handle).encode())
    inventory = box.open({"uuid": A, "name": "Big"})
    (device,) = inventory.devices()
    assert (device.id, device.name) == (A, "Big")
    assert not inventory.read(device).lost


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"),
        (777, "777"),
    ],
)
def test_nvml_that_does_not_start_is_unavailable_with_its_reason(
    box: Box, error: int, reason: str
) -> None:
    box.write(init=error)
    with pytest.raises(NvmlUnavailable, match=reason):
        NvidiaInventory()


def test_no_library_is_unavailable(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_file(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_such_file)
    with pytest.raises(NvmlUnavailable, match="not installed"):
        NvidiaInventory()


def test_a_library_of_another_version_is_unavailable(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mismatch() -> None:
        raise pynvml.NVMLLibraryMismatchError("versions differ")

    monkeypatch.setattr(pynvml, "nvmlInit", mismatch)
    with pytest.raises(NvmlUnavailable, match="versions differ"):
        NvidiaInventory()


# Readings


def test_readings_have_the_documented_units(box: Box, warnings: Warnings) -> None:
    inventory = box.open(
        {
            "memory_used": 3 * GIB,
            "utilization": 87,
            "power": 251.5,
            "power_limit": 400,
            "energy": 1234.5,
            "sm_clock": 1400,
            "memory_clock": 1593,
            "temperature": 61,
            "throttle": 0x4 | 0x40,
            "pids": [(11, GIB), (12, GIB), (11, GIB)],
        }
    )
    assert inventory.read(inventory.devices()[0]) == Reading(
        utilization_percent=87,
        memory_used_bytes=3 * GIB,
        memory_total_bytes=80 * GIB,
        power_watts=251.5,
        power_limit_watts=400,
        energy_joules=1234.5,
        sm_clock_mhz=1400,
        memory_clock_mhz=1593,
        temperature_celsius=61,
        throttle_reasons=["sw_power_cap", "hw_thermal_slowdown"],
        processes={11: 2 * GIB, 12: GIB},
    )
    assert warnings() == []


def test_only_the_device_that_was_asked_for_is_read(box: Box) -> None:
    inventory = box.open(*({"utilization": 10 * i, "power": 100 + i} for i in range(8)))
    devices = inventory.devices()
    read = [inventory.read(devices[i]) for i in (2, 5)]
    assert [(r.utilization_percent, r.power_watts) for r in read] == [(20, 102), (50, 105)]


def test_a_reading_follows_the_uuid_not_the_number(box: Box) -> None:
    inventory = box.open({"uuid": A, "utilization": 11}, {"uuid": B, "utilization": 22})
    a, b = inventory.devices()
    box.write({"uuid": B, "utilization": 22}, {"uuid": A, "utilization": 11})
    assert inventory.read(a).utilization_percent == 11
    assert inventory.read(b).utilization_percent == 22


def test_a_slice_has_its_own_memory_and_processes_and_no_shared_figures(
    box: Box, warnings: Warnings
) -> None:
    pieces = [{"memory_used": GIB, "pids": [11]}, {"memory_used": 2 * GIB}]
    inventory = box.open({"utilization": 50, "power": 300, "slices": pieces})
    first, second = inventory.devices()
    total = 40 * GIB
    assert inventory.read(first) == Reading(
        memory_used_bytes=GIB, memory_total_bytes=total, processes={11: 0}
    )
    assert inventory.read(second) == Reading(
        memory_used_bytes=2 * GIB, memory_total_bytes=total, processes={}
    )
    assert warnings() == []


def without(reading: Reading, fields: list[str]) -> Reading:
    missing: dict[str, Any] = dict.fromkeys(fields)
    return replace(reading, **missing)


FIELDS = {
    "utilization": ["utilization_percent"],
    "memory_total": ["memory_total_bytes", "memory_used_bytes"],
    "power": ["power_watts"],
    "power_limit": ["power_limit_watts"],
    "energy": ["energy_joules"],
    "sm_clock": ["sm_clock_mhz"],
    "memory_clock": ["memory_clock_mhz"],
    "temperature": ["temperature_celsius"],
    "throttle": ["throttle_reasons"],
    "pids": ["processes"],
}


@pytest.mark.parametrize("fault", ["unsupported", "error 4", "error 999"])
@pytest.mark.parametrize("key", FIELDS)
def test_one_missing_reading_leaves_the_others_and_one_warning(
    box: Box, warnings: Warnings, key: str, fault: str
) -> None:
    inventory = box.open({key: fault}, {})
    broken, healthy = inventory.devices()
    expected = without(inventory.read(healthy), FIELDS[key])
    assert [inventory.read(broken) for _ in range(3)] == [expected] * 3
    assert len(warnings()) == 1


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"memory_total": 0}, ["memory_total_bytes"]),
        ({"memory_total": 2**63}, ["memory_total_bytes"]),
        ({"memory_used": 81 * GIB}, ["memory_used_bytes"]),
        ({"power_limit": 0}, ["power_limit_watts"]),
        ({"power": 4294967}, ["power_watts"]),
        ({"utilization": 4294967295}, ["utilization_percent"]),
    ],
)
def test_a_value_that_cannot_be_true_is_missing(
    box: Box, warnings: Warnings, change: dict[str, Any], missing: list[str]
) -> None:
    inventory = box.open(change, {})
    broken, healthy = inventory.devices()
    expected = without(inventory.read(healthy), missing)
    assert [inventory.read(broken) for _ in range(3)] == [expected] * 3
    assert len(warnings()) == 1


def test_an_old_driver_counts_its_own_memory_and_names_no_processes(
    box: Box, warnings: Warnings, tmp_path: Path
) -> None:
    box.use(nvml.compile(tmp_path, old_driver=True))
    inventory = box.open({"memory_used": GIB, "memory_reserved": GIB // 2})
    reading = inventory.read(inventory.devices()[0])
    assert reading.memory_used_bytes == GIB + GIB // 2
    assert reading.processes is None
    assert reading.power_watts == 60
    assert len(warnings()) == 1


# Lost devices


@pytest.mark.parametrize(
    "fault", [{"lost": True}, {"power": "error 15"}, {"pids": "error 1"}, {"energy": "error 16"}]
)
def test_a_device_that_stops_answering_is_lost_and_keeps_its_place(
    box: Box, fault: dict[str, Any]
) -> None:
    inventory = box.open({"uuid": A}, {"uuid": B})
    before = inventory.devices()
    box.write({"uuid": A, **fault}, {"uuid": B})
    assert inventory.read(before[0]) == Reading(lost=True)
    assert not inventory.read(before[1]).lost
    assert inventory.devices() == before
    box.write({"uuid": A}, {"uuid": B})
    assert not inventory.read(before[0]).lost


def test_a_device_that_vanishes_is_lost(box: Box) -> None:
    inventory = box.open({"uuid": A}, {"uuid": B})
    a, b = inventory.devices()
    box.write({"uuid": B})
    assert inventory.read(a).lost
    assert not inventory.read(b).lost
    assert ids(inventory.devices()) == [A, B]


def test_a_handle_that_now_is_another_slice_is_lost(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = box.open({"slices": [{}]})
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: MIG_2)
    assert inventory.read(inventory.devices()[0]) == Reading(lost=True)


def test_the_slices_of_a_lost_gpu_are_lost(box: Box) -> None:
    inventory = box.open({"slices": [{}, {}]})
    box.write({"lost": True, "slices": [{}, {}]})
    assert [inventory.read(device).lost for device in inventory.devices()] == [True, True]


# Strangers


def stranger(box: Box, **device: Any) -> str | None:
    inventory = box.open(device)
    (gpu,) = inventory.devices()
    return inventory.occupied(gpu, inventory.read(gpu))


def test_an_idle_device_is_not_occupied(box: Box) -> None:
    assert stranger(box, memory_used=700 * 2**20) is None


def test_a_visible_stranger_is_named_with_its_user(box: Box) -> None:
    pid = os.getpid()
    name = psutil.Process(pid).name()
    expected = f"used by {name} (pid {pid}) of {getpass.getuser()}, 3.2 GiB"
    assert stranger(box, pids=[pid], memory_used=int(3.2 * GIB)) == expected


def test_a_process_of_another_pid_namespace_is_said_to_be_invisible(box: Box) -> None:
    expected = f"used by pid {GONE_PID}, not visible from here, 0.0 GiB"
    assert stranger(box, pids=[GONE_PID]) == expected


def test_many_strangers_are_counted(box: Box) -> None:
    text = stranger(box, pids=[GONE_PID + i for i in range(9)], memory_total="unsupported")
    assert text is not None
    assert text.count("pid ") == 3
    assert text.endswith(" and 6 more")


def test_memory_without_a_visible_process_is_a_stranger(box: Box) -> None:
    expected = "used by processes not visible from here, 2.0 GiB"
    assert stranger(box, memory_used=2 * GIB) == expected
    assert stranger(box, memory_used=2 * GIB, pids="unsupported") == expected


def unexplained(box: Box, **device: Any) -> str | None:
    inventory = box.open(device)
    (gpu,) = inventory.devices()
    return inventory.unexplained(gpu, inventory.read(gpu))


def test_memory_that_the_processes_of_a_device_do_not_explain_is_told(box: Box) -> None:
    pids = [(11, 3 * GIB), (12, 4 * GIB)]
    expected = "3.0 GiB that no process explains"
    assert unexplained(box, memory_used=10 * GIB, pids=pids) == expected
    assert unexplained(box, memory_used=8 * GIB, pids=pids) is None, "as much as an idle device's"
    assert unexplained(box, memory_used=10 * GIB, pids="unsupported") is None
    assert unexplained(box, memory_used=10 * GIB, pids=[(11, NOT_TOLD)]) is None


def test_a_process_cannot_have_more_memory_than_its_device(box: Box, warnings: Warnings) -> None:
    inventory = box.open({"pids": [(11, 81 * GIB), (12, GIB)]})
    assert inventory.read(inventory.devices()[0]).processes == {11: None, 12: GIB}
    assert len(warnings()) == 1


# What a training sees


def test_a_training_sees_its_devices_by_uuid_in_pci_order(box: Box) -> None:
    inventory = box.open({"uuid": A}, {"uuid": B}, {"slices": [{}, {}]})
    a, b, first, _ = inventory.devices()
    environment = inventory.environment([b, a], 4)
    assert environment == {"CUDA_VISIBLE_DEVICES": f"{B},{A}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert inventory.environment([first], 1)["CUDA_VISIBLE_DEVICES"] == nvml.slice_uuid(2, 0)


def test_a_training_without_devices_sees_none(box: Box) -> None:
    assert box.open({}).environment([], 1)["CUDA_VISIBLE_DEVICES"] == ""


# An outer CUDA_VISIBLE_DEVICES

HOST: list[dict[str, Any]] = [{"uuid": A}, {"uuid": B}, {"slices": [{}, {}]}]
PARENT, PIECE_1, PIECE_2 = nvml.uuid(2), nvml.slice_uuid(2, 0), nvml.slice_uuid(2, 1)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, [A, B, PIECE_1, PIECE_2]),
        ("", []),
        ("0", [A]),
        ("1,0", [A, B]),
        (" 1 , 0 ", [A, B]),
        ("2", [PIECE_1, PIECE_2]),
        (A, [A]),
        ("GPU-b", [B]),
        (PARENT, [PIECE_1, PIECE_2]),
        (PIECE_2, [PIECE_2]),
        (f"{PIECE_1},0", [A, PIECE_1]),
        ("0,7,1", [A]),
        ("-1", []),
        ("0,-1,1", [A]),
        ("0,,1", [A]),
        ("NoDevFiles", []),
        ("GPU-", []),
        ("MIG-", []),
        ("GPU-cccc,0", []),
        (A.lower(), []),
        ("0,0", [A]),
    ],
)
def test_an_outer_limit_is_read_as_cuda_reads_it(
    box: Box, limit: str | None, expected: list[str]
) -> None:
    inventory = box.open(*HOST)
    allowed = inventory.allowed(None if limit is None else limit.split(","))
    assert ids(allowed) == expected


def test_an_empty_limit_allows_nothing(box: Box) -> None:
    assert box.open(*HOST).allowed([]) == []


ENTRIES = st.one_of(
    st.sampled_from(["0", "1", "2", "3", A, B[:8], PARENT, PIECE_1, "GPU-", ""]), st.text()
)


@given(limit=st.lists(ENTRIES, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_longer_limit_never_allows_less(box: Box, limit: list[str]) -> None:
    inventory = box.open(*HOST)
    allowed = inventory.allowed(limit)
    assert [d for d in inventory.devices() if d in allowed] == allowed
    for length in range(len(limit)):
        assert set(inventory.allowed(limit[:length])) <= set(allowed)
