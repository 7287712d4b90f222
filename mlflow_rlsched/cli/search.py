"""``rlsched search``: an Optuna study whose trials are runs of the queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import WrongUsage, plain, print_json, progress_bar
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.words import short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from mlflow_rlsched.search import Seeded
    from mlflow_rlsched.search.plan import Plan
    from mlflow_rlsched.search.trials import Search

PRUNERS = {"median": "MedianPruner", "hyperband": "HyperbandPruner", "none": "NopPruner"}


@click.command()
@click.argument("project", metavar="PROJECT")
@click.option("--study", "name", required=True, metavar="NAME", help="Name of the study.")
@click.option(
    "--storage",
    metavar="URL",
    help="Where the study is kept: journal:///FILE, redis://HOST, or a database as Optuna takes"
    " it; by default studies.journal in the folder of rlsched (~/.rlsched).",
)
@click.option(
    "-P",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter: searched if VALUE is uniform(a,b), loguniform(a,b), int(a,b), int(a,b,log)"
    " or choice(a,b,...), else fixed.",
)
@click.option("-e", "--entry-point", default="main", show_default=True, metavar="NAME")
@click.option("-v", "--version", metavar="VERSION", help="Branch, tag or commit of a repository.")
@click.option(
    "--experiment-name", envvar="MLFLOW_EXPERIMENT_NAME", default="Default", metavar="NAME"
)
@click.option("--backend-config", default="{}", metavar="JSON|FILE", help="As of `mlflow run`.")
@click.option(
    "--n-trials",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="Trials that the study shall have in the end, seeded ones apart.",
)
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1), help="Trials at once."
)
@click.option("--pruner", default="median", show_default=True, type=click.Choice(list(PRUNERS)))
@click.option(
    "--seed/--no-seed",
    "seeds",
    default=True,
    help="Whether past runs of the experiment become trials first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
def search(
    project: str,
    name: str,
    storage: str | None,
    assignments: tuple[str, ...],
    entry_point: str,
    version: str | None,
    experiment_name: str,
    backend_config: str,
    n_trials: int,
    jobs: int,
    pruner: str,
    seeds: bool,
    as_json: bool,
) -> None:
    """Search hyper-parameters of an MLflow project: each trial is a run of the queue.

    The objective, and which way is better, is that of the configuration ("objective"). What past
    runs of the experiment found seeds the study. A search that was ended in any way goes on when
    the same command is given again; Ctrl-C leaves the trials that run in the queue.
    """
    with _in_sentences():
        from mlflow_rlsched import studies

        optuna = studies.quiet_optuna()
        plan = _plan(project, assignments, entry_point, version, experiment_name, backend_config)
        url = storage or studies.default_storage()
        with _alone(name, url):
            study = _study(optuna, name, url, plan, pruner)
            seeded = _seeded(study, plan, experiment_name) if seeds else None
            if seeded is not None and not as_json:
                _say_seeded(seeded)
            interrupted, found, parent = _searched(study, plan, n_trials, jobs, as_json)
        trials, best = found.own(), _best(study)
        if as_json:
            print_json(_told(study, plan, url, parent, seeded, trials, best))
        elif not interrupted:
            _say_best(best, plan.metric)
        if interrupted:
            _say_interrupted(found)
    raise SystemExit(1 if interrupted or not any(trial.values for trial in trials) else 0)


def _plan(
    project: str,
    assignments: tuple[str, ...],
    entry_point: str,
    version: str | None,
    experiment: str,
    backend_config: str,
) -> Plan:
    import mlflow

    from mlflow_rlsched.search.plan import planned
    from mlflow_rlsched.search.space import parse
    from mlflow_rlsched.submission import Request
    from mlflow_rlsched.submission.tracking import absolute_tracking_uri, contact

    space = parse(assignments)
    uri = absolute_tracking_uri(mlflow.get_tracking_uri())
    config = _config(backend_config)
    request = Request(project, entry_point, {}, version, config, uri, "0", None)
    plan = planned(request, space)
    client = contact(uri, "0")
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found else client.create_experiment(experiment)
    contact(uri, experiment_id)  # says what is wrong with one that was deleted
    return replace(plan, request=replace(plan.request, experiment_id=experiment_id))


def _config(text: str) -> dict[str, Any]:
    """A backend configuration: JSON, or a file of it."""
    try:
        value = json.loads(Path(text).read_text() if text.endswith(".json") else text)
    except ValueError as error:
        raise WrongUsage(f"--backend-config is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise WrongUsage("--backend-config must be a JSON object")
    return value


@contextmanager
def _alone(name: str, url: str) -> Iterator[None]:
    """Keep others of this user and host off the study: they would follow the same trials."""
    from mlflow_rlsched import studies
    from mlflow_rlsched.filelock import FileLock

    lock = FileLock(studies.lock_path(name, url))
    if not lock.acquire():
        raise click.ClickException(f"another `rlsched search` works on the study {name!r} now")
    try:
        yield
    finally:
        lock.release()


def _study(optuna: Any, name: str, url: str, plan: Plan, pruner: str) -> Study:
    from mlflow_rlsched import studies
    from mlflow_rlsched.search.seeding import check

    study: Study = optuna.create_study(
        study_name=name,
        storage=studies.open_storage(url),
        direction=plan.direction,
        sampler=optuna.samplers.TPESampler(constant_liar=True),
        pruner=getattr(optuna.pruners, PRUNERS[pruner])(),
        load_if_exists=True,
    )
    if study.direction.name.lower() != plan.direction:
        raise WrongUsage(
            f"the study {name!r} wants to {study.direction.name.lower()}, the objective"
            f" {plan.metric} to {plan.direction}: name another study, or set objective.mode"
        )
    check(study, plan.space.searched)
    return study


def _seeded(study: Study, plan: Plan, experiment: str) -> Seeded:
    from mlflow_rlsched.search import seed_study

    return seed_study(
        study,
        experiment=experiment,
        params=plan.space.searched,
        metric=plan.metric,
        fixed=plan.alike,
        project=plan.request.project_uri,
        entry_point=plan.request.entry_point,
        tracking_uri=plan.request.tracking_uri,
    )


def _searched(
    study: Study, plan: Plan, trials: int, jobs: int, quiet: bool
) -> tuple[bool, Search, str]:
    """Run the trials; whether that was interrupted, the search, and its parent run."""
    import mlflow

    from mlflow_rlsched.search.trials import Search
    from mlflow_rlsched.signals import collecting

    client = mlflow.MlflowClient(plan.request.tracking_uri)
    signals: list[int] = []
    with progress_bar() as bar, collecting(signals):

        def ended(trial: FrozenTrial) -> None:
            bar.update(shown, completed=len(found.own()))
            if not quiet:
                bar.console.print(_line(trial, plan.metric), markup=False, highlight=False)

        found = Search(study, plan, client, trials, jobs, ended)
        shown = bar.add_task(study.study_name, total=trials, completed=len(found.own()))
        parent = found.run(signals)
    return bool(signals), found, parent


def _say_seeded(seeded: Seeded) -> None:
    click.echo(
        f"seeded with {seeded.added} past runs ({seeded.complete} complete, {seeded.pruned} pruned,"
        f" {seeded.failed} failed), {seeded.known} are known already"
    )
    for reason, count in seeded.left_out.items():
        click.echo(f"  left out: {count} ({plain(reason)})")


def _line(trial: FrozenTrial, metric: str) -> str:
    from mlflow_rlsched.search.trials import describe

    about = describe(trial, metric)
    value = "" if about["value"] is None else f" {metric} {about['value']:.6g}"
    why = f" ({plain(about['reason'])})" if about["reason"] else ""
    return f"trial {trial.number} {about['state']}{value}: {_params(trial.params)}{why}"


def _params(params: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


def _best(study: Study) -> FrozenTrial | None:
    """The best complete trial, past runs among them; None where there is none."""
    complete = any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))
    return study.best_trial if complete else None


def _say_best(best: FrozenTrial | None, metric: str) -> None:
    from mlflow_rlsched.search.seeding import RUN_ID

    if best is None:
        click.echo("no trial is complete", err=True)
        return
    run = short(best.user_attrs.get(RUN_ID, ""))
    click.echo(f"best: trial {best.number}, {metric} {best.value:.6g}, run {run}")
    click.echo(" ".join(f"-P {name}={value}" for name, value in best.params.items()))


def _say_interrupted(found: Search) -> None:
    running = [short(each.run_id) for each in found.running.values()]
    goes_on = "the same command goes on"
    if running:
        goes_on = (
            f"{len(running)} trials go on in the queue: the same command takes them up again,"
            f" `rlsched cancel {' '.join(running)}` ends them"
        )
    click.echo(f"interrupted; {goes_on}", err=True)


def _told(
    study: Study,
    plan: Plan,
    url: str,
    parent: str,
    seeded: Seeded | None,
    trials: list[FrozenTrial],
    best: FrozenTrial | None,
) -> dict[str, Any]:
    from mlflow_rlsched.search.trials import describe

    return {
        "study": study.study_name,
        "storage": redacted(url),
        "parent_run_id": parent,
        "direction": plan.direction,
        "seeded": asdict(seeded) if seeded else None,
        "trials": [describe(trial, plan.metric) for trial in trials],
        "best": None if best is None else describe(best, plan.metric),
    }


@contextmanager
def _in_sentences() -> Iterator[None]:
    """Let what is wrong with a search end in one line."""
    from mlflow.exceptions import MlflowException

    from mlflow_rlsched.config import ConfigError
    from mlflow_rlsched.search import SeedingError
    from mlflow_rlsched.search.space import SpaceError
    from mlflow_rlsched.studies import StudyError, first_line, storage_errors

    try:
        yield
    except (SpaceError, ConfigError, SeedingError) as error:
        raise WrongUsage(str(error)) from error
    except (StudyError, MlflowException) as error:
        raise click.ClickException(redacted(error)) from error
    except storage_errors() as error:
        why = first_line(error.__cause__ or error)
        raise click.ClickException(
            f"the study cannot be used any more ({why}): when it can, the same command goes on"
        ) from error
