"""``rlsched simulate``: what a scheduler would make of a workload."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mlflow_rlsched.cli.common import WrongUsage, json_option, print_json
from mlflow_rlsched.words import duration

POLICIES = ("fixed", "backfill", "shortest", "tiresias", "optimus", "goodput", "flowtime")

_FOLDER = click.Path(path_type=Path)


class Seconds(click.FloatRange):
    """A number in a range; not a number at all is in none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


@click.command()
@click.option(
    "--profiles",
    required=True,
    metavar="DIR",
    type=_FOLDER,
    help="Folder with a folder for each application: placements.csv, scalability.csv and"
    " validation-<batch size>.csv as in the public simulator of Pollux.",
)
@click.option(
    "--workload",
    required=True,
    metavar="FILE",
    type=_FOLDER,
    help="CSV file with the columns name, time, application, num_replicas, batch_size.",
)
@click.option("--policy", required=True, type=click.Choice(POLICIES), help="The scheduler.")
@click.option("--nodes", default=16, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--gpus-per-node", default=4, show_default=True, type=click.IntRange(1, 1_000))
@click.option(
    "--interval",
    default=60.0,
    show_default=True,
    type=Seconds(min=1, max=1e6),
    help="Seconds between two decisions.",
)
@click.option(
    "--restart",
    default=30.0,
    show_default=True,
    type=Seconds(min=0, max=1e6),
    help="Seconds that a job loses whenever it is given other GPUs.",
)
@json_option
def simulate(
    profiles: Path,
    workload: Path,
    policy: str,
    nodes: int,
    gpus_per_node: int,
    interval: float,
    restart: float,
    as_json: bool,
) -> None:
    """Replay a workload of measured applications on a simulated cluster.

    fixed gives each job what it asks for, first come, first served; backfill lets others pass
    where they delay nobody; shortest serves first who has least left to do, tiresias who has had
    least; optimus gives GPUs to where one more saves the most time. goodput and flowtime choose
    GPUs and batch size by what jobs measure: so that none is slow, or that jobs are done soon on
    average. GPU-hours and restarts are those of all jobs together. With --json it also says which
    job held what when: kept in the folder simulations of rlsched (~/.rlsched), the dashboard shows
    it.
    """
    from mlflow_rlsched.simulator.cluster import Pool, figures, replay, schedule
    from mlflow_rlsched.simulator.profiles import DataError
    from mlflow_rlsched.simulator.schedulers import SCHEDULERS
    from mlflow_rlsched.simulator.workload import read_workload

    pool = Pool(nodes, gpus_per_node, interval, restart)
    try:
        specs = read_workload(workload, profiles)
        jobs = replay(specs, SCHEDULERS[policy](), pool)
    except DataError as error:
        raise WrongUsage(str(error)) from error
    found = figures(jobs, pool)
    if as_json:
        about = {"policy": policy, "workload": workload.stem, "pool": asdict(pool)}
        print_json(found | about | {"jobs": schedule(jobs)})
        return
    click.echo(f"{found['finished']} jobs on {pool.gpus} GPUs with {policy}")
    for name, words in (
        ("avg_jct_s", "completion, mean"),
        ("p50_jct_s", "completion, median"),
        ("p99_jct_s", "completion, 99th percentile"),
        ("makespan_s", "first submission to last end"),
    ):
        click.echo(f"{words:<32}{duration(found[name])}")
    click.echo(f"{'GPU-hours':<32}{found['gpu_hours']:.1f}")
    click.echo(f"{'part of the GPUs held':<32}{found['utilisation']:.0%}")
    click.echo(f"{'restarts':<32}{found['restarts']:.0f}")
