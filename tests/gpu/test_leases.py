"""The whole path on a host whose GPUs are described by a stand-in for NVML."""

from __future__ import annotations

import re
from typing import Any

from mlflow_rlsched.store import State
from tests.gpu.conftest import GpuHost
from tests.stubs import nvml
from tests.world import wait_for

# Neither in the order of the UUIDs nor by speed is NVML's order that of CUDA.
UUIDS = [f"GPU-{letter * 8}-0000-4000-8000-000000000000" for letter in "hcafbged"]


def gpu_metrics(gpus: GpuHost, run_id: str) -> dict[str, float]:
    metrics = gpus.world.run_of(run_id).data.metrics
    return {name: value for name, value in metrics.items() if name.startswith("system/gpu_")}


def test_eight_runs_at_once_hold_a_device_each(gpus: GpuHost) -> None:
    devices: list[dict[str, Any]] = [{"uuid": u, "utilization": 10 + i} for i, u in enumerate(UUIDS)]
    devices[2]["power"] = "unsupported"
    devices[5]["memory_total"] = 0
    gpus.has(*devices)
    runs = [gpus.submit() for _ in range(8)]
    late = gpus.submit()
    held = {}
    for run in runs:
        seen = gpus.seen(run.run_id)
        assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert seen["RLSCHED_NUM_GPUS"] == "1"
        held[seen["CUDA_VISIBLE_DEVICES"]] = run.run_id
    assert set(held) == set(UUIDS)
    assert gpus.leased() == held
    assert gpus.world.task(late.run_id).state is State.QUEUED
    for run in runs:
        gpus.sampled(run.run_id)
    for run in runs:
        assert gpus.let_go(run.run_id).state is State.FINISHED
    for index, uuid in enumerate(UUIDS):
        metrics = gpu_metrics(gpus, held[uuid])
        assert {re.match(r"system/gpu_(\d+)_", name)[1] for name in metrics} == {str(index)}
        assert metrics[f"system/gpu_{index}_utilization_percentage"] == 10 + index
        assert (f"system/gpu_{index}_power_usage_watts" in metrics) == (index != 2)
        assert (f"system/gpu_{index}_memory_usage_percentage" in metrics) == (index != 5)
    assert gpus.let_go(late.run_id).state is State.FINISHED
    log = gpus.world.agent.log.read_text()
    assert len(re.findall(f"no power_watts of .*{UUIDS[2]}", log)) == 1
    assert len(re.findall(f"no memory_total_bytes of .*{UUIDS[5]}", log)) == 1
