"""Readings under MLflow's names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from mlflow_rlsched.agent.telemetry import (
    Sampler,
    Target,
    _device_memory,
    device_metrics,
)
from mlflow_rlsched.devices.cpu import CpuInventory
from mlflow_rlsched.devices.interface import Device, Inventory, Reading
from tests.world import wait_for

GPU = Device("GPU-1", "nvidia", 3, "H100")


def test_names_and_units_are_those_of_mlflow() -> None:
    reading = Reading(
        utilization_percent=87.0,
        memory_used_bytes=40_000_000_000,
        memory_total_bytes=80_000_000_000,
        power_watts=350.0,
        power_limit_watts=700.0,
        energy_joules=1e6,
        sm_clock_mhz=1980.0,
        memory_clock_mhz=2619.0,
        temperature_celsius=61.0,
        throttle_reasons=["sw_power_cap"],
    )
    assert device_metrics(GPU, reading) == {
        "system/gpu_3_utilization_percentage": 87.0,
        "system/gpu_3_memory_usage_megabytes": 40_000.0,
        "system/gpu_3_memory_usage_percentage": 50.0,
        "system/gpu_3_power_usage_watts": 350.0,
        "system/gpu_3_power_usage_percentage": 50.0,
        "system/gpu_3_energy_joules": 1e6,
        "system/gpu_3_sm_clock_mhz": 1980.0,
        "system/gpu_3_memory_clock_mhz": 2619.0,
        "system/gpu_3_temperature_celsius": 61.0,
        "system/gpu_3_throttled": 1.0,
    }


def test_missing_readings_are_left_out_and_a_zero_total_divides_nothing() -> None:
    reading = Reading(memory_used_bytes=5_000_000, memory_total_bytes=0, throttle_reasons=[])
    assert device_metrics(GPU, reading) == {
        "system/gpu_3_memory_usage_megabytes": 5.0,
        "system/gpu_3_throttled": 0.0,
    }


def test_slices_of_one_gpu_do_not_share_a_name() -> None:
    slices = [Device(f"MIG-000{i}", "mig", 0, "1g.10gb", parent="GPU-1") for i in range(2)]
    names = [set(device_metrics(s, Reading(memory_used_bytes=1))) for s in slices]
    assert names[0].isdisjoint(names[1])


def test_a_tree_is_measured_whole_and_alone() -> None:
    burn = "import os; os.fork(); x = b'x' * 50_000_000\nwhile True: pass"
    code = f"import os\nif os.fork() == 0:\n  exec({burn!r})\nos.wait()"
    root = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    sampler = Sampler(CpuInventory())
    targets = [Target("busy", root.pid, ()), Target("none", None, ())]
    try:
        used = memory = 0.0
        while used < 20 or memory < 100:
            sample = {k: s.metrics for k, s in sampler.sample(targets).items()}
            used = max(used, sample["busy"].get("system/cpu_utilization_percentage", 0.0))
            memory = sample["busy"].get("system/system_memory_usage_megabytes", 0.0)
        assert set(sample["none"]) == {
            "system/network_receive_megabytes",
            "system/network_transmit_megabytes",
        }
    finally:
        os.killpg(root.pid, signal.SIGKILL)
        root.wait()


def test_the_first_sample_of_a_tree_says_nothing_of_its_cpu() -> None:
    root = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sampler = Sampler(CpuInventory())
    wrapper = Target("r", os.getpid(), ())
    try:
        first, second = (sampler.sample([wrapper])["r"].metrics for _ in range(2))
    finally:
        root.kill()
        root.wait()
    assert set(second) - set(first) == {"system/cpu_utilization_percentage"}


SHARED = """
import os
block = os.urandom(1) * 80_000_000
for _ in range(3):
    if os.fork() == 0:
        break
print("ready", flush=True)
os.read(0, 1)
"""


def test_memory_that_the_processes_of_a_tree_share_counts_once_under_a_cap(tmp_path: Path) -> None:
    mapped = tmp_path / "data"
    mapped.write_bytes(bytes(150_000_000))
    code = (
        f"import mmap; m = mmap.mmap(os.open({str(mapped)!r}, os.O_RDONLY), 0, prot=1); m[::4096]"
    )
    reader, writer = os.pipe()
    root = subprocess.Popen(
        [sys.executable, "-c", f"import os; {code}\n{SHARED}"],
        stdin=reader,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert root.stdout is not None
    sampler = Sampler(CpuInventory())
    try:
        for _ in range(4):
            root.stdout.readline()
        capped, other = (
            sampler.sample([Target("r", os.getpid(), (), cap)])["r"] for cap in (200e6, 1e12)
        )
    finally:
        os.killpg(root.pid, signal.SIGKILL)
        root.communicate()
        os.close(reader)
        os.close(writer)
    assert capped.memory_bytes is not None
    assert other.memory_bytes is not None
    assert 80e6 < capped.memory_bytes < 140e6, "once, and nothing of the file"
    assert 240e6 < other.memory_bytes < 440e6
    assert other.metrics["system/system_memory_usage_megabytes"] > 380, "all that is resident"


def test_memory_on_a_device_is_that_of_the_trees_own_processes() -> None:
    tree = [psutil.Process(os.getpid())]
    mine = os.getpid()
    assert _device_memory(tree, Reading(processes={mine: 7, 2**22 + 1: 9})) == 7
    assert _device_memory(tree, Reading(processes={mine: None, 2**22 + 1: 9})) is None
    assert _device_memory(tree, Reading(processes={2**22 + 1: 9})) is None
    assert _device_memory(tree, Reading()) is None


class _Lost(Inventory):
    """Stands for a GPU that fell off the bus: no such hardware is here."""

    kind = "nvidia"

    def devices(self) -> list[Device]:
        return [GPU]

    def read(self, device: Device) -> Reading:
        return Reading(lost=True)

    def occupied(self, device: Device, reading: Reading) -> str | None:
        return None

    def unexplained(self, device: Device, reading: Reading) -> str | None:
        return None

    def environment(self, devices: Sequence[Device], slots_per_process: int) -> dict[str, str]:
        return {}

    def allowed(self, limit: Sequence[str] | None) -> list[Device]:
        return [GPU]


def test_a_lost_device_is_told() -> None:
    sampler = Sampler(_Lost())
    samples = sampler.sample([Target("r", os.getpid(), (GPU,)), Target("other", os.getpid(), ())])
    assert samples["r"].lost == "device GPU-1 does not answer any more"
    assert samples["other"].lost is None


@pytest.mark.parametrize("pid", [2**22 + 1, 1])
def test_a_tree_that_is_gone_or_not_ours_is_no_error(pid: int) -> None:
    sample = Sampler(CpuInventory()).sample([Target("r", pid, ())])
    assert min(sample["r"].metrics.values()) >= 0


def test_a_tree_that_has_just_ended_is_left_out() -> None:
    code = "import os\nif os.fork(): print('forked', flush=True); input()"
    root = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert root.stdout is not None
    root.stdout.readline()
    sampler = Sampler(CpuInventory())

    def zombie() -> bool:
        statuses = [child.status() for child in psutil.Process(root.pid).children()]
        return statuses == [psutil.STATUS_ZOMBIE]

    wait_for(zombie)
    sample = sampler.sample([Target("ended", root.pid, ())])["ended"].metrics
    root.communicate("\n")
    assert not [name for name in sample if "network" not in name]
