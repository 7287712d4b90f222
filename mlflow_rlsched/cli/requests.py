"""Commands that ask something of a run: ``cancel``, ``prioritize``, ``retry``."""

from __future__ import annotations

import click

from mlflow_rlsched import trust
from mlflow_rlsched.cli.common import (
    WrongUsage,
    ask_server,
    find_task,
    opened,
    shared_rules,
    short,
    store_option,
    wake_agent,
)
from mlflow_rlsched.credentials import acting_for, redacted
from mlflow_rlsched.daemon import user_name
from mlflow_rlsched.sharing import is_shared
from mlflow_rlsched.store import State, Task

MAX_PRIORITY = 1_000_000


def _name(task: Task) -> str:
    return f"run {short(task.run_id)} ({task.spec.label})"


def _is_anothers(url: str, task: Task) -> bool:
    return is_shared(url) and task.spec.user != user_name()


def _tell(url: str, task: Task, message: str) -> None:
    if _is_anothers(url, task):
        click.echo(f"{message}, as soon as the agent of {task.spec.user} looks")
        return
    obstacle = wake_agent(url)
    click.echo(f"{message}; {obstacle}" if obstacle else message)


def _check(url: str, task: Task) -> None:
    """Refuse to ask something of another user's run, unless an administrator does."""
    rules = shared_rules(url)
    if rules is None:
        return
    me, owner = user_name(), task.spec.user
    if owner != me and me not in rules.administrators:
        from mlflow_rlsched.config.pool import pool_file

        others = ", ".join(rules.administrators) or f"{pool_file()} names none"
        raise click.ClickException(
            f"{_name(task)} is of {owner}: only {owner} or an administrator ({others}) may ask that"
        )
    if owner == me and not trust.is_signed_submission(url, task):
        raise click.ClickException(
            f"{_name(task)} was not signed by you: somebody else wrote it into the store, and no"
            " agent starts it"
        )


@click.command()
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True)
@store_option
def cancel(run_ids: tuple[str, ...], url: str) -> None:
    """Cancel runs: waiting ones leave the queue, running ones are ended with all they started."""
    over = 0
    with opened(url) as store:
        tasks = [find_task(store, run_id) for run_id in run_ids]
        for task in tasks:
            _check(url, task)
        for task in tasks:
            proof = trust.prove_request(url, task, trust.CANCEL, user_name())
            if store.request_cancel(task.run_id, user_name(), proof):
                _tell(url, task, f"{_name(task)} is being cancelled")
            else:
                click.echo(f"Error: {_name(task)} is {task.state.value} already", err=True)
                over += 1
    raise SystemExit(1 if over else 0)


@click.command(context_settings={"ignore_unknown_options": True})  # so that N may be negative
@click.argument("run_id", metavar="RUN_ID")
@click.argument("priority", metavar="N")
@store_option
def prioritize(run_id: str, priority: str, url: str) -> None:
    """Give a run the priority N, a whole number; larger goes first."""
    number = _priority(priority)
    with opened(url) as store:
        task = find_task(store, run_id)
        _check(url, task)
        proof = trust.prove_request(url, task, trust.PRIORITY, number)
        if not store.prioritize(task.run_id, number, proof):
            raise click.ClickException(f"{_name(task)} is {task.state.value} already")
    _tell(url, task, f"{_name(task)} has priority {number}")


def _priority(text: str) -> int:
    try:
        number = int(text)
        if abs(number) <= MAX_PRIORITY:
            return number
    except ValueError:
        pass
    raise WrongUsage(
        f"priority is {text!r}, must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
    )


def _schedule_in_mlflow(task: Task) -> None:
    """Make the MLflow run of a task SCHEDULED again, and refuse one that was deleted."""
    from mlflow import MlflowClient

    from mlflow_rlsched.agent.tracking import Delivery

    delivery = Delivery.of(task)
    stages: list[str] = []

    def ask() -> None:
        with acting_for(delivery.environment):
            client = MlflowClient(tracking_uri=delivery.uri)
            stages.append(client.get_run(task.run_id).info.lifecycle_stage)
            if stages != ["deleted"]:
                client.update_run(task.run_id, status="SCHEDULED")

    trouble = ask_server(ask)
    if stages == ["deleted"]:
        raise click.ClickException(
            f"{_name(task)} was deleted in MLflow: bring it back by "
            f"`mlflow runs restore --run-id {task.run_id}`, then retry it"
        )
    if trouble is not None:
        click.echo(f"its tracking server is told later: {redacted(trouble)}", err=True)


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@store_option
def retry(run_id: str, url: str) -> None:
    """Queue a failed or killed run again, with all its retries; it resumes where it can."""
    with opened(url) as store:
        task = find_task(store, run_id)
        _check(url, task)
        if task.state in (State.FAILED, State.KILLED) and not _is_anothers(url, task):
            _schedule_in_mlflow(task)
        now = trust.queue_time(task)
        if not store.retry(task.run_id, now, trust.proofs_of_retry(url, task, now)):
            raise click.ClickException(
                f"{_name(task)} is {task.state.value}: only failed and killed runs can be retried"
            )
    _tell(url, task, f"{_name(task)} is queued again")
