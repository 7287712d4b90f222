"""What live decisions are worth on real trainings: policies against a fixed setting, in pairs."""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from benchmarks.figures import Figure, show
from benchmarks.host import PROJECTS, Host, host

POLICIES = ("rules", "ddpg")

GOALS = {"novice": 0.4, "good": 1.02}
"""Most time to the target that a policy may take over fixed, by the start."""


@dataclass(frozen=True)
class Case:
    """A project with the setting that it starts from.

    Attributes:
        project: Name of the project.
        start: ``novice`` or ``good``.
        parameters: Its parameters, but the seed.
        metric: Validation metric that counts.
        target: Its value that has to be reached.
        mode: ``min`` or ``max``.
    """

    project: str
    start: str
    parameters: dict[str, str]
    metric: str
    target: float
    mode: str

    def reached(self, value: float) -> bool:
        """Whether the target is reached."""
        return value >= self.target if self.mode == "max" else value <= self.target


CASES = (
    Case(
        "digits",
        "novice",
        {"batch_size": "8", "lr": "1e-5", "width": "64", "epochs": "45"},
        *("val_accuracy", 0.94, "max"),
    ),
    Case(
        "digits",
        "good",
        {"batch_size": "64", "lr": "1e-3", "width": "128", "epochs": "10"},
        *("val_accuracy", 0.98, "max"),
    ),
    Case(
        "language",
        "novice",
        {"batch_size": "8", "lr": "1e-4", "sequences": "49152"},
        *("val_loss", 2.45, "min"),
    ),
    Case(
        "language",
        "good",
        {"batch_size": "8", "lr": "3e-3", "sequences": "16384"},
        *("val_loss", 1.9, "min"),
    ),
    Case(
        "highlight",
        "novice",
        {"batch_size": "4", "lr": "0.01", "windows": "16384"},
        *("val_accuracy", 0.90, "max"),
    ),
    Case(
        "highlight",
        "good",
        {"batch_size": "16", "lr": "0.3", "windows": "8192"},
        *("val_accuracy", 0.90, "max"),
    ),
    Case(
        "picture",
        "novice",
        {"batch_size": "32", "lr": "3e-4", "pixels": "2621440"},
        *("val_psnr", 26.2, "max"),
    ),
    Case(
        "picture",
        "good",
        {"batch_size": "512", "lr": "0.01", "pixels": "2097152"},
        *("val_psnr", 26.2, "max"),
    ),
)
"""Nothing was chosen by ``highlight`` and ``picture``."""


@dataclass(frozen=True)
class Result:
    """What became of a run.

    Attributes:
        seconds: From the training's first word to the target, or to its end without it.
        reached: Whether it reached the target.
        final: Last value of the metric.
        changes: Decisions that changed something.
    """

    seconds: float
    reached: bool
    final: float
    changes: int


def measure(quick: bool, policies: Sequence[str] = POLICIES) -> list[Figure]:
    """Both figures of each case and policy; 90 minutes, or ``quick``, one seed each, twenty."""
    figures = []
    with host(slots=2) as place:
        for case in CASES:
            for policy in policies:
                pairs = [pair(place, case, policy, seed) for seed in range(1 if quick else 5)]
                figures += _figures(case, policy, pairs)
    return figures


def pair(place: Host, case: Case, policy: str, seed: int) -> tuple[Result, Result]:
    """A run with a fixed setting and one with a policy, at the same time on the same machine."""
    results: dict[str, Result] = {}

    def run(name: str) -> None:
        results[name] = train(place, case, name, f"{policy}-{seed}")

    threads = [threading.Thread(target=run, args=(name,)) for name in ("fixed", policy)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    click.echo(f"{case.project} {case.start} {seed}: {results}", err=True)
    return results["fixed"], results[policy]


def train(place: Host, case: Case, policy: str, pair: str) -> Result:
    """Run a project to its end."""
    name = f"{case.project}-{case.start}-{policy}-of-{pair}"
    seed = pair.rpartition("-")[2]
    parameters = [p for k, v in case.parameters.items() for p in ("-P", f"{k}={v}")]
    place.run(
        *("mlflow", "run", str(PROJECTS / case.project), "--backend", "rlsched"),
        *("--backend-config", json.dumps({"policy": policy}), "--run-name", name),
        *(*parameters, "-P", f"seed={seed}"),
    )
    return result(place, case, name)


def result(place: Host, case: Case, name: str) -> Result:
    """What a run's metrics say."""
    from mlflow import MlflowClient

    client = MlflowClient(place.env["MLFLOW_TRACKING_URI"])
    (run,) = client.search_runs(["0"], f"attributes.run_name = '{name}'")
    run_dir = place.root / "home" / "runs" / run.info.run_id
    with open(run_dir / "attempts" / "1" / "report.jsonl") as file:
        began = json.loads(file.readline())["time"]
    history = client.get_metric_history(run.info.run_id, case.metric)
    at = [p.timestamp for p in history if case.reached(p.value)]
    lines = (run_dir / "decisions.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return Result(
        (min(at) if at else history[-1].timestamp) / 1000 - began,
        bool(at),
        history[-1].value,
        sum(record["setting"] != record["before"] for record in records),
    )


def _figures(case: Case, policy: str, pairs: list[tuple[Result, Result]]) -> list[Figure]:
    # A fixed run that never got there is taken as if it had at its end: a bound in its favour.
    ratios = [
        tuned.seconds / fixed.seconds if tuned.reached else float("inf") for fixed, tuned in pairs
    ]
    worse = [
        fixed.final - tuned.final if case.mode == "max" else tuned.final - fixed.final
        for fixed, tuned in pairs
    ]
    missed = sum(not fixed.reached for fixed, _ in pairs)
    what = f"{case.project} from a {case.start} setting"
    parameters = ", ".join(f"{k}={v}" for k, v in case.parameters.items())
    note = (
        f"{parameters}; {case.metric} {case.target:g}; median of {len(pairs)} pairs, from"
        f" {min(ratios):.2f} to {max(ratios):.2f}; {missed} fixed runs never got there; median of"
        f" {statistics.median(tuned.changes for _, tuned in pairs):g} changes; baseline: seconds"
    )
    return [
        Figure(
            f"{what}: time to target, {policy} / fixed",
            statistics.median(ratios),
            "times",
            GOALS[case.start],
            statistics.median(fixed.seconds for fixed, _ in pairs),
            note,
        ),
        Figure(
            f"{what}: final {case.metric}, {policy} worse than fixed by",
            statistics.median(worse),
            "",
            0.005 if case.mode == "max" else 0.02,
            statistics.median(fixed.final for fixed, _ in pairs),
            "median difference; the goal is what seeds alone make of it",
        ),
    ]


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--quick", is_flag=True, help="One seed each.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(POLICIES), help="Both by default."
)
def main(as_json: bool, quick: bool, policies: tuple[str, ...]) -> None:
    show(measure(quick, policies or POLICIES), as_json)


if __name__ == "__main__":
    main()
