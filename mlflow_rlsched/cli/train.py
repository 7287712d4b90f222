"""``rlsched policy train``: a policy version from nothing, on simulated runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.asking import ask_server
from mlflow_rlsched.cli.common import (
    WrongUsage,
    json_option,
    plain,
    print_json,
    progress_bar,
    seed_option,
    workers_option,
)
from mlflow_rlsched.cli.experiments import experiment_option, fit_in_words, fitted_to
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.signals import handling

if TYPE_CHECKING:
    from mlflow_rlsched.learning.mlflow_log import Log
    from mlflow_rlsched.learning.pretraining import Pretraining
    from mlflow_rlsched.policy.checkpoint import Version
    from mlflow_rlsched.simulator.run import Source

EVERY = 10
"""Rounds between two checkpoints."""


@click.command()
@click.option("--rounds", default=150, show_default=True, type=click.IntRange(1, 100_000))
@click.option(
    "--runs",
    default=512,
    show_default=True,
    type=click.IntRange(8, 100_000),
    help="Simulated runs side by side.",
)
@seed_option
@experiment_option
@workers_option(
    "Processes that the simulated runs are split over. The policy depends on it as on the seed; a"
    " training may go on with another number."
)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the training keeps how far it is; by default policies/training in the folder of"
    " rlsched. The same command goes on from there.",
)
@json_option
def train(
    rounds: int,
    runs: int,
    seed: int,
    experiment: str | None,
    workers: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Train a policy on simulated runs, from random weights.

    An interrupted training goes on when the same command is given again. The version that comes out
    is listed by `rlsched policy list`; `rlsched policy evaluate` says what it is worth, and
    `rlsched policy promote` makes it the champion.
    """
    try:
        import torch
    except ImportError as error:
        raise click.ClickException(
            "training needs PyTorch, which is not installed: pip install torch"
        ) from error
    from mlflow_rlsched.learning.pretraining import Plan, Pretraining
    from mlflow_rlsched.versions import Versions

    torch.set_num_threads(max(1, os.cpu_count() or 1))
    versions = Versions()
    folder = folder or versions.folder / "training"
    source, origin = _source(experiment)
    plan = Plan(rounds=rounds, runs=runs)
    settings = {"plan": asdict(plan), "seed": seed, "runs_like": origin}
    training = Pretraining(plan, seed, source, workers)
    told = _go_on(training, folder, settings)
    log, run_id = _log(told, settings)
    loss = _trained(training, folder, settings, run_id, log)
    version = _version(training, settings | {"workers": workers})
    path = versions.add(version)
    log.metrics({"critics/loss": loss}, training.round)
    log.figures({"version": version.name, "card": dict(version.card)})
    log.end()
    (folder / "state.pt").unlink(missing_ok=True)
    if as_json:
        print_json({"version": version.name, "path": str(path), "run_id": run_id})
        return
    click.echo(f"version {version.name} is trained: {path}")
    click.echo(f"what it is worth: rlsched policy evaluate {version.name}")


def _source(experiment: str | None) -> tuple[Source, Any]:
    """Where the runs come from, and what the model card says of it."""
    from mlflow_rlsched.learning.pretraining import TRAINED_ON, drawn

    if experiment is None:
        return partial(drawn, apps=TRAINED_ON), list(TRAINED_ON)
    workload = fitted_to(experiment)
    click.echo(fit_in_words(workload.figures()), err=True)
    return workload.runs, {"experiment": experiment, "fit": workload.figures()}


def _go_on(training: Pretraining, folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Take up what an interrupted training left; the id of its run of MLflow."""
    import torch

    file = folder / "state.pt"
    if not file.exists():
        return None
    try:
        state = torch.load(file, weights_only=True)
        told = json.loads(state["settings"])
        if told != json.loads(json.dumps(settings)):
            raise WrongUsage(
                f"{folder} holds a training with other settings ({told}): give these, another"
                " --folder, or remove it"
            )
        training.resume(state)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as error:
        raise WrongUsage(
            f"{file} holds no training that can go on ({plain(error)}): remove it, or give"
            " another --folder"
        ) from error
    click.echo(f"going on after round {training.round}", err=True)
    run_id = state["run_id"]
    return str(run_id) if run_id else None


def _trained(
    training: Pretraining, folder: Path, settings: Mapping[str, Any], run_id: str | None, log: Log
) -> float:
    """All rounds that are left, then the critics, whose loss it returns."""
    from mlflow_rlsched.learning.parallel import WorkerError

    rounds, kept = settings["plan"]["rounds"], training.round
    told = {"settings": json.dumps(settings), "run_id": run_id or ""}
    try:
        with (
            handling({signal.SIGTERM: signal.default_int_handler}),
            progress_bar() as bar,
            contextlib.closing(training.rounds()) as losses,
        ):
            task = bar.add_task("training", total=rounds, completed=training.round)
            for loss in losses:
                log.metrics({"imitation/loss": loss}, training.round)
                if training.round % EVERY == 0 or training.round == rounds:
                    _save(training.state() | told, folder)
                    kept = training.round
                bar.update(task, completed=training.round, description=f"training, loss {loss:.3f}")
            bar.update(task, description="training the critics")
            return training.judge()
    except (KeyboardInterrupt, WorkerError) as error:
        why = error if isinstance(error, WorkerError) else "stopped"
        raise click.ClickException(
            f"{why}; {kept} of {rounds} rounds are kept in {folder}: the same command goes on"
        ) from None


def _save(state: dict[str, Any], folder: Path) -> None:
    """Replace the checkpoint; it is the old one or this one, never a part."""
    import torch

    temporary = folder / f".state.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / "state.pt")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise click.ClickException(f"the training cannot be kept in {folder}: {error}") from error


def _log(run_id: str | None, settings: Mapping[str, Any]) -> tuple[Log, str | None]:
    """Where MLflow is told; a store that does not answer is no reason not to train."""
    import mlflow

    from mlflow_rlsched.learning.mlflow_log import Log
    from mlflow_rlsched.registry import experiment_id

    uri = mlflow.get_tracking_uri()
    made = [run_id] if run_id else []

    def begin() -> None:
        client = mlflow.MlflowClient(tracking_uri=uri)
        run = client.create_run(experiment_id(client), run_name="training")
        made.append(run.info.run_id)
        for name, value in (settings["plan"] | {"seed": settings["seed"]}).items():
            client.log_param(run.info.run_id, name, value)

    trouble = None if made else ask_server(begin)
    if trouble is not None:
        click.echo(f"Warning: MLflow is not told: {redacted(uri)}: {redacted(trouble)}", err=True)
    return Log(made[0] if made else None), made[0] if made else None


def _version(training: Pretraining, settings: Mapping[str, Any]) -> Version:
    from mlflow_rlsched.learning.pretraining import HEADS
    from mlflow_rlsched.policy.checkpoint import Version

    card = {
        "trained": "on simulated runs, from random weights",
        "runs_like": settings["runs_like"],
        "seed": settings["seed"],
        "plan": settings["plan"],
        "workers": settings["workers"],
        "limits": "judged on simulated runs and a few real ones; the learning-rate axis of the"
        " simulator rests on two projects",
    }
    return Version(training.learner.arrays(), card, training.optional(), HEADS)
