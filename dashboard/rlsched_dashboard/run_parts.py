"""Parts of the page of a run: its figures, attempts, decisions, and what it left behind."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from mlflow_rlsched.overview.decisions import action_text, change, changed
from mlflow_rlsched.policy.fields import FIELDS
from mlflow_rlsched.words import duration
from rlsched_dashboard import components, formats, tables
from rlsched_dashboard.sources.critics import q_values
from rlsched_dashboard.sources.run import Record, RunData

GRID = "run-decisions"
SHOWN = 2000
"""Decisions in the table, the newest."""


def figures(data: RunData, about: dict[str, Any]) -> Component:
    """The strip of key figures; ``about`` is of ``Scheduler.describe``, or empty."""
    progress = about.get("progress") or {}
    last = data.decisions[-1] if data.decisions else None
    metrics = data.tracked.metrics if data.tracked else {}
    setting = last["setting"] if last else {}
    done = last["state"]["progress"] if last else None
    objective = metrics.get(data.objective)
    held = sum(
        ((each.ended_at or time.time()) - each.started_at)
        * sum(share.amount for share in each.devices)
        / 100
        for each in data.attempts
    )
    known = data.tracked.attempts if data.tracked else None
    restarts = max(0, (len(data.attempts) or known or 1) - 1)
    ooms = data.task.ooms if data.task else 0
    shown = [
        components.figure(
            "Progress",
            formats.percent(done["value"]) if done and not done["missing"] else formats.MISSING,
            f"step {progress['step']:,.0f}" if "step" in progress else "",
        ),
        components.figure(data.objective, formats.number(objective), "the objective, newest value"),
        components.figure(
            "Setting",
            f"{setting['gpus']} / {formats.number(setting['batch_size'])}"
            if setting.get("batch_size")
            else formats.number(setting.get("gpus")),
            "devices / batch size" if setting.get("batch_size") else "devices",
        ),
        components.figure(
            "Learning rate",
            formats.number(metrics.get("rlsched/learning_rate")),
            f"{setting['lr_scale']:.3g} times its own" if setting else "",
        ),
        components.figure("Device time", formats.hours(held) if held else formats.MISSING, ""),
        components.figure(
            "Restarts", str(restarts), f"{ooms} out of memory" if ooms else "none out of memory"
        ),
    ]
    return components.strip(shown)


def note(about: dict[str, Any]) -> list[Component]:
    """What a person should know of it first: why it waits, how it ended, what it is warned of."""
    parts = []
    state, message = about.get("state"), about.get("message", "")
    if state == "queued":
        expected = (about.get("expected") or {}).get("text", "")
        why = "; ".join(filter(None, (expected, message)))
        parts.append(components.notice("It waits", why or "The agent has not looked at it yet."))
    elif state in ("failed", "killed"):
        title = (about["exit_reason"] or state).replace("_", " ")
        parts.append(components.notice(f"Ended: {title}", message, kind="error"))
    for warning in about.get("warnings", ()):
        text = f"{warning['text']} (attempt {warning['attempt']})"
        parts.append(components.notice("Warning", text, kind="gone"))
    return parts


def attempts(data: RunData, zone: str) -> Component:
    """The table of attempts."""
    rows = [
        {
            "number": each.number,
            "started_at": each.started_at,
            "lasted_s": (each.ended_at or time.time()) - each.started_at,
            "devices": ", ".join(share.device[:12] for share in each.devices),
            "code": each.exit_code,
            "reason": each.reason.replace("_", " ") or "running",
            "message": each.message,
        }
        for each in data.attempts
    ]
    columns = [
        tables.number("number", "No", width=70),
        tables.when("started_at", "Started", zone),
        tables.duration("lasted_s", "Lasted", width=110),
        tables.text("devices", "Devices", minWidth=120, flex=1),
        tables.number("code", "Exit code", width=100),
        tables.text("reason", "Ended as", width=130),
        tables.text("message", "Message", minWidth=220, flex=3, wrapText=True, autoHeight=True),
    ]
    return tables.grid(
        "run-attempts", columns, rows, "number", "Attempts of this run", filters=False
    )


def decisions(data: RunData, zone: str) -> Component:
    """The table of decisions, newest first."""
    columns = [
        tables.number("number", "No", width=80, sort="desc"),
        tables.moment("time", "Time", zone, width=105),
        tables.text("change", "Change", minWidth=190, flex=2),
        tables.text("reason", "Why", minWidth=300, flex=5, tooltipField="reason"),
        tables.text("wanted", "Proposed", minWidth=150, flex=1),
        tables.text("vetoes", "The guard", minWidth=150, flex=2, tooltipField="vetoes"),
        tables.number("reward", "Reward", width=95),
        tables.text("policy", "Policy", width=95),
    ]
    return tables.grid(
        GRID,
        columns,
        decision_rows(data.decisions[-SHOWN:]),
        "number",
        "Decisions: choose one to see all of it",
        height=420,
        options={
            "rowSelection": {
                "mode": "singleRow",
                "checkboxes": False,
                "enableClickSelection": True,
            },
            "localeText": {
                "noRowsToShow": "No decision was made yet: they begin some seconds after the"
                " training reports, see attach() in the README"
            },
        },
    )


def decision_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Rows of the table of decisions."""
    return [
        {
            "number": record["number"],
            "time": record["time"],
            "change": change(record) if changed(record) else "",
            "reason": record["reason"],
            "wanted": action_text(record["proposal"]["action"]),
            "vetoes": "; ".join(record["vetoes"]),
            "reward": record["reward"]["total"],
            "policy": record["policy"],
        }
        for record in records
    ]


