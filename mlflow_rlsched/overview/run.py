"""All that is known of one run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched import protocol, run_warnings
from mlflow_rlsched.overview.decisions import read
from mlflow_rlsched.overview.queue import budget

if TYPE_CHECKING:
    from mlflow_rlsched.store import Attempt, Task

TAIL_BYTES = 64 * 1024
TAIL_LINES = 10


def describe(
    task: Task, attempts: Sequence[Attempt], start: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What ``show`` says of a task; ``start`` is of ``expected_starts``."""
    decisions, spoilt = read(Path(task.spec.run_dir))
    return {**outline(task, attempts, start), "decisions": decisions, "spoilt_decisions": spoilt}


def outline(
    task: Task, attempts: Sequence[Attempt], start: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The same without the decisions, of which there may be thousands."""
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
