"""Trainings whose loop is a framework's: one callback, and they follow, stop and go on."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlflow_rlsched import protocol
from mlflow_rlsched.protocol import Directive, Report, ReportReader
from tests.world import FAULTY, PROJECTS, World, wait_for

SAMPLES = 1437
EPOCHS = {"lightning": 60, "transformers": 24, "keras": 60}
OBJECTIVE = {"lightning": "val_loss", "transformers": "eval_loss", "keras": "val_loss"}
CONFIG = {"policy": "fixed", "decision_interval_s": 3600}
PATIENCE_S = 240


@dataclass(frozen=True)
class Trained:
    """What came of the trainings: one run of each framework, and the run that they made way for."""

    world: World
    runs: dict[str, str]
    other: str

    def attempts(self, framework: str) -> tuple[Path, Path]:
        run_dir = Path(self.world.task(self.runs[framework]).spec.run_dir)
        return protocol.attempt_dir(run_dir, 1), protocol.attempt_dir(run_dir, 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Trains with all frameworks at once, so that waiting for one is not waiting for each."""
    found = [name for name in EPOCHS if importlib.util.find_spec(name) is not None]
    with pytest.MonkeyPatch.context() as patch:
        world = World(tmp_path_factory.mktemp("world"), os.environ, slots=len(found) or 1)
        for name, text in world.env.items():
            patch.setenv(name, text)
        try:
            yield train(world, found)
        finally:
            world.end()


def train(world: World, frameworks: list[str]) -> Trained:
    runs = {
        name: world.submit(PROJECTS / name, params={"epochs": EPOCHS[name]}, config=CONFIG)
        for name in frameworks
    }
    first = {name: world.running(run.run_id, seconds=PATIENCE_S) for name, run in runs.items()}
    for folder in first.values():
        wait_for(lambda at=folder: (at / "report.jsonl").exists() and losses(at), PATIENCE_S)
        # So small batches also take it so long that it cannot end before it is stopped.
        Directive(1, seq=1000, batch_size=16, lr_scale=1e-6).write(folder)
    for name, folder in first.items():
        wait_for(lambda at=folder, of=OBJECTIVE[name]: follows(at, 16, of), PATIENCE_S)
    urgent = {**CONFIG, "priority": 1, "gpus": len(frameworks) or 1}
    other = world.submit(FAULTY, "count", params={"steps": 1}, config=urgent)
    for run in [other, *runs.values()]:
        world.over(run.run_id, PATIENCE_S)
    return Trained(world, {name: run.run_id for name, run in runs.items()}, other.run_id)


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


@pytest.mark.timeout(900)  # the first of them waits for all
@pytest.mark.parametrize("framework", EPOCHS)
def test_a_training_follows_stops_and_goes_on(framework: str, trained: Trained) -> None:
    if framework not in trained.runs:
        pytest.skip(f"{framework} is not installed: pip install 'mlflow-rlsched[{framework}]'")
    world, run_id = trained.world, trained.runs[framework]
    attempts = world.store.attempts(run_id)
    assert [attempt.reason for attempt in attempts] == ["preempted", "finished"]
    assert world.run_of(run_id).info.status == "FINISHED"
    first, second = trained.attempts(framework)
    told = reports(first) + reports(second)
    counts = [report.numbers["samples"] for report in told]
    assert all(before <= after for before, after in itertools.pairwise(counts))
    assert counts[-1] == EPOCHS[framework] * SAMPLES
    assert reports(second)[0].numbers["samples"] == reports(first)[-1].numbers["samples"] > 0
    assert losses(second)[0] == pytest.approx(losses(first)[-1], abs=0.3)
    assert losses(second)[-1] < losses(first)[0]

    history = world.client.get_metric_history(run_id, OBJECTIVE[framework])
    assert history[-1].value < history[0].value
    for folder in (first, second):
        assert "Changing param values" not in (folder / "output.log").read_text()


def test_what_logs_by_itself_makes_no_run_of_its_own(trained: Trained) -> None:
    found = trained.world.client.search_runs(["0"])
    assert {run.info.run_id for run in found} == {*trained.runs.values(), trained.other}
