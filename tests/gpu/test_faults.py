"""Devices that drain, fail or belong to others, on the whole path."""

from __future__ import annotations

import subprocess
import sys

from mlflow_rlsched.store import State
from tests.gpu.conftest import PROJECT, GpuHost
from tests.stubs import nvml
from tests.world import wait_for

USED = 8 * nvml.GIB


def test_a_lease_lasts_until_the_memory_is_free(gpus: GpuHost) -> None:
    gpus.has({})
    first, second = gpus.submit(), gpus.submit()
    pid = gpus.seen(first.run_id)["pid"]
    gpus.change(0, memory_used=USED, pids=[pid])
    gpus.let_go(first.run_id)
    assert gpus.leased() == {nvml.uuid(0): first.run_id}
    assert gpus.world.task(second.run_id).state is State.QUEUED
    assert "draining" in gpus.world.rlsched("devices").stdout
    gpus.change(0, memory_used=0, pids=[])
    assert gpus.devices_of(second.run_id) == [nvml.uuid(0)]
    gpus.let_go(second.run_id)
    wait_for(lambda: not gpus.leased())


def test_a_lost_device_is_closed_and_its_run_goes_on_elsewhere(gpus: GpuHost) -> None:
    gpus.has({}, {}, {})
    run = gpus.submit({"gpus": 2, "retry_delays_s": [0], "grace_s": 0})
    assert gpus.devices_of(run.run_id, 1) == [nvml.uuid(0), nvml.uuid(1)]
    gpus.sampled(run.run_id)
    gpus.change(1, lost=True)
    assert gpus.devices_of(run.run_id, 2) == [nvml.uuid(0), nvml.uuid(2)]
    first, _ = gpus.world.store.attempts(run.run_id)
    assert first.reason == "device_fault"
    assert first.message == f"device {nvml.uuid(1)} does not answer any more"
    (closed,) = gpus.world.store.quarantined()
    assert (closed.device, closed.reason) == (nvml.uuid(1), first.message)
    assert "GPU 1 is left out: GPU is lost" in gpus.world.rlsched("devices").stdout
    gpus.change(1, lost=False)
    assert f": {first.message}" in gpus.world.rlsched("devices").stdout
    assert gpus.let_go(run.run_id).state is State.FINISHED


def test_a_device_in_use_by_strangers_is_not_offered_and_said_to_be_so(gpus: GpuHost) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        gpus.has({"memory_used": 3 * nvml.GIB, "pids": [stranger.pid]}, {"memory_used": USED}, {})
        runs = [gpus.submit() for _ in range(2)]
        assert gpus.devices_of(runs[0].run_id) == [nvml.uuid(2)]
        who = f"(pid {stranger.pid}) of "
        queue = wait_for(lambda: said(gpus, "queue", who), 60)
        assert f"device {nvml.uuid(1)} is not offered: used by processes not visible" in queue
        devices = said(gpus, "devices", who)
        assert "used by processes not visible from here, 8.0 GiB" in devices
        assert gpus.world.task(runs[1].run_id).state is State.QUEUED
        stranger.communicate(b"\n")
        gpus.change(0, memory_used=0, pids=[])
        assert gpus.devices_of(runs[1].run_id) == [nvml.uuid(0)]
    for run in runs:
        gpus.let_go(run.run_id)


def said(gpus: GpuHost, command: str, words: str) -> str:
    """What a command says, if it says these words."""
    output = gpus.world.rlsched(command).stdout
    return output if words in output else ""


def test_a_training_that_says_its_device_failed_is_tried_on_another(gpus: GpuHost) -> None:
    gpus.has({}, {})
    project = gpus.world.root / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import os, sys\n"
        "if os.environ['RLSCHED_ATTEMPT'] == '1':\n"
        "    sys.exit('RuntimeError: CUDA error: uncorrectable ECC error encountered')\n"
    )
    run = gpus.world.submit(project, "train.py", config={"retry_delays_s": [0]})
    assert gpus.world.over(run.run_id).state is State.FINISHED
    attempts = gpus.world.store.attempts(run.run_id)
    assert [a.reason for a in attempts] == ["device_fault", "finished"]
    assert [a.devices[0].device for a in attempts] == [nvml.uuid(0), nvml.uuid(1)]
    assert [q.device for q in gpus.world.store.quarantined()] == [nvml.uuid(0)]


def test_a_run_inside_a_run_that_holds_nothing_queues_for_its_own_devices(gpus: GpuHost) -> None:
    project = gpus.world.root / "outer"
    project.mkdir()
    config = '{"nested": "queue"}'
    (project / "outer.sh").write_text(
        f"exec mlflow run {PROJECT} --backend rlsched -P folder={gpus.seen_dir}"
        f" --backend-config '{config}'\n"
    )
    run = gpus.world.submit(project, "outer.sh", config={"gpus": 0})
    (child,) = wait_for(lambda: [t for t in gpus.world.store.tasks() if t.run_id != run.run_id], 60)
    assert gpus.devices_of(child.run_id) == [nvml.uuid(0)]
    assert gpus.let_go(child.run_id).state is State.FINISHED
    assert gpus.world.over(run.run_id).state is State.FINISHED
