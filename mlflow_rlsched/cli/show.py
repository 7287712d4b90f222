"""``rlsched show``: all that is known of one run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import (
    clock,
    find_task,
    json_option,
    opened,
    plain,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.cli.explain import print_story, warn_of_spoilt
from mlflow_rlsched.cli.runs import share_text
from mlflow_rlsched.overview.expected import expected_starts
from mlflow_rlsched.overview.queue import why
from mlflow_rlsched.overview.run import describe
from mlflow_rlsched.words import duration

if TYPE_CHECKING:
    from mlflow_rlsched.store import Task

STORY_ROWS = 20


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@store_option
@json_option
def show(run_id: str, url: str, as_json: bool) -> None:
    """Show one run in full: its attempts, devices, progress, and where MLflow shows it."""
    with opened(url) as store:
        task = find_task(store, run_id)
        attempts = store.attempts(task.run_id)
        start = expected_starts(store, time.time(), url).get(task.run_id)
    about = describe(task, attempts, start)
    if as_json:
        print_json(about)
    else:
        _print(task, about)


def _print(task: Task, about: dict[str, Any]) -> None:
    now = time.time()
    failed = about["exit_reason"] if task.state.value != "running" else ""
    state = about["state"] + (f" ({failed})" if failed else "")
    since = f", {duration(now - task.submitted_at)} ago" if not task.state.final else ""
    lines = {
        "run": f"{about['run_id']}  {about['name']}",
        "state": state,
        "note": why(task, now, about["expected"]),
        "warning": "; ".join(
            f"{warning['text']} (attempt {warning['attempt']})" for warning in about["warnings"]
        ),
        "budget": (about["budget"] or {}).get("why", ""),
        "priority": about["priority"],
        "user": about["user"] + (f" on {about['host']}" if about["host"] else ""),
        "project": f"{about['project']}, entry point {about['entry_point']}",
        "parameters": ", ".join(f"{k}={v}" for k, v in about["parameters"].items()),
        "submitted": clock(task.submitted_at) + since,
        "ended": clock(task.ended_at),
        "retries": about["retries"] or "",
        "out of memory": f"{about['ooms']} times" if about["ooms"] else "",
        "batch size": _number(about["batch_size"]),
        "progress": ", ".join(
            f"{name} {_number(about['progress'][name])}"
            for name in ("epoch", "step", "samples", "loss", "throughput", "learning_rate")
            if name in about["progress"]
        ),
        "folder": about["run_dir"],
        "tracking": about["tracking_uri"],
        "MLflow": about["mlflow"],
    }
    for name, value in lines.items():
        if value != "":
            click.echo(f"{name:<14}{plain(value)}")
    if about["attempts"]:
        click.echo()
        headings = ["ATTEMPT", "STARTED", "LASTED", "DEVICES", "CODE", "REASON", "MESSAGE"]
        print_table(table(headings, (_attempt_row(a, now) for a in about["attempts"])))
    print_story(about["decisions"], STORY_ROWS)
    warn_of_spoilt(about["spoilt_decisions"])
    if failed and about["last_output"]:
        click.echo("\nlast output:")
        for line in about["last_output"]:
            click.echo(f"  {plain(line)}")


def _attempt_row(attempt: dict[str, Any], now: float) -> list[object]:
    return [
        attempt["number"],
        clock(attempt["started_at"]),
        duration((attempt["ended_at"] or now) - attempt["started_at"]),
        ", ".join(share_text(share) for share in attempt["devices"]),
        "" if attempt["exit_code"] is None else attempt["exit_code"],
        attempt["reason"] or ("" if attempt["ended_at"] else "running"),
        attempt["message"],
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
