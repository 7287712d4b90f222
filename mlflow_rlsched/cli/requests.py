"""Commands that ask something of a run: ``cancel``, ``prioritize``, ``retry``."""

from __future__ import annotations

import time

import click

from mlflow_rlsched.cli.common import find_task, opened, short, store_option, wake_agent
from mlflow_rlsched.daemon import user_name
from mlflow_rlsched.store import Task

MAX_PRIORITY = 1_000_000


def _name(task: Task) -> str:
    return f"run {short(task.run_id)} ({task.spec.label})"


def _tell(url: str, message: str) -> None:
    obstacle = wake_agent(url)
    click.echo(f"{message}; {obstacle}" if obstacle else message)


@click.command()
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True)
@store_option
def cancel(run_ids: tuple[str, ...], url: str) -> None:
    """Cancel runs: waiting ones leave the queue, running ones are ended with all they started."""
    over = 0
    with opened(url) as store:
        for task in [find_task(store, run_id) for run_id in run_ids]:
            if store.request_cancel(task.run_id, user_name()):
                _tell(url, f"{_name(task)} is being cancelled")
            else:
                click.echo(f"Error: {_name(task)} is {task.state.value} already", err=True)
                over += 1
    raise SystemExit(1 if over else 0)


@click.command(context_settings={"ignore_unknown_options": True})  # so that N may be negative
@click.argument("run_id", metavar="RUN_ID")
@click.argument("priority", metavar="N", type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY))
@store_option
def prioritize(run_id: str, priority: int, url: str) -> None:
    """Give a run the priority N; larger goes first."""
    with opened(url) as store:
        task = find_task(store, run_id)
        if not store.prioritize(task.run_id, priority):
            raise click.ClickException(f"{_name(task)} is {task.state.value} already")
    _tell(url, f"{_name(task)} has priority {priority}")


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@store_option
def retry(run_id: str, url: str) -> None:
    """Queue a failed or killed run again, with all its retries; it resumes where it can."""
    with opened(url) as store:
        task = find_task(store, run_id)
        if not store.retry(task.run_id, time.time()):
            raise click.ClickException(
                f"{_name(task)} is {task.state.value}: only failed and killed runs can be retried"
            )
    _tell(url, f"{_name(task)} is queued again")
