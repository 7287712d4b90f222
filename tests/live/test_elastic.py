"""Runs whose number of devices changes while they train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.policy.action import GPU_DELTAS
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.versions import Versions
from tests.policy.trained import trained
from tests.world import ROOT, World, wait_for

ELASTIC = ROOT / "examples" / "elastic"
VALLEY = Path(__file__).parent / "project"
STEADY = {"policy": "fixed", "decision_interval_s": 1}


def wanting(delta: int) -> Version:
    """A version that always changes the number of devices by so many."""
    version = trained(1.0)
    version.arrays["actor.body.4.bias"][GPU_DELTAS.index(delta)] = 9.0
    return version


def records(world: World, run_id: str) -> list[dict[str, Any]]:
    return list(decision_log.read(Path(world.task(run_id).spec.run_dir)))


def curve(client: mlflow.MlflowClient, run_id: str) -> dict[int, float]:
    return {p.step: p.value for p in client.get_metric_history(run_id, "train_loss")}


def test_one_two_one_ranks_and_the_loss_of_an_unbroken_run(world: World) -> None:
    Versions().promote(wanting(1))
    config = {
        "policy": "ddpg",
        "decision_interval_s": 1,
        "batch_size": {"param": "batch_size", "min": 64, "max": 64},
        "learning_rate": {"param": "lr", "min": 0.05, "max": 0.05},
    }
    run = world.submit(ELASTIC, params={"epochs": 100_000}, config=config)
    world.running(run.run_id, 2, 90)
    wait_for(lambda: any(r["attempt"] == 2 for r in records(world, run.run_id)), 60)
    assert len({lease.share.device for lease in world.store.leases()}) == 2
    Versions().promote(wanting(0))
    # A policy would have to wait, as it does not take back at once what it did.
    other = world.submit(VALLEY, params={"steps": 50}, config={**STEADY, "priority": 1})
    world.running(run.run_id, 3, 90)
    wait_for(lambda: any(r["attempt"] == 3 for r in records(world, run.run_id)), 60)
    assert other.wait()
    run.cancel()
    world.over(run.run_id)
    attempts = world.store.attempts(run.run_id)
    assert [len(a.devices) for a in attempts] == [1, 2, 1]
    assert [a.reason for a in attempts] == ["resized", "preempted", "cancelled"]
    assert world.task(run.run_id).retries == 0
    told = records(world, run.run_id)
    numbers = [r["number"] for r in told]
    assert numbers == list(range(1, len(told) + 1))
    after = next(r for r in told if r["attempt"] == 2)
    assert after["before"]["gpus"] == 2
    pause = after["training"]["restart_s"]
    assert 0 < pause < after["terms"]["duration_s"]
    seen = curve(world.client, run.run_id)
    unbroken = unbroken_curve(world, max(seen) // 28 + 1)
    assert len(seen) > 20
    assert seen == pytest.approx({step: unbroken[step] for step in seen}, rel=1e-3, abs=1e-5)


def unbroken_curve(world: World, epochs: int) -> dict[int, float]:
    """The same training in one process that nobody schedules."""
    client = world.client
    made = client.create_run("0")
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLSCHED_")}
    env |= {"MLFLOW_RUN_ID": made.info.run_id, "MLFLOW_TRACKING_URI": world.tracking_uri}
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    subprocess.run(
        [*launcher, "--nproc-per-node", "1", "train.py", "--epochs", str(epochs)],
        check=True,
        cwd=ELASTIC,
        env=env,
        timeout=120,
    )
    return curve(client, made.info.run_id)


def test_a_run_shrinks_for_one_of_higher_priority(world: World) -> None:
    gpus = {"initial": 2, "min": 1, "max": 3}
    low = world.submit(VALLEY, config={**STEADY, "gpus": gpus})
    wait_for(lambda: records(world, low.run_id), 60)
    high = world.submit(VALLEY, params={"steps": 50}, config={**STEADY, "priority": 1})
    assert high.wait()
    world.running(low.run_id, 2, 60)
    first, second = world.store.attempts(low.run_id)[:2]
    assert (first.reason, len(first.devices), len(second.devices)) == ("preempted", 2, 1)
    assert world.store.attempts(high.run_id)[0].started_at <= second.started_at
    low.cancel()
    assert world.over(low.run_id).retries == 0


def test_a_run_makes_way_and_goes_on_from_its_checkpoint(world: World) -> None:
    low = world.submit(VALLEY, params={"steps": 600}, config={**STEADY, "gpus": 2})
    wait_for(lambda: records(world, low.run_id), 60)
    high = world.submit(VALLEY, params={"steps": 50}, config={**STEADY, "gpus": 2, "priority": 1})
    assert high.wait()
    assert low.wait()
    first, second = world.store.attempts(low.run_id)
    assert (first.reason, second.reason) == ("preempted", "finished")
    steps = [report["step"] for report in reports(world, low.run_id) if "loss" in report]
    assert steps == sorted(steps), "no step is trained twice"


def reports(world: World, run_id: str) -> list[dict[str, Any]]:
    folder = Path(world.task(run_id).spec.run_dir) / "attempts"
    files = sorted(folder.glob("*/report.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
