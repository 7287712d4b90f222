"""Many runs that share devices: simulated on 64 GPUs by scheduler, or real ones on two slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from benchmarks import pool_real
from benchmarks.figures import Figure, show
from benchmarks.pool_workloads import drawn, workload
from mlflow_rlsched.simulator.cluster import Pool, Scheduler, figures, replay
from mlflow_rlsched.simulator.goodput_schedulers import FlowTime
from mlflow_rlsched.simulator.profiles import DataError
from mlflow_rlsched.simulator.schedulers import SCHEDULERS
from mlflow_rlsched.simulator.workload import JobSpec, read_workload

OURS = "flowtime"
ALONE = "flowtime, nothing shared"
"""Ours without what jobs of one application learn from each other."""

PUBLISHED = (2089.0, 3323.0, 2189.0, 2721.0)
"""Mean completion times of Pollux on its four workloads, seconds."""

PUBLISHED_FIRST = {"p99_jct_s": 11.1 * 3600, "gpu_hours": 7.08 * 160}
"""What else was published of Pollux on the first."""

SEEDS = (701, 702, 703, 704)
"""Of the drawn workloads: none was looked at when the schedulers were made."""

AIMS = {"tiresias": 0.7, "optimus": 0.6}
"""Mean completion time over that of a scheduler, at most."""

AIM = 0.85
"""Mean completion time over that of Pollux, at most."""

MEASURES = {
    "avg_jct_s": ("mean completion", "s"),
    "p50_jct_s": ("median completion", "s"),
    "p99_jct_s": ("99th percentile", "s"),
    "gpu_hours": ("GPU-hours", "h"),
}

Results = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Case:
    """A workload to replay.

    Attributes:
        name: What the figures are called by.
        jobs: Its jobs.
        published: Figures of Pollux on it, by their names in a replay's.
    """

    name: str
    jobs: Sequence[JobSpec]
    published: Mapping[str, float]


def measure(quick: bool, data: Path | None) -> list[Figure]:
    """The figures of the measured workloads, where there are any, and of drawn ones."""
    pool = Pool(nodes=4) if quick else Pool()
    cases = [] if data is None else measured(data)[: 1 if quick else None]
    cases += unseen(SEEDS[: 1 if quick else None], jobs=24 if quick else 160)
    schedulers: dict[str, Callable[[], Scheduler]] = {
        **SCHEDULERS,
        ALONE: lambda: FlowTime(shared=False),
    }
    if quick:
        cases = [replace(case, jobs=_smaller(case.jobs, pool), published={}) for case in cases]
    found = []
    for case in cases:
        replays = {name: replay(case.jobs, make(), pool) for name, make in schedulers.items()}
        results = {name: figures(jobs, pool) for name, jobs in replays.items()}
        found += compared(case, results)
    return found


def _smaller(jobs: Sequence[JobSpec], pool: Pool) -> list[JobSpec]:
    return [replace(job, gpus=min(job.gpus, pool.gpus)) for job in jobs[:24]]


def measured(data: Path) -> list[Case]:
    """The public workloads of Pollux: ``workloads`` and ``traces`` in a folder."""
    return [
        Case(
            f"workload-{number}",
            read_workload(data / "workloads" / f"workload-{number}.csv", data / "traces"),
            {"avg_jct_s": mean, **(PUBLISHED_FIRST if number == 1 else {})},
        )
        for number, mean in enumerate(PUBLISHED, 1)
    ]


def unseen(seeds: Sequence[int], jobs: int) -> list[Case]:
    """Drawn workloads of drawn applications."""
    cases = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        cases.append(Case(f"drawn {seed}", workload(random, drawn(random), jobs), {}))
    return cases


def compared(case: Case, results: Results) -> list[Figure]:
    """Ours beside the others on one workload."""
    ours, pollux = results[OURS], results["goodput"]
    found = []
    for key, (words, unit) in MEASURES.items():
        others = ", ".join(
            f"{name} {result[key]:.0f}" for name, result in results.items() if name != OURS
        )
        goal = case.published.get(key, pollux[key])
        by = "published for Pollux" if key in case.published else "the goodput scheduler's"
        note = f"goal: {by}; {others}"
        found.append(Figure(f"{case.name}: {words}", ours[key], unit, goal, pollux[key], note))
    mean = ours["avg_jct_s"]
    for name, aim in AIMS.items():
        other = results[name]["avg_jct_s"]
        words = f"{case.name}: mean completion over {name}"
        found.append(Figure(words, mean / other, "", aim, other, "simulated"))
    other = case.published.get("avg_jct_s", pollux["avg_jct_s"])
    words = f"{case.name}: mean completion over Pollux"
    note = "as published" if case.published else "the goodput scheduler"
    return [*found, Figure(words, mean / other, "", AIM, other, note)]


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--quick", is_flag=True, help="Fewer and smaller workloads, to try the command.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder with traces and workloads of the public simulator of Pollux; without it, only"
    " drawn workloads are replayed.",
)
@click.option("--real", is_flag=True, help="Real runs of projects/digits and examples/elastic.")
def main(as_json: bool, quick: bool, data: Path | None, real: bool) -> None:
    if real:
        show(pool_real.measure(quick), as_json)
        return
    if data is None:
        click.echo("the measured workloads are left out: --data names no folder", err=True)
    try:
        found = measure(quick, data)
    except DataError as error:
        raise click.ClickException(str(error)) from error
    show(found, as_json)


if __name__ == "__main__":
    main()
