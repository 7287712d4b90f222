"""Runs like those of an MLflow experiment: what was recorded of these, fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from mlflow_rlsched.asking import ask_server, tracking_store_is_there
from mlflow_rlsched.cli.common import WrongUsage, plain, progress_bar
from mlflow_rlsched.credentials import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from mlflow_rlsched.learning.workloads import Recorded, Workload

Answer = TypeVar("Answer")

experiment_option = click.option(
    "--from-experiment",
    "experiment",
    metavar="NAME",
    help="Simulate runs like those of this MLflow experiment, fitted to the decisions on the"
    " newest of them.",
)


def fitted_to(experiment: str) -> Workload:
    """Simulated runs like those of an experiment; what is left out of it is said.

    Raises:
        ClickException: There is nothing to fit to, or the tracking server does not answer.
    """
    import mlflow

    from mlflow_rlsched.learning.recordings import RecordingError, decided_runs, recorded_run
    from mlflow_rlsched.learning.workloads import Workload, WorkloadError

    uri = mlflow.get_tracking_uri()
    if not tracking_store_is_there(uri):
        raise WrongUsage(f"there is no tracking store {redacted(uri)} yet")
    found: list[Recorded | None] = []
    troubles = []
    try:
        runs = _ask(uri, decided_runs, experiment)
        with progress_bar() as bar:
            for run_id in bar.track(runs, description="reading decisions"):
                try:
                    found.append(_ask(uri, recorded_run, run_id))
                except RecordingError as error:
                    troubles.append(f"run {run_id} is left out: {error}")
        for trouble in troubles:
            click.echo(f"Warning: {plain(trouble)}", err=True)
        if not found:
            raise RecordingError(f"no decisions of the experiment {experiment!r} can be used")
        return Workload.of(found)
    except (RecordingError, WorkloadError) as error:
        raise WrongUsage(plain(error)) from error


def _ask(uri: str, question: Callable[[MlflowClient, str], Answer], of: str) -> Answer:
    """What a tracking server answers; a ``RecordingError`` is an answer."""
    from mlflow import MlflowClient

    from mlflow_rlsched.learning.recordings import RecordingError

    answers: list[Answer] = []
    refusals: list[RecordingError] = []

    def ask() -> None:
        try:
            # For a database, even a client can be made only where it can be used.
            answers.append(question(MlflowClient(tracking_uri=uri), of))
        except RecordingError as error:
            refusals.append(error)

    trouble = ask_server(ask)
    if trouble is not None:
        raise click.ClickException(
            f"{redacted(uri)}: {plain(redacted(trouble))}; start or mend the"
            " tracking server, or name another one by MLFLOW_TRACKING_URI"
        )
    if refusals:
        raise refusals[0]
    return answers[0]


def fit_in_words(figures: Mapping[str, float]) -> str:
    """``Workload.figures`` as a sentence."""
    said = [f"fitted to {figures['runs']:.0f} of them"]
    for name, words in (
        ("settings", "settings measured: {:.0f}"),
        ("step_time_error", "step times off by {:.1%}"),
        ("loss_noise", "losses noisy by {:.1%}"),
    ):
        if name in figures:
            said.append(words.format(figures[name]))
    if "noise_scale_spread" in figures:
        factor = 10 ** figures["noise_scale_spread"]
        said.append(f"the gradient noise scale varies by a factor of {factor:.1f} within a run")
    return f"{'; '.join(said)} (medians); what they do not tell is drawn at random"
