"""``rlsched search``: trials that are runs of the queue, with everything real."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import Metric, Param

from mlflow_rlsched import studies
from mlflow_rlsched.store import State
from tests.world import World, wait_for

optuna = pytest.importorskip("optuna")
PROJECT = Path(__file__).parent / "project"
LONG_S = 240


def search(world: World, *more: str, **params: object) -> subprocess.Popen[str]:
    assignments = [part for name, text in params.items() for part in ("-P", f"{name}={text}")]
    return world.command(
        "rlsched", "search", str(PROJECT), "--study", "s", "--json", *assignments, *more
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, output
    told: dict[str, Any] = json.loads(output[output.index("{\n") :])
    return told


def past_runs(client: mlflow.MlflowClient, count: int, gate: Path) -> None:
    """Good ones, whatever their rate."""
    for n in range(count):
        run_id = client.create_run("0").info.run_id
        params = {"lr": f"'{0.1 + 0.01 * n}'", "steps": "3", "gate": str(gate), "seed": str(n)}
        client.log_batch(
            run_id,
            metrics=[Metric("val_loss", 1.0 + 0.01 * n, 1000 + step, step) for step in range(3)],
            params=[Param(*each) for each in params.items()],
        )
        client.set_terminated(run_id)


def test_a_search_goes_on_after_an_interrupt_and_after_a_kill(world: World) -> None:
    gate = world.root / "gate"
    options = ("--n-trials=2", "--jobs=2", "--no-seed")
    params = {"lr": "loguniform(1e-4,1)", "gate": gate}

    def running() -> bool:
        states = [task.state for task in world.store.tasks()]
        return states == [State.RUNNING] * 2

    first = search(world, *options, **params)
    wait_for(running, LONG_S)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=LONG_S)
    assert "2 trials go on in the queue" in output
    assert first.returncode == 1

    study = studies.existing_study("s", f"journal:///{world.home}/studies.journal")
    second = search(world, *options, **params)
    wait_for(lambda: all(t.intermediate_values for t in study.get_trials()), LONG_S)
    second.kill()
    second.wait()
    gate.touch()
    told = result(search(world, *options, **params))

    runs = world.client.search_runs(["0"])
    assert len(runs) == 3, "no run was made twice"
    parent = world.run_of(told["parent_run_id"])
    assert parent.info.status == "FINISHED"
    trials = {trial["run_id"]: trial for trial in told["trials"]}
    assert len(trials) == len(told["trials"]) == 2
    for run in runs:
        if run.info.run_id == parent.info.run_id:
            continue
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        trial = trials[run.info.run_id]
        assert trial["state"] == "complete"
        assert trial["value"] == run.data.metrics["val_loss"]
        assert repr(trial["params"]["lr"]) == run.data.params["lr"]
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE"] * 2
    assert told["best"]["value"] == min(trial["value"] for trial in told["trials"])


def test_a_trial_that_past_runs_show_to_be_bad_is_pruned(world: World) -> None:
    never = world.root / "never"
    past_runs(world.client, 6, never)
    config = json.dumps({"grace_s": 1, "objective": {"metric": "val_loss"}})
    told = result(
        search(
            world,
            "--n-trials=1",
            "--backend-config",
            config,
            lr="loguniform(0.1,0.5)",
            gate=never,
        )
    )
    assert told["seeded"]["complete"] == 6
    (trial,) = told["trials"]
    assert trial["state"] == "pruned"
    run = world.run_of(trial["run_id"])
    assert run.info.status == "KILLED"
    assert run.data.tags["rlsched.pruned"] == "true"
    assert told["best"]["value"] == 1.0
