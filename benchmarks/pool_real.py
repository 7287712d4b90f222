"""Real runs that share two CPU slots: the makespan of many, and what a resize costs."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import Figure
from benchmarks.host import PROJECTS, Host, host

RUNS = 24
METRIC = "val_accuracy"
LOCAL = ("--backend", "local", "--env-manager", "local")
ELASTIC = PROJECTS.parent / "examples" / "elastic"
RESIZED_WITHIN_S = 300.0


def measure(quick: bool) -> list[Figure]:
    """All figures, in about a quarter of an hour; of few and short runs when ``quick``."""
    figures = makespan(mixed(2 if quick else RUNS, 2 if quick else 30))
    return [*figures, resize(1 if quick else 5)]


def mixed(runs: int, epochs: int) -> list[dict[str, str]]:
    """Parameters of the runs: batch size, learning rate, width and seed differ, and the length."""
    grid = itertools.product((32, 64, 128), (3e-4, 3e-3), (16, 48), (0, 1))
    return [
        {
            "batch_size": str(batch),
            "lr": str(rate),
            "width": str(width),
            "seed": str(seed),
            "epochs": str(epochs + epochs * batch // 64),
        }
        for batch, rate, width, seed in itertools.islice(grid, runs)
    ]


def makespan(runs: Sequence[dict[str, str]]) -> list[Figure]:
    """All at once on two slots over one after the other by the local backend; and their metrics."""
    with host(slots=2) as place:
        began = time.perf_counter()
        handles = [_submit(place, PROJECTS / "digits", each, {"policy": "fixed"}) for each in runs]
        if not all(handle.wait() for handle in handles):
            raise RuntimeError("a scheduled run failed: see what it printed above")
        scheduled = time.perf_counter() - began
        began = time.perf_counter()
        for number, each in enumerate(runs):
            parameters = [text for k, v in each.items() for text in ("-P", f"{k}={v}")]
            name = ("--run-name", f"local-{number}")
            place.run("mlflow", "run", str(PROJECTS / "digits"), *LOCAL, *name, *parameters)
            click.echo(f"{number + 1} of {len(runs)} run by the local backend", err=True)
        local = time.perf_counter() - began
        client = _client(place)
        ours = [client.get_run(handle.run_id).data.metrics[METRIC] for handle in handles]
        found = client.search_runs(["0"], "attributes.run_name LIKE 'local-%'", max_results=1000)
        theirs = {run.info.run_name: run.data.metrics[METRIC] for run in found}
    pairs = [(metric, theirs[f"local-{number}"]) for number, metric in enumerate(ours)]
    return _compared(scheduled, local, pairs)


def _compared(scheduled: float, local: float, pairs: Sequence[tuple[float, float]]) -> list[Figure]:
    note = f"{len(pairs)} runs of projects/digits, one thread each, on two slots, policy fixed"
    return [
        Figure(
            "makespan / one after the other by the local backend",
            scheduled / local,
            "times",
            0.6,
            local,
            f"{note}; {scheduled:.0f} s; baseline: seconds one after the other",
        ),
        Figure(
            f"final {METRIC}, largest difference",
            max(abs(ours - theirs) for ours, theirs in pairs),
            "",
            0.0,
            statistics.fmean(theirs for _, theirs in pairs),
            "the same seeds; baseline: mean under the local backend",
        ),
    ]


def resize(times: int) -> Figure:
    """Seconds from a decision to the first word of the next attempt, but for the start-up."""
    with host(slots=2) as place:
        pauses = [_pause(place) for _ in range(times)]
        starts = [_start_up(place, number) for number in range(times)]
    pause, start = statistics.median(pauses), statistics.median(starts)
    note = (
        f"examples/elastic from two ranks to one, as another run waits: median of {times} resizes"
        f" ({pause:.1f} s) less that of {times} starts without a scheduler; baseline: those"
    )
    return Figure("a resize besides the start-up", pause - start, "s", 3.0, start, note)


def _pause(place: Host) -> float:
    """One resize: of a run that holds all there is when its equal comes."""
    gpus = {"initial": 2, "min": 1, "max": 3}
    config = {"policy": "fixed", "gpus": gpus, "decision_interval_s": 2}
    run = _submit(place, ELASTIC, {"epochs": "1000000"}, config)
    log = place.root / "home" / "runs" / run.run_id / "decisions.jsonl"
    _told(log, "number")
    other = _submit(place, PROJECTS / "digits", {"epochs": "2"}, {"policy": "fixed"})
    pause = _told(log, "restart_s")
    for each in (run, other):
        each.cancel()
        each.wait()
    return pause


def _told(log: Path, name: str) -> float:
    """A number of the decisions on a run, or of what its training said, once it is there."""
    deadline = time.monotonic() + RESIZED_WITHIN_S
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        for record in map(json.loads, lines):
            known = {**record["training"], "number": record["number"]}
            if name in known:
                return float(known[name])
        time.sleep(0.5)
    raise RuntimeError(f"no {name} in {log} within {RESIZED_WITHIN_S:.0f} s")


def _start_up(place: Host, number: int) -> float:
    """Seconds from the command of the example, on one rank, to the training's first word."""
    folder = place.root / f"alone-{number}" / "attempts" / "1"
    folder.mkdir(parents=True)
    env = {
        **place.env,
        "RLSCHED_RUN_DIR": str(folder.parent.parent),
        "RLSCHED_ATTEMPT": "1",
        "RLSCHED_ATTEMPT_DIR": str(folder),
        "RLSCHED_CHECKPOINT_DIR": str(folder.parent.parent / "checkpoints"),
    }
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    began = time.time()
    subprocess.run(
        [*command, "1", "train.py", "--epochs", "1"],
        check=True,
        cwd=ELASTIC,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with open(folder / "report.jsonl") as file:
        return float(json.loads(file.readline())["time"]) - began


def _submit(place: Host, project: Path, parameters: dict[str, str], config: dict[str, Any]) -> Any:
    """A run that is queued, and its handle."""
    import mlflow

    os.environ.update(place.env)
    mlflow.set_tracking_uri(place.env["MLFLOW_TRACKING_URI"])
    return mlflow.projects.run(
        str(project),
        parameters=parameters,
        backend="rlsched",
        backend_config=config,
        synchronous=False,
        experiment_id="0",
    )


def _client(place: Host) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(place.env["MLFLOW_TRACKING_URI"])
