"""``rlsched show``: all that is known of one run."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched import decision_log, protocol, run_warnings
from mlflow_rlsched.cli.common import (
    clock,
    duration,
    find_task,
    json_option,
    opened,
    plain,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.cli.expected import expected_starts
from mlflow_rlsched.cli.explain import print_story
from mlflow_rlsched.cli.runs import budget, share_text, why

if TYPE_CHECKING:
    from mlflow_rlsched.store import Attempt, Task

TAIL_BYTES = 64 * 1024
TAIL_LINES = 10
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


def describe(
    task: Task, attempts: Sequence[Attempt], start: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What ``show`` says of a task; ``start`` is of ``expected_starts``."""
    spec = task.spec
    folder = protocol.attempt_dir(Path(spec.run_dir), task.attempt)
    reports = _last_reports(folder / "report.jsonl")
    progress = _progress(reports)
    return {
        "run_id": task.run_id,
        "name": spec.label,
        "state": task.state.value,
        "exit_reason": task.exit_reason,
        "message": task.message,
        "expected": start,
        "budget": budget(task),
        "warnings": run_warnings.read(Path(spec.run_dir)),
        "cancel_by": task.cancel_by,
        "priority": task.priority,
        "user": spec.user,
        "host": spec.host,
        "project": spec.project_uri,
        "entry_point": spec.entry_point,
        "parameters": dict(spec.recorded_params),
        "submitted_at": task.submitted_at,
        "started_at": task.started_at,
        "ended_at": task.ended_at,
        "retries": task.retries,
        "ooms": task.ooms,
        "attempts": [_attempt(attempt) for attempt in attempts],
        "batch_size": progress.get("batch_size")
        or task.batch_size
        or spec.config.get("initial_batch_size"),
        "progress": progress,
        "run_dir": spec.run_dir,
        "tracking_uri": spec.tracking_uri,
        "decisions": list(decision_log.read(Path(spec.run_dir))),
        "tracked": task.tracked,
        "mlflow": _where(task),
        "last_output": _last_lines(folder / "output.log"),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "host": attempt.host,
        "devices": [{"device": s.device, "amount": s.amount} for s in attempt.devices],
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "exit_code": attempt.exit_code,
        "reason": attempt.reason,
        "message": attempt.message,
    }


def _where(task: Task) -> str:
    """How to see the run in the MLflow UI."""
    uri = task.spec.tracking_uri
    page = f"#/experiments/{task.spec.experiment_id}/runs/{task.run_id}"
    if uri.startswith(("http://", "https://")):
        return f"{uri.rstrip('/')}/{page}"
    command = f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
    return f"{command}, then http://127.0.0.1:5000/{page}"


def _tail(path: Path) -> list[bytes]:
    """The last whole lines of a file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            lines = file.read().splitlines()
    except OSError:
        return []
    return lines[1:] if start else lines


def _last_lines(path: Path) -> list[str]:
    return [line.decode(errors="replace") for line in _tail(path)[-TAIL_LINES:]]


def _last_reports(path: Path) -> list[protocol.Report]:
    reports = (protocol.parse_report(line) for line in _tail(path))
    return [report for report in reports if report is not None]


def _progress(reports: Sequence[protocol.Report]) -> dict[str, float]:
    """Newest value of each number that the training reported, and its samples per second."""
    newest: dict[str, float] = {}
    for report in reports:
        newest |= report.numbers
    timed = [r.numbers for r in reports if "samples" in r.numbers and "time" in r.numbers]
    if len(timed) > 1 and (seconds := timed[-1]["time"] - timed[0]["time"]) > 0:
        newest["throughput"] = (timed[-1]["samples"] - timed[0]["samples"]) / seconds
    return newest


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
