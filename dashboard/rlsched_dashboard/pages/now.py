"""Now: what is busy, what waits and why, and what can be asked of it."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from dash import Dash, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.store import StoreError, Task
from mlflow_rlsched.words import duration, short
from rlsched_dashboard import actions, components, device_map, formats, live, tables
from rlsched_dashboard.context import Context, View

ENDED = 30
"""Runs that ended lately."""

OF_TASKS = ("cancel", "prioritize")
OF_ENDED = ("retry",)
_SENTENCE = {"minWidth": 260, "flex": 5, "wrapText": True, "autoHeight": True}


def layout(context: Context, view: View) -> Component:
    """The page."""
    parts = _read(context, view.zone)
    read_only = context.settings.read_only
    return html.Div(
        [
            components.page_title("Now"),
            html.Div(parts["troubles"], id="now-troubles"),
            html.Div(parts["figures"], id="now-figures", **{"aria-live": "off"}),
            components.card("Devices", html.Div(parts["devices"], id="now-devices")),
            components.card(
                "Running and waiting",
                tables.grid(
                    "now-tasks",
                    _columns(view.zone),
                    parts["tasks"],
                    "run_id",
                    "Runs that run or wait, first those that go first",
                    selection=not read_only,
                    filters=False,
                ),
                None if read_only else actions.buttons("now-tasks", OF_TASKS),
            ),
            components.card(
                "Ended lately",
                tables.grid(
                    "now-ended",
                    _ended_columns(view.zone),
                    parts["ended"],
                    "run_id",
                    "Runs that ended lately",
                    selection=not read_only,
                    filters=False,
                ),
                None if read_only else actions.buttons("now-ended", OF_ENDED),
            ),
            dcc.Store(id="now-zone", data=view.zone),
            dcc.Store(id="now-seen", data=live.digests(parts)),
        ]
    )


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    if not context.settings.read_only:
        actions.register_choice(app, "now-tasks", OF_TASKS, ("now-tasks", "selectedRows"))
        actions.register_choice(app, "now-ended", OF_ENDED, ("now-ended", "selectedRows"))

    @app.callback(
        Output("now-troubles", "children"),
        Output("now-figures", "children"),
        Output("now-devices", "children"),
        Output("now-tasks", "rowData"),
        Output("now-ended", "rowData"),
        Output("now-seen", "data"),
        live.REFRESH,
        State("now-zone", "data"),
        State("now-seen", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, zone: str, seen: dict[str, str]) -> Any:
        try:
            parts = _read(context, zone)
        except StoreError as error:
            told = components.notice("The store cannot be read", str(error), kind="error")
            return [told, *[no_update] * 4, {**seen, "troubles": ""}]
        digests = live.digests(parts)
        if digests == seen:
            return [no_update] * 6
        news = [no_update if digests[name] == seen[name] else parts[name] for name in parts]
        return [*news, digests]


def _read(context: Context, zone: str) -> dict[str, Any]:
    """What the page shows, by part."""
    scheduler = context.scheduler
    rows = scheduler.devices()
    queue = scheduler.queue()
    ended = scheduler.ended(ENDED)
    return {
        "troubles": _troubles(context, queue),
        "figures": _figures(context, zone, rows, queue),
        "devices": device_map.tiles(context, rows),
        "tasks": [_task_row(context, row) for row in queue],
        "ended": [_ended_row(context, task) for task in ended],
    }


def _troubles(context: Context, queue: list[dict[str, Any]]) -> list[Component]:
    if not context.scheduler.exists():
        return [
            components.notice(
                "Nothing was submitted yet",
                "Runs appear here as soon as the first one is queued. In a project's folder:",
                "mlflow run . --backend rlsched",
            )
        ]
    if queue and not context.scheduler.agent_lives():
        return [
            components.notice(
                "No agent lives",
                "Runs wait, and nobody starts them or looks after them. Start the agent:",
                f"rlsched agent start --store {context.settings.store}",
                kind="error",
            )
        ]
    return []


def _figures(
    context: Context, zone: str, rows: list[dict[str, Any]], queue: list[dict[str, Any]]
) -> Component:
    busy = sum(1 for row in rows if row["held_by"])
    waiting = [row for row in queue if row["state"] == "queued"]
    now = time.time()
    midnight = datetime.now(formats.place(zone)).replace(hour=0, minute=0, second=0, microsecond=0)
    usage = context.meter.since(midnight.timestamp(), now)
    readings = [
        row["utilization_percent"] for row in rows if row["utilization_percent"] is not None
    ]
    use = sum(readings) / len(readings) / 100 if readings else None
    closed = sum(1 for row in rows if row["not_offered"])
    longest = max((row["age_s"] for row in waiting), default=0.0)
    return components.strip(
        [
            components.figure(
                "Devices busy",
                f"{busy} of {len(rows)}",
                f"{closed} not offered" if closed else "all offered",
            ),
            components.figure(
                "Utilisation",
                formats.percent(use),
                "mean of the devices" if readings else "not measured yet",
            ),
            components.figure(
                "Queue",
                f"{len(waiting)} waiting",
                f"longest since {_rough(longest)}" if waiting else "nothing waits",
            ),
            components.figure(
                "Device time today",
                formats.hours(usage.device_s),
                f"since midnight, {zone}",
            ),
            components.figure(
                "Cost today",
                formats.number(usage.cost, 3),
                "set `prices` to see it" if usage.cost is None else "by the runs' `prices`",
            ),
            components.figure(
                "Saved against fixed",
                formats.MISSING if usage.saved_s is None else formats.hours(usage.saved_s.value),
                "no tuned run of today tells it"
                if usage.saved_s is None
                else f"estimate, {formats.hours(usage.saved_s.low)} to"
                f" {formats.hours(usage.saved_s.high)}; tuned runs: {usage.tuned}",
                title="Device time: what was done after the first change, at the speed of the first"
                " setting, less the time taken; 95 % interval. `rlsched report` tells more",
            ),
        ]
    )


def _rough(seconds: float) -> str:
    """A length of time that changes seldom: whole minutes from the first one on."""
    return duration(seconds if seconds < 60 else seconds - seconds % 60)


def _columns(zone: str) -> list[tables.Column]:
    return [
        tables.link("name", "Run", "href", minWidth=140, flex=2),
        tables.state(),
        tables.number("priority", "Priority", width=90),
        tables.text("why", "Why", **{**_SENTENCE, "minWidth": 200}),
        tables.moment("expected_at", "Starts about", zone, width=120),
        tables.text("holds", "Holds", minWidth=90, flex=1),
        tables.text("wants", "Wants", width=90),
        tables.text("user", "User", width=80),
        tables.number("attempt", "Attempt", width=90),
        tables.moment("submitted_at", "Submitted", zone),
    ]


def _task_row(context: Context, row: dict[str, Any]) -> dict[str, Any]:
    expected = row["expected"] or {}
    in_s = expected.get("in_s")
    now = time.time()
    return {
        "run_id": row["run_id"],
        "href": context.href(f"/runs/{row['run_id']}"),
        "name": row["name"] or short(row["run_id"]),
        "state": row["state"],
        "priority": row["priority"],
        "user": row["user"],
        "wants": _wants(row["wants"]),
        "holds": ", ".join(hold["device"][:12] for hold in row["holds"]),
        "attempt": row["attempt"] or None,
        "submitted_at": row["submitted_at"],
        # To the minute, or every refresh would move all rows.
        "expected_at": None if in_s is None else round((now + in_s) / 60) * 60,
        "why": "; ".join(filter(None, (row["why"], (row["budget"] or {}).get("why")))),
    }


def _wants(wants: dict[str, Any]) -> str:
    if wants["shares_parent"]:
        return "its parent's"
    part = "" if wants["amount"] == 100 else f" at {wants['amount']} %"
    return f"{wants['gpus']} device{'s' * (wants['gpus'] != 1)}{part}"


def _ended_columns(zone: str) -> list[tables.Column]:
    return [
        tables.link("name", "Run", "href", minWidth=150, flex=2),
        tables.state(),
        tables.text("message", "What happened", **_SENTENCE),
        tables.moment("ended_at", "Ended", zone),
        tables.duration("lasted_s", "Lasted", width=100),
        tables.number("attempt", "Attempts", width=95),
        tables.text("user", "User", width=90),
    ]


def _ended_row(context: Context, task: Task) -> dict[str, Any]:
    lasted = task.ended_at - task.started_at if task.ended_at and task.started_at else None
    return {
        "run_id": task.run_id,
        "href": context.href(f"/runs/{task.run_id}"),
        "name": task.spec.label or short(task.run_id),
        "state": task.state.value,
        "user": task.spec.user,
        "attempt": task.attempt,
        "lasted_s": lasted,
        "ended_at": task.ended_at,
        "message": task.message or task.exit_reason,
    }
