"""The choice of the inventory, in new processes that find the library as any program does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.stubs import nvml

LIST = """
import json
from mlflow_rlsched.devices import open_inventory
inventory = open_inventory()
devices = inventory.devices()
print(json.dumps({
    "kind": inventory.kind,
    "ids": [device.id for device in devices],
    "power": [inventory.read(device).power_watts for device in devices],
    "variables": inventory.environment(devices[:2], 1),
}))
inventory.close()
"""


def python(code: str, env: dict[str, str]) -> Any:
    environment = {**os.environ, "RLSCHED_CPU_SLOTS": "2", **env}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_host_with_gpus_offers_them(nvml_folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    nvml.write(state, [{"power": 100 + i} for i in range(8)])
    found = python(LIST, nvml.environment(nvml_folder, state))
    assert found["kind"] == "nvidia"
    assert found["ids"] == [nvml.uuid(i) for i in range(8)]
    assert found["power"] == [100 + i for i in range(8)]
    assert found["variables"]["CUDA_VISIBLE_DEVICES"] == f"{nvml.uuid(0)},{nvml.uuid(1)}"


def test_a_host_without_a_usable_gpu_offers_cpu_slots(nvml_folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    for devices, init in ([], 0), ([{}], 9), ([{"slices": []}], 0):
        nvml.write(state, devices, init)
        found = python(LIST, nvml.environment(nvml_folder, state))
        assert (found["kind"], found["ids"]) == ("cpu", ["cpu-0", "cpu-1"])


def test_the_package_and_its_locks_load_without_nvml() -> None:
    code = """
import json, sys
import mlflow_rlsched.devices.locks
print(json.dumps(sorted({"pynvml", "psutil"} & set(sys.modules))))
"""
    assert python(code, {}) == []
