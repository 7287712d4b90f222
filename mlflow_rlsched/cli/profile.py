"""``rlsched profile``: where the time of a run went."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_rlsched.asking import ARTIFACTS, ask_server, tracking_store_is_there
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
from mlflow_rlsched.cli.recorded import find_recorded, priced_devices, tracking_uri
from mlflow_rlsched.credentials import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow_rlsched.analysis.findings import Finding
    from mlflow_rlsched.analysis.profile import Profile
    from mlflow_rlsched.analysis.readings import Readings
    from mlflow_rlsched.analysis.recorded import RunRecord
    from mlflow_rlsched.store import Store, Task

PAGE = "profile.html"


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@click.option("--markdown", metavar="FILE", type=click.Path(path_type=Path), help="Write Markdown.")
@click.option(
    "--html",
    "page",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page with pictures that stands alone.",
)
@click.option(
    "--log", is_flag=True, help=f"Keep that page as the run's artifact {ARTIFACTS}/{PAGE}."
)
@store_option
@json_option
def profile(
    run_id: str, markdown: Path | None, page: Path | None, log: bool, url: str, as_json: bool
) -> None:
    """Show where the time of a run went, how well its devices were used, and what to try."""
    if (page is not None or log) and importlib.util.find_spec("plotly") is None:
        raise click.ClickException(
            "the page needs plotly: `pip install 'mlflow-rlsched[analysis]'`; without --html and"
            " --log nothing more is needed"
        )
    with opened(url) as store:
        task = find_recorded(store, run_id)
        found, trouble = _profile(store, task)
    from mlflow_rlsched.analysis import findings, profile_text

    stands_out, unknown = findings.findings(found), findings.unknown(found)
    unknown = [*([trouble] if trouble else []), *unknown]
    if markdown is not None:
        markdown.write_text(profile_text.markdown(found, stands_out, unknown))
    if page is not None or log:
        from mlflow_rlsched.analysis.profile_page import page as page_of

        text = page_of(found, stands_out, unknown)
        if page is not None:
            page.write_text(text)
        if log:
            _log(task, text)
    if as_json:
        from mlflow_rlsched.analysis.profile import to_json

        print_json(to_json(found, stands_out, unknown))
    else:
        _print(found, stands_out, unknown)


def _profile(store: Store, task: Task) -> tuple[Profile, str]:
    """The profile of a run, and why its readings are missing, or ""."""
    from mlflow_rlsched.analysis.profile import profile as profile_of
    from mlflow_rlsched.analysis.recorded import read
    from mlflow_rlsched.analysis.usage import cost, device_price

    record = read(store, task, time.time())
    readings, trouble = _readings(task, record)
    attempts = [launch.attempt for launch in record.launches]
    known = priced_devices([task])
    price = device_price(task, attempts, known)
    spent = cost(task, attempts, known, end=record.now)
    return profile_of(record, readings, price, spent), trouble


def _readings(task: Task, record: RunRecord) -> tuple[Readings, str]:
    from mlflow_rlsched.analysis.readings import Readings, read

    uri = tracking_uri(task)
    held = [
        (launch.attempt.started_at, launch.attempt.ended_at or record.now)
        for launch in record.launches
    ]
    if not tracking_store_is_there(uri):
        return Readings(), f"there is no tracking store {redacted(uri)}: no readings of devices"
    found: list[Readings] = []

    def ask() -> None:
        from mlflow import MlflowClient

        found.append(read(MlflowClient(tracking_uri=uri), task.run_id, held))

    trouble = ask_server(ask)
    if trouble is not None:
        return Readings(), f"MLflow tells no readings of devices: {redacted(trouble)}"
    return found[0], ""


def _log(task: Task, text: str) -> None:
    uri = tracking_uri(task)

    def put() -> None:
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=uri).log_text(task.run_id, text, f"{ARTIFACTS}/{PAGE}")

    if not tracking_store_is_there(uri):
        raise WrongUsage(f"--log: there is no tracking store {redacted(uri)}")
    trouble = ask_server(put)
    if trouble is not None:
        raise click.ClickException(
            f"{redacted(uri)} did not take the page of run {task.run_id}: {redacted(trouble)};"
            " --html writes it into a file"
        )
    click.echo(f"logged as the artifact {ARTIFACTS}/{PAGE} of run {task.run_id}", err=True)


def _print(found: Profile, stands_out: Sequence[Finding], unknown: Sequence[str]) -> None:
    from mlflow_rlsched.analysis import profile_text as text

    for name, value in text.facts(found).items():
        click.echo(f"{name:<14}{plain(value)}")
    click.echo()
    print_table(table(text.PART_HEADINGS, text.part_rows(found)))
    if rows := text.scaling_rows(found):
        click.echo()
        print_table(table(text.SCALING_HEADINGS, rows))
    click.echo("\nwhat stands out:" if stands_out else "\nnothing stands out")
    for each in stands_out:
        click.echo(f"  {plain(each.what)}: {plain(each.evidence)}")
        if each.setting:
            click.echo(f"    try: {plain(each.setting)}")
    if unknown:
        click.echo("\nnot known:")
        for sentence in unknown:
            click.echo(f"  {plain(sentence)}")
