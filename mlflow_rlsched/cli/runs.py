"""Commands that look at runs: ``queue`` and ``logs``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import (
    WrongUsage,
    find_task,
    json_option,
    open_existing,
    opened,
    plain,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.output import OutputFollower
from mlflow_rlsched.overview.queue import queue_rows, why
from mlflow_rlsched.words import duration, short

if TYPE_CHECKING:
    from rich.table import Table


FOLLOW_S = 0.2
SHOWN = 100


@click.command()
@store_option
@click.option("--all", "everything", is_flag=True, help=f"Show more than {SHOWN} runs.")
@json_option
def queue(url: str, everything: bool, as_json: bool) -> None:
    """List waiting and running runs, first those that go first."""
    store = open_existing(url)
    alive = AgentFiles(url).alive()
    rows: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    if store is not None:
        with closing(store):
            rows = queue_rows(store, time.time(), url)
            told = [dict(note) for agent in store.agents() for note in agent.devices]
            # Of users who share a store, each one's agent tells the same.
            notes = list({str(note.get("id")): note for note in told}.values()) * alive
    if as_json:
        print_json({"runs": rows, "agent_alive": alive, "devices_not_offered": notes})
    elif store is None:
        click.echo(f"no runs yet: there is no store {url}")
    elif not rows:
        click.echo("no run waits or runs")
    else:
        shown = rows if everything else rows[:SHOWN]
        print_table(_queue_table(shown))
        if len(shown) < len(rows):
            click.echo(f"and {len(rows) - len(shown)} more: `rlsched queue --all`")
        for note in notes:
            click.echo(f"device {note.get('id')} is not offered: {note.get('note')}")
        if not alive:
            click.echo("no agent lives: `rlsched agent start` starts one")


def _queue_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    headings = [
        "RUN",
        "NAME",
        "STATE",
        "PRIORITY",
        "USER",
        "AGE",
        "WANTS",
        "HOLDS",
        "ATTEMPT",
        "NOTE",
    ]
    return table(
        headings,
        (
            (
                short(row["run_id"]),
                row["name"],
                row["state"],
                row["priority"],
                row["user"],
                duration(row["age_s"]),
                _wants_text(row["wants"]),
                ", ".join(share_text(hold) for hold in row["holds"]),
                row["attempt"] or "",
                "; ".join(filter(None, (row["why"], (row["budget"] or {}).get("why")))),
            )
            for row in rows
        ),
    )


def _wants_text(wanted: Mapping[str, Any]) -> str:
    if wanted["shares_parent"]:
        return "its parent's"
    part = "" if wanted["amount"] == 100 else f" at {wanted['amount']} %"
    gpus, slots = wanted["gpus"], wanted["cpu_slots"]
    return f"{gpus} GPU{'s' * (gpus != 1)}{part} or {slots} slot{'s' * (slots != 1)}"


def share_text(hold: Mapping[str, Any]) -> str:
    """A device and the part of it that is held."""
    device = str(hold["device"])[:12]
    return device if hold["amount"] == 100 else f"{device} {hold['amount']} %"


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@store_option
@json_option
def logs(run_id: str, follow: bool, url: str, as_json: bool) -> None:
    """Print what a run printed, all its attempts one after the other."""
    from mlflow_rlsched.store import State

    if follow and as_json:
        raise WrongUsage("--follow and --json exclude each other")
    with opened(url) as store:
        task = find_task(store, run_id)
        output = OutputFollower(Path(task.spec.run_dir))
        said = None
        if as_json:
            whole = b"".join(iter(output.read, b""))
            print_json({"run_id": task.run_id, "output": whole.decode(errors="replace")})
            return
        while True:
            # Looked up before the reading: a final task prints nothing more.
            now = store.get(task.run_id)
            while data := output.read():
                click.echo(data, nl=False)
            if not follow or now is None or now.state.final:
                return
            if now.state is State.QUEUED and said != now.attempt:
                said = now.attempt  # once, and again before each further attempt
                reason = why(now, time.time())
                text = f"run {short(now.run_id)} waits" + (f": {reason}" if reason else "")
                click.echo(plain(text), err=True)
            time.sleep(FOLLOW_S)
