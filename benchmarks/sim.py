"""What policies are worth on simulated runs that nothing was fitted to or chosen by."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import click
import numpy as np

from benchmarks import sim_figures, sim_learning
from benchmarks.figures import Figure, show
from benchmarks.sim_policies import HINDSIGHT, WORKERS, contenders, side_by_side
from benchmarks.sim_starts import SEED, RaisedRate, VaryingMemory, imagenet
from benchmarks.sim_tuned import tuned
from mlflow_rlsched.learning.comparison import HELD_OUT, Chosen, novice
from mlflow_rlsched.learning.parallel import spread
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.simulator.drawing import applications
from mlflow_rlsched.simulator.parameters import Effects
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.versions import SHIPPED, VersionNotFoundError, Versions

AXES = {
    "measured axes": replace(Effects(), learning_rate=False),
    "with the rate's axis": Effects(),
}
"""Devices and batch alone, and with the axis of the learning rate fitted to our trainings."""

JUMP = 0.1
"""Length of a jump of the rate over that of the run."""


PARTS = ("novice", "tuned", "idle", "memory", "jump", "learning")
"""What is measured: starts of novices and tuned ones, idle devices, memory, jumps of the rate, and
what is learned from runs of a new workload and from nothing."""


def measure(
    quick: bool,
    version: Version | None,
    apps: tuple[str, ...] = HELD_OUT,
    parts: Sequence[str] = PARTS,
) -> list[Figure]:
    """The figures of some parts; all take an hour on two cores."""
    count = 20 if quick else 200
    policies = contenders(version)
    with_hindsight = {**policies, HINDSIGHT: HINDSIGHT}
    cases: dict[str, tuple[Runs, Mapping[str, Chosen]]] = {}
    crowded = VaryingMemory(count, apps)
    novices = {axis: novice(count, SEED, apps, effects) for axis, effects in AXES.items()}
    if "novice" in parts:
        cases |= {f"novice, {axis}": (runs, with_hindsight) for axis, runs in novices.items()}
    if "tuned" in parts:
        begun = dict(spread(tuned, list(novices.values()), WORKERS))
        cases |= {f"tuned, {axis}": (begun[n], with_hindsight) for n, axis in enumerate(novices)}
    if "idle" in parts:
        cases["idle"] = imagenet(count), policies
    if "memory" in parts:
        cases["memory"] = crowded, policies
    if "jump" in parts:
        cases["jump"] = RaisedRate(count, apps, JUMP), policies
        cases["raise"] = RaisedRate(count, apps, np.inf), policies
    played = side_by_side(cases)
    figures = []
    for name, found in played.items():
        if name.startswith("novice"):
            figures += sim_figures.novice(name, found)
        elif name.startswith("tuned"):
            figures += sim_figures.tuned(name, found, _apps(cases[name][0], apps))
    if "idle" in parts:
        figures += sim_figures.idle("ImageNet, novice on 8 of 16", played["idle"])
    if "memory" in parts:
        held = crowded.most_samples() * crowded.settings.gpus
        at_once = int(np.sum(held < crowded.settings.batch))
        figures += sim_figures.interruptions("near the memory's limit", played["memory"], at_once)
    if "jump" in parts:
        figures += sim_figures.recovery("rate too high for a tenth of the run", played["jump"])
        figures += sim_figures.recovery("rate too high for good", played["raise"])
    if "learning" in parts and version is not None:
        size = sim_learning.QUICK if quick else sim_learning.Size()
        figures += sim_learning.measure(version, size)
    return figures


def _apps(runs: Runs, apps: tuple[str, ...]) -> Array:
    """The application of each run, by its base batch."""
    named = {float(applications()[app]["batch"][0]): app for app in apps}
    return np.array([named[float(batch)] for batch in runs.parameters.base_batch])


def _version(text: str | None) -> Version | None:
    """The version to measure; None, and a sentence, where there is none."""
    if text is None and not SHIPPED.exists():
        print("ddpg is left out: no policy is shipped, and --policy names none", file=sys.stderr)
        return None
    try:
        return Versions().find(text or "shipped")
    except (VersionNotFoundError, PolicyFileError) as error:
        raise click.ClickException(str(error)) from error


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--quick", is_flag=True, help="Fewer and shorter runs, to try the command.")
@click.option("--policy", help="Version of ddpg: its name or file; the shipped one by default.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="All by default.")
def main(as_json: bool, quick: bool, policy: str | None, parts: tuple[str, ...]) -> None:
    show(measure(quick, _version(policy), parts=parts or PARTS), as_json)


if __name__ == "__main__":
    main()