def decision(record: Record, zone: str) -> list[Component]:
    """One decision in full."""
    actions = {
        "proposed": record["proposal"]["action"],
        "applied": record["action"],
        **{
            name: each["action"]
            for name, each in record.get("alternatives", {}).items()
            if each["action"]
        },
    }
    learned = record if record["policy"] == "ddpg" else record.get("alternatives", {}).get("ddpg")
    worth = q_values(learned["version"], record.get("inputs"), actions) if learned else {}
    parts: list[Component] = [
        dmc.Text(change(record) if changed(record) else "No change", fw=600),
        dmc.Text(record["reason"], size="sm"),
        dmc.Text(
            f"{formats.when(record['time'], zone)}, attempt {record['attempt']},"
            f" {duration(record['elapsed_s'])} into the run; policy {record['policy']},"
            f" version {record['version']}",
            size="xs",
            c="dimmed",
        ),
        dmc.Title("What each would do", order=3, size="h6", mt="md"),
        _actions(record, actions, worth),
    ]
    if record["vetoes"]:
        parts += [
            dmc.Title("What the guard changed", order=3, size="h6", mt="md"),
            dmc.List([dmc.ListItem(veto) for veto in record["vetoes"]], size="sm"),
        ]
    parts += [
        dmc.Title("Reward of the interval that ended here", order=3, size="h6", mt="md"),
        components.table(
            ("Part", "Value"),
            [(name, f"{value:+.4f}") for name, value in record["reward"].items()],
            "Reward by component",
        ),
        dmc.Title("What was seen", order=3, size="h6", mt="md"),
        _state(record),
    ]
    return parts


def _actions(record: Record, actions: dict[str, Any], worth: dict[str, float]) -> Component:
    reasons = {
        "proposed": record["proposal"]["reason"],
        "applied": "after the guard",
        **{name: each["reason"] for name, each in record.get("alternatives", {}).items()},
    }
    rows = [
        (
            name,
            action_text(actions[name]) if name in actions else "it failed",
            *([formats.number(worth.get(name))] if worth else []),
            reasons[name],
        )
        for name in reasons
    ]
    headings = ("Who", "Action", *(["Q"] if worth else []), "Why")
    label = "What each policy would do, and what the critics think of it"
    return components.table(headings, rows, label)


def _state(record: Record) -> Component:
    rows = []
    for field in FIELDS:
        known = record["state"].get(field.name)
        if known is not None:
            value = "not known" if known["missing"] else f"{known['value']:.4g}"
            rows.append(
                (
                    html.Span(field.name.replace("_", " "), title=field.meaning),
                    value,
                    field.unit,
                    f"{known['normalised']:+.2f}",
                )
            )
    return components.table(("State", "Value", "Unit", "Normalised"), rows, "The state, by name")


def about(data: RunData, described: dict[str, Any]) -> list[Component]:
    """Where it comes from and what it left: parameters, checkpoints, output."""
    params = data.tracked.params if data.tracked else described.get("parameters", {})
    facts = {
        "run": data.run_id,
        "project": described.get("project", ""),
        "entry point": described.get("entry_point", ""),
        "user": described.get("user", ""),
        "host": described.get("host") or "",
        "folder": described.get("run_dir", ""),
    }
    rows = [(name, value) for name, value in facts.items() if value]
    parts = [
        components.card("About", components.table(("", ""), rows, "About this run")),
        components.card(
            "Parameters", components.table(("Name", "Value"), sorted(params.items()), "Parameters")
        ),
    ]
    if data.run_dir is not None:
        parts.append(components.card("Checkpoints", _checkpoints(data.run_dir)))
    return parts


def _checkpoints(run_dir: Path) -> Component:
    try:
        found = sorted((run_dir / "checkpoints").iterdir(), reverse=True)
        rows = [(each.name, formats.size(_size(each))) for each in found]
    except OSError:
        rows = []
    if not rows:
        return dmc.Text("None: the training saved nothing yet.", size="sm", c="dimmed")
    return components.table(("Checkpoint", "Size"), rows, "Checkpoints")


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())


def output(described: dict[str, Any]) -> Component:
    """The last lines that the run printed."""
    lines = described.get("last_output") or []
    if not lines:
        return dmc.Text("Nothing was printed yet, or not on this host.", size="sm", c="dimmed")
    return html.Pre("\n".join(lines), className="output", tabIndex=0)
