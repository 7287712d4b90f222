"""The whole path on a host whose GPUs are described by a stand-in for NVML."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import ExecutionException

from mlflow_rlsched.store import State, open_store
from tests.gpu.conftest import GpuHost
from tests.stubs import nvml
from tests.world import wait_for

# Neither in the order of the UUIDs nor by speed is NVML's order that of CUDA.
UUIDS = [f"GPU-{letter * 8}-0000-4000-8000-000000000000" for letter in "hcafbged"]


def gpu_metrics(gpus: GpuHost, run_id: str) -> dict[str, float]:
    metrics = gpus.world.run_of(run_id).data.metrics
    return {name: value for name, value in metrics.items() if name.startswith("system/gpu_")}


def test_eight_runs_at_once_hold_a_device_each(gpus: GpuHost) -> None:
    devices: list[dict[str, Any]] = [
        {"uuid": u, "utilization": 10 + i} for i, u in enumerate(UUIDS)
    ]
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


def test_only_the_leased_devices_are_in_the_metrics(gpus: GpuHost) -> None:
    neighbour = gpus.submit()
    run = gpus.submit({"gpus": 2})
    seen = gpus.devices_of(run.run_id)
    assert gpus.devices_of(neighbour.run_id) == [nvml.uuid(0)]
    assert seen == [nvml.uuid(1), nvml.uuid(2)]
    assert gpus.seen(run.run_id)["RLSCHED_NUM_GPUS"] == "2"
    gpus.sampled(run.run_id)
    gpus.let_go(run.run_id)
    gpus.let_go(neighbour.run_id)
    indices = {name.split("_")[1] for name in gpu_metrics(gpus, run.run_id)}
    assert indices == {"1", "2"}
    assert gpus.world.run_of(run.run_id).data.tags["rlsched.devices"] == ",".join(seen)


def test_gpus_that_are_linked_go_together(gpus: GpuHost) -> None:
    gpus.has(*({"numa": n // 2, "nvlink": n // 2} for n in range(4)))
    one = gpus.submit()
    assert gpus.devices_of(one.run_id) == [nvml.uuid(0)]
    pair = gpus.submit({"gpus": 2})
    assert gpus.devices_of(pair.run_id) == [nvml.uuid(2), nvml.uuid(3)]
    for run in (one, pair):
        gpus.let_go(run.run_id)


def test_a_run_that_asks_for_no_device_sees_none(gpus: GpuHost) -> None:
    run = gpus.submit({"gpus": 0})
    assert gpus.seen(run.run_id)["CUDA_VISIBLE_DEVICES"] == ""
    assert gpus.leased() == {}
    gpus.let_go(run.run_id)


def test_the_slices_of_a_gpu_are_devices_of_their_own(gpus: GpuHost) -> None:
    slices = [f"MIG-0000000{i}-0000-4000-8000-00000000000{i}" for i in (1, 2)]
    used = [nvml.GIB // 4, nvml.GIB // 2]
    gpus.has(
        {"slices": [{"uuid": u, "memory_used": m} for u, m in zip(slices, used, strict=True)]},
        {"memory_used": 5 * nvml.GIB},  # a stranger's
    )
    runs = [gpus.submit() for _ in range(2)]
    held = {gpus.seen(run.run_id)["CUDA_VISIBLE_DEVICES"]: run.run_id for run in runs}
    assert set(held) == set(slices)
    for run in runs:
        gpus.sampled(run.run_id)
    for run in runs:
        assert gpus.let_go(run.run_id).state is State.FINISHED
    for number, (uuid, size) in enumerate(zip(slices, used, strict=True), 1):
        metrics = gpu_metrics(gpus, held[uuid])
        megabytes = f"system/gpu_0_mig_000{number}_memory_usage_megabytes"
        assert metrics[megabytes] == size / 1e6
        assert set(metrics) == {megabytes, megabytes.replace("megabytes", "percentage")}


def test_an_outer_limit_is_obeyed_and_does_not_reach_other_submissions(
    gpus: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{nvml.uuid(5)},3")
    limited = [gpus.submit() for _ in range(3)]
    assert {gpus.devices_of(run.run_id)[0] for run in limited[:2]} == {nvml.uuid(3), nvml.uuid(5)}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpus.world.task(limited[2].run_id).state is State.QUEUED
    gpus.let_go(limited[0].run_id)
    gpus.seen(limited[2].run_id)
    free = gpus.submit()
    assert gpus.devices_of(free.run_id) == [nvml.uuid(0)]
    for run in [*limited[1:], free]:
        gpus.let_go(run.run_id)


def test_more_than_the_outer_limit_is_refused(
    gpus: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(ExecutionException, match=r"3 GPUs, but \S+ has 2 within CUDA_VISIBLE"):
        gpus.submit({"gpus": 3})
    assert gpus.world.store.tasks() == []
    assert gpus.world.client.search_runs(["0"]) == []


def test_fractions_pack_runs_onto_the_device_that_is_begun(gpus: GpuHost) -> None:
    halves = [gpus.submit({"gpu_fraction": 0.5}) for _ in range(2)]
    assert [gpus.devices_of(run.run_id) for run in halves] == [[nvml.uuid(0)]] * 2
    third = gpus.submit({"gpu_fraction": 0.5})
    whole = gpus.submit()
    assert gpus.devices_of(third.run_id) == [nvml.uuid(1)]
    assert gpus.devices_of(whole.run_id) == [nvml.uuid(2)]
    for run in [*halves, third, whole]:
        assert gpus.let_go(run.run_id).state is State.FINISHED


def test_what_a_run_says_it_needs_is_reserved_before_it_is_used(gpus: GpuHost) -> None:
    """Nothing is allocated on the device by any of them: free memory alone would let all in."""
    gpus.has({"memory_total": 80 * nvml.GIB})
    needs = {"gpu_fraction": 0.4, "requires": {"memory_gb": 30}}
    runs = [gpus.submit(needs) for _ in range(3)]
    for run in runs[:2]:
        gpus.seen(run.run_id)
    assert gpus.world.task(runs[2].run_id).state is State.QUEUED
    with pytest.raises(ExecutionException, match="0 of them as `requires` asks"):
        gpus.submit({"gpu_fraction": 0.4, "requires": {"memory_gb": 60}})
    for run in runs:
        gpus.let_go(run.run_id)


def test_two_stores_never_share_a_device(gpus: GpuHost, tmp_path: Path) -> None:
    gpus.has({}, {})
    other_url = f"sqlite:///{tmp_path}/other.db"
    first = gpus.submit()
    theirs = gpus.submit({"store": other_url})
    with closing(open_store(other_url)) as other:
        assert gpus.devices_of(first.run_id) != gpus.devices_of(theirs.run_id)
        late = gpus.submit()
        elsewhere = "held by a task of another store"
        wait_for(lambda: elsewhere in gpus.world.rlsched("queue").stdout, 60)
        assert gpus.world.task(late.run_id).state is State.QUEUED
        assert "held by another store" in gpus.world.rlsched("devices").stdout
        (gpus.seen_dir / f"{theirs.run_id}.go").touch()
        assert gpus.devices_of(late.run_id) == gpus.devices_of(theirs.run_id)
        wait_for(lambda: [t.state for t in other.tasks()] == [State.FINISHED], 60)
    for run in (first, late):
        gpus.let_go(run.run_id)


def test_mlflows_own_monitor_does_not_log_all_devices_again(
    gpus: GpuHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import time, mlflow\nwith mlflow.start_run():\n    time.sleep(1)\n"
    )
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING", "1")
    run = gpus.world.submit(project, "train.py")
    assert gpus.world.over(run.run_id).state is State.FINISHED
    assert {name.split("_")[1] for name in gpu_metrics(gpus, run.run_id)} <= {"0"}
