"""``rlsched policy evaluate``: a policy beside those that need no training, on simulated runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import (
    WrongUsage,
    json_option,
    plain,
    print_json,
    print_table,
    progress_bar,
    seed_option,
    table,
    workers_option,
)
from mlflow_rlsched.cli.experiments import experiment_option, fit_in_words, fitted_to

if TYPE_CHECKING:
    from mlflow_rlsched.learning.comparison import Chosen, Comparison
    from mlflow_rlsched.learning.evaluation import Played
    from mlflow_rlsched.simulator.run import Source


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--apps",
    metavar="APP,…",
    help="Measured applications that the runs are like; by default those that no policy is trained"
    " on.",
)
@experiment_option
@click.option("--runs", default=64, show_default=True, type=click.IntRange(1, 100_000))
@seed_option
@workers_option("Processes; the figures do not depend on it.")
@json_option
def evaluate(
    name: str | None,
    apps: str | None,
    experiment: str | None,
    runs: int,
    seed: int,
    workers: int,
    as_json: bool,
) -> None:
    """Compare a policy with fixed, rules and goodput on the same simulated runs.

    NAME is a version's name or the beginning of it, shipped, the path of a file, or else fixed,
    rules or goodput; by default it is the champion. The runs begin as those of a novice, at the
    base batch and with a learning rate up to 10 times off; with --from-experiment as those that
    were recorded.
    """
    from mlflow_rlsched.learning.comparison import POLICIES, compare

    if apps is not None and experiment is not None:
        raise WrongUsage("give either --apps or --from-experiment: both say what the runs are like")
    shown, chosen = _chosen(name)
    source, origin = _source(apps, experiment)
    policies = {each: each for each in POLICIES} | {shown: chosen}
    played = _played(policies, source, runs, seed, workers)
    over_fixed = {each: compare(found, played["fixed"]) for each, found in played.items()}
    others = [each for each in POLICIES if each not in ("fixed", shown)]
    over_others = {each: compare(played[shown], played[each]) for each in others}
    if as_json:
        about = {"policy": shown, "simulated": True, "runs": runs, "seed": seed} | origin
        figures = {"over_fixed": over_fixed, "over_others": over_others}
        told = {of: {each: asdict(v) for each, v in row.items()} for of, row in figures.items()}
        print_json(about | told)
        return
    click.echo(f"{shown} on {runs} simulated runs {_in_words(origin)}\n")
    _print(shown, over_fixed, over_others)


def _chosen(name: str | None) -> tuple[str, Chosen]:
    """The policy that is evaluated, with its name in the table."""
    from mlflow_rlsched.learning.comparison import POLICIES
    from mlflow_rlsched.policy.checkpoint import PolicyFileError
    from mlflow_rlsched.versions import Versions

    versions = Versions()
    if name is not None:
        if name in POLICIES:
            return name, name
        version = versions.find(name)
        return f"ddpg {version.name}", version
    try:
        champion = versions.champion()
    except PolicyFileError as error:
        text = f"{error}; or name what to evaluate, such as `rlsched policy evaluate rules`"
        raise click.ClickException(text) from error
    if champion.trouble:
        click.echo(f"Warning: {champion.trouble}", err=True)
    return f"ddpg {champion.version.name}", champion.version


def _source(apps: str | None, experiment: str | None) -> tuple[Source, dict[str, Any]]:
    """Where the runs come from, and the same as JSON values."""
    from mlflow_rlsched.learning.comparison import HELD_OUT, novice
    from mlflow_rlsched.simulator.drawing import applications

    if experiment is None:
        names = HELD_OUT if apps is None else tuple(each.strip() for each in apps.split(","))
        for each in names:
            if each not in applications():
                known = ", ".join(applications())
                raise WrongUsage(f"--apps: no measured application {each!r}, only {known}")
        return partial(novice, apps=names), {"apps": list(names)}
    workload = fitted_to(experiment)
    return workload.runs, {"experiment": experiment, "fit": workload.figures()}


def _played(
    policies: Mapping[str, Chosen], source: Source, runs: int, seed: int, workers: int
) -> dict[str, Played]:
    from mlflow_rlsched.learning.comparison import side_by_side
    from mlflow_rlsched.learning.parallel import WorkerError

    with progress_bar() as bar:
        task = bar.add_task("playing runs", total=None)

        def tell(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        try:
            return side_by_side(policies, source, runs, seed, workers, tell)
        except WorkerError as error:
            raise click.ClickException(str(error)) from error


def _in_words(origin: Mapping[str, Any]) -> str:
    if "fit" in origin:
        return f"like those of {plain(origin['experiment'])}\n{fit_in_words(origin['fit'])}"
    return f"of {', '.join(origin['apps'])}, as a novice starts them"


def _print(
    shown: str, over_fixed: Mapping[str, Comparison], over_others: Mapping[str, Comparison]
) -> None:
    headings = ["TIME", "GEOMETRIC MEAN", "DEVICE-HOURS"]
    rows = [
        [each, *_ratios(found), f"{found.reached:.0%}", _rescued(found)]
        for each, found in over_fixed.items()
    ]
    print_table(table(["OVER FIXED", *headings, "GOT THERE", "RESCUED"], rows))
    rows = [[f"over {each}", *_ratios(found)] for each, found in over_others.items() if found.pairs]
    if rows:
        click.echo()
        print_table(table([shown, *headings], rows))
    fixed = over_fixed["fixed"]
    click.echo(
        "\nTIME is that to the target over the other policy's, mean and 95 % interval, on the runs"
        f" that the other one brings there (fixed: {fixed.pairs}); a run that does not get there"
        " counts with the time for which it was followed."
    )
    if fixed.lost:
        click.echo(
            f"RESCUED are those that get there of the {fixed.lost} that never do with fixed."
        )
    click.echo("All of this is simulated: it compares policies, and foretells no real training.")


def _ratios(found: Comparison) -> list[str]:
    if found.time is None or found.geometric is None or found.device_hours is None:
        return [""] * 3
    time = f"{found.time.value:.2f}"
    if found.time.low < found.time.high:
        time += f" ({found.time.low:.2f} to {found.time.high:.2f})"
    return [time, f"{found.geometric:.2f}", f"{found.device_hours:.2f}"]


def _rescued(found: Comparison) -> str:
    return f"{found.rescued} of {found.lost}" if found.lost else ""
