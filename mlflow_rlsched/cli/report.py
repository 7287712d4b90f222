"""``rlsched report``: what scheduling took and saved over a period."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_rlsched.asking import ask_server, tracking_store_is_there
from mlflow_rlsched.cli.common import (
    WrongUsage,
    json_option,
    opened,
    plain,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.cli.recorded import priced_devices, tracking_uri
from mlflow_rlsched.credentials import redacted

if TYPE_CHECKING:
    from mlflow_rlsched.store import Attempt, Task

_AGO = re.compile(r"(\d{1,6})(min|h|d|w)")
_SECONDS = {"min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _moment(_ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Seconds since the epoch: a length of time before now, or a date."""
    if text is None:
        return None
    if match := _AGO.fullmatch(text):
        return time.time() - int(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise WrongUsage(
            f"--{param.name} {text!r} is neither a length of time before now (90min, 12h, 7d, 2w)"
            " nor a date (2026-11-30, 2026-11-30T18:00)"
        ) from None


@click.command()
@click.option("--experiment", metavar="NAME", help="Runs of this MLflow experiment alone.")
@click.option(
    "--since",
    default="7d",
    show_default=True,
    metavar="TIME",
    callback=_moment,
    help="Beginning: a time before now (12h, 7d), or a date.",
)
@click.option("--until", metavar="TIME", callback=_moment, help="End; now by default.")
@click.option("--markdown", metavar="FILE", type=click.Path(path_type=Path), help="Write Markdown.")
@store_option
@json_option
def report(
    experiment: str | None,
    since: float,
    until: float | None,
    markdown: Path | None,
    url: str,
    as_json: bool,
) -> None:
    """Show what runs took over a period, and what tuning them saved, as far as it can be told."""
    from mlflow_rlsched.analysis import report as reports
    from mlflow_rlsched.analysis import report_text as text

    end = time.time() if until is None else until
    if end <= since:
        raise WrongUsage("--since has to be before --until")
    chosen = None if experiment is None else _experiment_id(experiment)
    with opened(url) as store:
        found = reports.report(
            store,
            since,
            end,
            priced_devices(store.tasks()),
            _watts(),
            lambda task: chosen in (None, task.spec.experiment_id),
        )
    title = "Runs" if experiment is None else f"Runs of {experiment}"
    if markdown is not None:
        markdown.write_text(text.markdown(found, title))
    if as_json:
        print_json({"experiment": experiment} | text.to_json(found))
        return
    for name, value in text.facts(found).items():
        click.echo(f"{name:<14}{plain(value)}")
    for headings, rows in (
        (text.SAVED_HEADINGS, text.saved_rows(found)),
        (text.RUN_HEADINGS, text.run_rows(found)),
    ):
        if rows:
            click.echo()
            print_table(table(headings, rows))
    click.echo()
    for sentence in [*reports.BASIS, *text.unknown(found)]:
        click.echo(plain(sentence))


def _experiment_id(name: str) -> str:
    import mlflow

    uri = str(mlflow.get_tracking_uri())
    if not tracking_store_is_there(uri):
        raise WrongUsage(f"there is no tracking store {redacted(uri)} yet")
    found: list[str | None] = []

    def ask() -> None:
        from mlflow import MlflowClient

        experiment = MlflowClient(tracking_uri=uri).get_experiment_by_name(name)
        found.append(None if experiment is None else experiment.experiment_id)

    trouble = ask_server(ask)
    if trouble is not None:
        raise click.ClickException(f"{redacted(uri)}: {plain(redacted(trouble))}")
    if found[0] is None:
        raise WrongUsage(f"there is no experiment {name!r} at {redacted(uri)}")
    return found[0]


def _watts() -> Callable[[Task, Sequence[Attempt]], float | None]:
    """Mean power of the devices of runs, as MLflow has it; a silent server is asked once."""
    silent: set[str] = set()

    def ask(task: Task, attempts: Sequence[Attempt]) -> float | None:
        from mlflow_rlsched.analysis.readings import Readings, read

        uri = tracking_uri(task)
        held = [(each.started_at, each.ended_at or time.time()) for each in attempts]
        found: list[Readings] = []

        def look() -> None:
            from mlflow import MlflowClient

            found.append(read(MlflowClient(tracking_uri=uri), task.run_id, held))

        if uri in silent or not tracking_store_is_there(uri):
            return None
        trouble = ask_server(look)
        if trouble is not None:
            silent.add(uri)
            text = f"{redacted(uri)} tells no power of runs: {redacted(trouble)}"
            click.echo(f"Warning: {plain(text)}", err=True)
        return found[0].watts if found else None

    return ask
