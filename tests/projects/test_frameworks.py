"""Trainings whose loop is a framework's: one callback, and they follow, stop and go on."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest

from mlflow_rlsched import protocol
from mlflow_rlsched.protocol import Directive, Report, ReportReader
from tests.world import FAULTY, PROJECTS, World, wait_for

SAMPLES = 1437
EPOCHS = {"lightning": 60, "transformers": 24, "keras": 60}
OBJECTIVE = {"lightning": "val_loss", "transformers": "eval_loss", "keras": "val_loss"}
CONFIG = {"policy": "fixed", "gpus": 2, "decision_interval_s": 3600}


def reports(folder: Path) -> list[Report]:
    return list(ReportReader(folder / "report.jsonl").poll())


def losses(folder: Path) -> list[float]:
    return [report.numbers["loss"] for report in reports(folder) if "loss" in report.numbers]


def follows(folder: Path, batch: int, objective: str) -> bool:
    """Whether the training saw such batches, and learnt nothing from them at so low a rate."""
    told = [report for report in reports(folder) if report.numbers.get("applied_seq") == 1000]
    sizes = [v for r in told for name, v in r.metrics.items() if name.endswith("largest_batch")]
    values = [report.metrics[objective] for report in told if objective in report.metrics]
    return batch in sizes and len(values) >= 3 and values[-1] == pytest.approx(values[-2], abs=1e-3)


@pytest.mark.parametrize("framework", EPOCHS)
def test_a_training_follows_stops_and_goes_on(framework: str, world: World) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install 'mlflow-rlsched[{framework}]'")
    epochs = EPOCHS[framework]
    run = world.submit(PROJECTS / framework, params={"epochs": epochs}, config=CONFIG)
    first = world.running(run.run_id, seconds=240)
    wait_for(lambda: (first / "report.jsonl").exists() and losses(first), 240)
    # So small batches also take it so long that it cannot end before it is stopped.
    Directive(1, seq=1000, batch_size=16, lr_scale=1e-6).write(first)
    wait_for(lambda: follows(first, 16, OBJECTIVE[framework]), 240)
    urgent = {**CONFIG, "priority": 1}
    other = world.submit(FAULTY, "count", params={"steps": 1}, config=urgent)
    assert run.wait()
    world.over(run.run_id)

    attempts = world.store.attempts(run.run_id)
    assert [attempt.reason for attempt in attempts] == ["preempted", "finished"]
    second = protocol.attempt_dir(Path(world.task(run.run_id).spec.run_dir), 2)
    told = reports(first) + reports(second)
    counts = [report.numbers["samples"] for report in told]
    assert all(before <= after for before, after in itertools.pairwise(counts))
    assert counts[-1] == epochs * SAMPLES
    assert reports(second)[0].numbers["samples"] == reports(first)[-1].numbers["samples"] > 0
    assert losses(second)[0] == pytest.approx(losses(first)[-1], abs=0.3)
    assert losses(second)[-1] < losses(first)[0]

    found = world.client.search_runs(["0"])
    assert {each.info.run_id for each in found} == {run.run_id, other.run_id}
    assert world.run_of(run.run_id).info.status == "FINISHED"
    history = world.client.get_metric_history(run.run_id, OBJECTIVE[framework])
    assert history[-1].value < history[0].value
    for folder in (first, second):
        assert "Changing param values" not in (folder / "output.log").read_text()
