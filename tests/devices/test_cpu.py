from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from mlflow_rlsched.devices import cpu
from mlflow_rlsched.devices.cpu import CpuInventory, CpuSlotsError, cgroup_quota, usable_cores
from mlflow_rlsched.devices.interface import Reading


def test_slots_are_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "3")
    devices = CpuInventory().devices()
    assert [(d.id, d.kind, d.index) for d in devices] == [
        ("cpu-0", "cpu", 0),
        ("cpu-1", "cpu", 1),
        ("cpu-2", "cpu", 2),
    ]


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", " "])
def test_a_wrong_number_of_slots_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", text)
    with pytest.raises(CpuSlotsError, match=f"RLSCHED_CPU_SLOTS is '{text}'"):
        CpuInventory()


@pytest.mark.parametrize(("quota", "expected"), [(math.inf, 4), (2.5, 2), (0.2, 1), (9.0, 4)])
def test_without_a_number_there_is_a_slot_for_each_usable_core(
    monkeypatch: pytest.MonkeyPatch, quota: float, expected: int
) -> None:
    monkeypatch.delenv("RLSCHED_CPU_SLOTS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5, 6})
    monkeypatch.setattr(cpu, "cgroup_quota", lambda: quota)
    assert len(CpuInventory().devices()) == expected


def test_usable_cores_are_no_more_than_the_affinity_allows() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_cgroup_version_2_takes_the_smallest_quota_on_the_way_up(tmp_path: Path) -> None:
    group(tmp_path / "a", cpu__max="150000 100000")
    group(tmp_path / "a/b", cpu__max="max 100000")
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert cgroup_quota(tmp_path / "membership", tmp_path) == 1.5


def test_cgroup_version_1_in_a_container_finds_its_group_at_the_root(tmp_path: Path) -> None:
    group(tmp_path / "cpu,cpuacct", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    (tmp_path / "membership").write_text(
        "9:name=systemd:/x\n3:cpuset:/docker/12ab\n2:cpu,cpuacct:/docker/12ab\n0::/\n"
    )
    assert cgroup_quota(tmp_path / "membership", tmp_path) == 3


def test_without_a_quota_it_is_infinite(tmp_path: Path) -> None:
    group(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    (tmp_path / "membership").write_text("1:cpu:/\n0::/\n")
    assert cgroup_quota(tmp_path / "membership", tmp_path) == math.inf
    assert cgroup_quota(tmp_path / "absent", tmp_path) == math.inf


def test_threads_follow_the_slots_and_no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "4")
    inventory = CpuInventory()
    assert inventory.environment(inventory.devices(), 4) == {
        "OMP_NUM_THREADS": "4",
        "MKL_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
        "NUMEXPR_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert inventory.environment([], 0)["OMP_NUM_THREADS"] == "1"


def test_a_slot_has_no_readings_and_no_strangers_and_no_gpu_limit() -> None:
    inventory = CpuInventory()
    (first, *_) = inventory.devices()
    assert inventory.read(first) == Reading()
    assert inventory.occupied(first, Reading()) is None
    assert inventory.allowed([]) == inventory.devices()
