"""What runs were given, what became of it, and how each differs from the baseline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_rlsched.words import short
from rlsched_dashboard import live, tables
from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.comparison import HOUR_S, device_hours
from rlsched_dashboard.sources.run import RunData

_OURS = ("rlsched/", "system/")
_IN_FORCE = {
    "rlsched/gpus": "devices",
    "rlsched/batch_size": "batch size",
    "rlsched/learning_rate": "learning rate",
    "rlsched/throughput": "samples a second",
}

Values = list[Any]


def rows(context: Context, runs: Sequence[RunData], only_different: bool) -> list[dict[str, Any]]:
    """Rows of the table: ``part``, ``what``, ``kind`` and a value for each run, by its id.

    Args:
        context: The sources.
        runs: The runs.
        only_different: Whether to leave out what is the same in all.
    """
    found = [
        *_results(context, runs),
        *_in_force(runs),
        *_named(runs, "Parameters", [_params(run) for run in runs]),
        *_named(runs, "Final metrics", [_metrics(run) for run in runs]),
    ]
    if only_different:
        found = [row for row in found if len({str(row[run.run_id]) for run in runs}) > 1]
    return found


def columns(runs: Sequence[RunData], baseline: str) -> list[tables.Column]:
    """Columns of the table, the baseline's first."""
    ordered = sorted(runs, key=lambda run: run.run_id != baseline)
    return [
        tables.text("what", "What", width=150, pinned="left"),
        *(
            tables.text(
                run.run_id,
                (run.name or short(run.run_id)) + " (baseline)" * (run.run_id == baseline),
                cellRenderer="Compared",
                cellRendererParams={"baseline": baseline},
                type="rightAligned",
                minWidth=170,
                flex=1,
            )
            for run in ordered
        ),
        tables.text("part", "Kind", width=140),
    ]


def _row(runs: Sequence[RunData], part: str, what: str, values: Values, kind: str = "") -> Any:
    by_run = {run.run_id: value for run, value in zip(runs, values, strict=True)}
    return {"key": f"{part}: {what}", "part": part, "what": what, "kind": kind, **by_run}


def _results(context: Context, runs: Sequence[RunData]) -> list[dict[str, Any]]:
    hours = [device_hours(context, run) for run in runs]
    tags = [run.tracked.tags if run.tracked else {} for run in runs]
    queued = [_metric(run, "rlsched/queue_seconds") for run in runs]
    held = [None if each is None else each * HOUR_S for each in hours]
    return [
        _row(runs, "Result", "state", [run.state for run in runs]),
        _row(runs, "Result", "time", [_lasted(run) for run in runs], "duration"),
        _row(runs, "Result", "device time", held, "duration"),
        _row(runs, "Result", "waited", queued, "duration"),
        _row(runs, "Result", "attempts", [_attempts(run) for run in runs], "number"),
        _row(runs, "Result", "policy", [each.get("rlsched.policy") for each in tags]),
        _row(runs, "Result", "version", [each.get("rlsched.policy_version") for each in tags]),
    ]


def _lasted(run: RunData) -> float | None:
    """Seconds from the first start to the end; None before the start."""
    if run.started_at is None or (run.task is not None and not run.attempts):
        return None
    ended = run.tracked.ended_at if run.tracked else None
    if run.attempts:
        ended = run.attempts[-1].ended_at
    return (ended or time.time()) - run.started_at


def _attempts(run: RunData) -> int | None:
    return len(run.attempts) or (run.tracked.attempts if run.tracked else None)


def _in_force(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """The settings that were in force at last."""
    found = [
        _row(runs, "In force at last", what, [_metric(run, name) for run in runs], "number")
        for name, what in _IN_FORCE.items()
    ]
    return [row for row in found if any(row[run.run_id] is not None for run in runs)]


def _named(
    runs: Sequence[RunData], part: str, values: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    names = sorted(set().union(*(each.keys() for each in values)))
    kind = "number"
    return [_row(runs, part, name, [each.get(name) for each in values], kind) for name in names]


def _params(run: RunData) -> dict[str, Any]:
    """Parameters; those that are numbers as numbers, so that they can be compared."""
    return {
        name: _number(text) for name, text in (run.tracked.params if run.tracked else {}).items()
    }


def _number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return text
    return text if live.finite(value) is None else value


def _metrics(run: RunData) -> dict[str, Any]:
    known = run.tracked.metrics if run.tracked else {}
    return {
        name: str(value) if live.finite(value) is None else value
        for name, value in known.items()
        if not name.startswith(_OURS)
    }


def _metric(run: RunData, name: str) -> float | None:
    return live.finite(run.tracked.metrics.get(name)) if run.tracked else None
