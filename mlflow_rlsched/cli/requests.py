"""Commands that ask something of a run: ``cancel``, ``prioritize``, ``retry``."""

from __future__ import annotations

from functools import partial

import click

from mlflow_rlsched import requests
from mlflow_rlsched.cli.common import WrongUsage, find_task, opened, store_option
from mlflow_rlsched.requests import MAX_PRIORITY, RefusedError


@click.command()
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True)
@store_option
def cancel(run_ids: tuple[str, ...], url: str) -> None:
    """Cancel runs: waiting ones leave the queue, running ones are ended with all they started."""
    over = 0
    with opened(url) as store:
        tasks = [find_task(store, run_id) for run_id in run_ids]
        for task in tasks:
            requests.check(url, task)
        for task in tasks:
            try:
                click.echo(requests.cancel(store, url, task))
            except RefusedError as error:
                click.echo(f"Error: {error}", err=True)
                over += 1
    raise SystemExit(1 if over else 0)


@click.command(context_settings={"ignore_unknown_options": True})  # so that N may be negative
@click.argument("run_id", metavar="RUN_ID")
@click.argument("priority", metavar="N")
@store_option
def prioritize(run_id: str, priority: str, url: str) -> None:
    """Give a run the priority N, a whole number; larger goes first."""
    with opened(url) as store:
        task = find_task(store, run_id)
        try:
            click.echo(requests.prioritize(store, url, task, int(priority)))
        except ValueError:
            raise WrongUsage(
                f"priority is {priority!r}, must be a whole number from {-MAX_PRIORITY} to"
                f" {MAX_PRIORITY}"
            ) from None


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@store_option
def retry(run_id: str, url: str) -> None:
    """Queue a failed or killed run again, with all its retries; it resumes where it can."""
    with opened(url) as store:
        task = find_task(store, run_id)
        click.echo(requests.retry(store, url, task, partial(click.echo, err=True)))
