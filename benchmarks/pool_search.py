"""Learns the numbers with which the pool level weighs, and says what they bring.

The cross-entropy method (Rubinstein 1999, "The cross-entropy method for combinatorial and
continuous optimization"): numbers are drawn, the best of them say where the next are drawn. Each
is judged by drawn workloads, beside the numbers that were set by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.pool import unseen
from mlflow_rlsched import __version__
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.weighing import Weighing
from mlflow_rlsched.simulator.cluster import Pool, figures, replay
from mlflow_rlsched.simulator.goodput_schedulers import FlowTime
from mlflow_rlsched.simulator.workload import JobSpec

RANGES = {"patience_s": (60.0, 1800.0), "growth": (2.0, 16.0), "newcomer": (0.0, 1.5)}
"""Where the numbers are looked for: what a restart must pay in, how boldly more devices are tried,
and how much a run has left that is not known yet. The others stay as they were set by hand."""

_BY_LOGARITHM = ("patience_s", "growth")

TRAINING = range(300, 305)
VALIDATION = range(400, 408)
"""Seeds of workloads; those of ``benchmarks.pool`` are others."""

SMALL = Pool(nodes=8)
JOBS = 80
"""Where the numbers are looked for, to be quick; they are validated on twice as much of both."""

COUNTS = {"avg_jct_s": 1.0, "p99_jct_s": 0.1, "gpu_hours": 0.1}
"""How much the logarithms of what a replay came to, over the hand-set numbers', count."""

SPREAD = 0.25
"""Standard deviation of the first draws, as part of the range."""

SPREAD_MIN = 0.02


@dataclass(frozen=True)
class Search:
    """How long it is looked.

    Attributes:
        rounds: Rounds.
        drawn: Numbers that are tried in each.
        best: How many of them the next round is drawn from.
    """

    rounds: int = 5
    drawn: int = 8
    best: int = 3


def encoded(weighing: Weighing) -> Array:
    """(3,) each number's place in its range, 0 to 1."""
    found = []
    for name, (low, high) in RANGES.items():
        value = getattr(weighing, name)
        if name in _BY_LOGARITHM:
            low, high, value = np.log([low, high, value])
        found.append((value - low) / (high - low))
    return np.array(found)


def decoded(places: Array) -> Weighing:
    """What ``encoded`` came from."""
    found = {}
    for (name, (low, high)), place in zip(RANGES.items(), places, strict=True):
        if name in _BY_LOGARITHM:
            found[name] = float(low * (high / low) ** place)
        else:
            found[name] = float(low + (high - low) * place)
    return Weighing(**found)


@dataclass(frozen=True)
class Workload:
    """Jobs, their pool, and what the hand-set numbers come to with them."""

    jobs: Sequence[JobSpec]
    pool: Pool
    by_hand: Mapping[str, float]


def workloads(seeds: Sequence[int], jobs: int, pool: Pool) -> list[Workload]:
    """Drawn workloads of as many jobs."""
    found = []
    for case in unseen(seeds, jobs):
        fitting = [replace(job, gpus=min(job.gpus, pool.gpus)) for job in case.jobs]
        found.append(Workload(fitting, pool, results(fitting, pool, Weighing())))
    return found


def results(jobs: Sequence[JobSpec], pool: Pool, weighing: Weighing) -> dict[str, float]:
    """What a replay came to."""
    return figures(replay(jobs, FlowTime(weighing=weighing), pool), pool)


def losses(weighing: Weighing, on: Sequence[Workload]) -> Array:
    """(W,) how much worse than the hand-set numbers, as a weighted mean of logarithms."""
    found = []
    for each in on:
        result = results(each.jobs, each.pool, weighing)
        terms = (part * np.log(result[k] / each.by_hand[k]) for k, part in COUNTS.items())
        found.append(sum(terms))
    return np.array(found)


def search(how: Search, on: Sequence[Workload], seed: int) -> Weighing:
    """The middle of where the best numbers were drawn at last."""
    random = np.random.default_rng(seed)
    middle, spread = encoded(Weighing()), np.full(len(RANGES), SPREAD)
    for number in range(how.rounds):
        tried = np.clip(random.normal(middle, spread, (how.drawn, len(RANGES))), 0, 1)
        tried[0] = middle
        judged = np.array([losses(decoded(places), on).mean() for places in tried])
        best = tried[judged.argsort()[: how.best]]
        middle, spread = best.mean(0), np.maximum(best.std(0), SPREAD_MIN)
        text = f"round {number + 1}: {judged[0]:+.4f} in the middle, {judged.min():+.4f} the best"
        click.echo(f"{text}, now {decoded(middle)}", err=True)
    return decoded(middle)


def described(found: Weighing, how: Search, seed: int, jobs: int) -> dict[str, Any]:
    """The numbers with their provenance, and how they do where they were not looked for."""
    loss = losses(found, workloads(VALIDATION, 2 * jobs, Pool()))
    return {
        "weighing": {name: float(f"{value:.3g}") for name, value in asdict(found).items()},
        "made_by": {
            "version": __version__,
            "seed": seed,
            "search": asdict(how),
            "jobs": jobs,
            "training": [TRAINING.start, TRAINING.stop],
            "validation": [VALIDATION.start, VALIDATION.stop],
            "validation_loss": float(loss.mean()),
            "validation_error": float(loss.std(ddof=1) / np.sqrt(len(loss))),
        },
    }


@click.command(help=__doc__)
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option("--quick", is_flag=True, help="A round on small workloads, to try the command.")
def main(output: Path, seed: int, quick: bool) -> None:
    how, jobs = (Search(1, 2, 1), 8) if quick else (Search(), JOBS)
    found = search(how, workloads(TRAINING, jobs, SMALL), seed)
    about = described(found, how, seed, jobs)
    output.write_text(json.dumps(about, indent=2) + "\n")
    click.echo(json.dumps(about, indent=2))


if __name__ == "__main__":
    main()
