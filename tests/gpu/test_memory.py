"""Memory of devices that are shared, that have a cap, or that are not given back."""

from __future__ import annotations

import json

import pytest

from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import State
from tests.chaos import quick_agent
from tests.gpu.conftest import GpuHost
from tests.stubs import nvml
from tests.world import wait_for

GIB = nvml.GIB
HALF = {"gpu_fraction": 0.5}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)


def test_a_run_above_its_part_of_a_device_is_ended_and_its_neighbour_is_not(
    gpus: GpuHost,
) -> None:
    gpus.has({"memory_total": 80 * GIB, "memory_reserved": GIB})
    neighbour, greedy = gpus.submit(HALF), gpus.submit(HALF)
    late = gpus.submit({"gpu_fraction": 0.01})
    seen = [gpus.seen(run.run_id) for run in (neighbour, greedy)]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in seen] == [nvml.uuid(0)] * 2
    caps = [int(s["RLSCHED_MEMORY_CAP_BYTES"]) for s in seen]
    assert sum(caps) <= 79 * GIB, "what the driver keeps for itself is nobody's"
    assert gpus.world.task(late.run_id).state is State.QUEUED
    mine = (seen[0]["pid"], caps[0] - GIB)
    gpus.change(0, memory_used=caps[0] - GIB, pids=[mine])
    gpus.sampled(greedy.run_id)
    gpus.change(0, memory_used=79 * GIB, pids=[mine, (seen[1]["pid"], caps[1] + GIB)])
    task = gpus.world.over(greedy.run_id, 180)
    assert (task.state, task.exit_reason) == (State.FAILED, "oom")
    assert f"GB of device {nvml.uuid(0)}, above its cap of 42.41 GB" in task.message
    gpus.change(0, memory_used=caps[0] - GIB, pids=[mine])
    assert gpus.devices_of(late.run_id) == [nvml.uuid(0)]
    for run in (neighbour, late):
        task = gpus.let_go(run.run_id)
        assert (task.state, task.attempt) == (State.FINISHED, 1)


def test_what_a_run_leaves_on_its_device_is_said_of_it(gpus: GpuHost) -> None:
    gpus.has({}, {})
    run = gpus.submit()
    assert gpus.seen(run.run_id)["RLSCHED_MEMORY_CAP_BYTES"] is None
    gpus.change(0, memory_used=8 * GIB)
    assert gpus.let_go(run.run_id).state is State.FINISHED
    tags = wait_for(lambda: _warned(gpus, run.run_id), 180)
    text = f"device {nvml.uuid(0)} is not empty 1 s after its task: used by processes not visible"
    assert tags["rlsched.warning"].startswith(text)
    assert text in gpus.world.rlsched("show", run.run_id).stdout
    report = json.loads(gpus.world.rlsched("doctor", "--json").stdout)
    (found,) = [check for check in report["checks"] if check["check"] == "quarantine"]
    assert found["ok"] is False
    assert "after 1 failure in a row" in found["text"]
    assert "used by processes not visible from here, 8.0 GiB" in found["text"], "now as then"
    assert gpus.leased() == {}


def _warned(gpus: GpuHost, run_id: str) -> dict[str, str] | None:
    tags: dict[str, str] = gpus.world.run_of(run_id).data.tags
    return tags if "rlsched.warning" in tags else None
