"""The map of devices: a tile for each, with its owner, its readings and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from mlflow_rlsched.words import short
from rlsched_dashboard import components, formats
from rlsched_dashboard.context import Context

Row = dict[str, Any]


def tiles(context: Context, rows: Sequence[Row]) -> Component:
    """A tile for each device of ``Scheduler.devices``."""
    if not rows:
        return components.notice("No devices", "This host offers none.", "rlsched doctor")
    return html.Ul([_tile(context, row) for row in rows], className="devices")


def _tile(context: Context, row: Row) -> Component:
    kind = "closed" if row["not_offered"] else "busy" if row["held_by"] else "free"
    facts = [
        text
        for text in (
            _of(row["power_watts"], row["power_limit_watts"], "W"),
            _reading(row["temperature_celsius"], "°C"),
        )
        if text
    ]
    parts: list[Any] = [
        dmc.Group(
            [
                html.Span(_name(row), className="device-name"),
                html.Span(kind if kind != "closed" else "not offered", className=f"device-{kind}"),
            ],
            justify="space-between",
            wrap="nowrap",
        ),
        dmc.Text(row["name"], size="xs", c="dimmed"),
        *_bars(row),
    ]
    if facts:
        parts.append(dmc.Text(" · ".join(facts), size="xs", c="dimmed"))
    parts += [_holder(context, held) for held in row["held_by"]]
    if row["not_offered"]:
        parts.append(dmc.Text(row["not_offered"], size="xs", className="device-note"))
    return html.Li(parts, className=f"device {kind}", id=f"device-{row['id']}")


def _name(row: Row) -> str:
    return row["id"] if row["kind"] == "cpu" else f"{row['kind'].upper()} {row['index']}"


def _bars(row: Row) -> list[Component]:
    used, total = row["memory_used_bytes"], row["memory_total_bytes"]
    bars = []
    if row["utilization_percent"] is not None:
        part = row["utilization_percent"] / 100
        bars.append(_bar("use", part, formats.percent(part)))
    if used is not None and total:
        text = f"{formats.size(used)} of {formats.size(total)}"
        bars.append(_bar("memory", used / total, text))
    return bars


def _bar(label: str, part: float, text: str) -> Component:
    return html.Div(
        [
            html.Span(label, className="bar-label"),
            html.Span(
                html.Span(style={"width": f"{100 * min(1.0, part):.0f}%"}),
                className="bar",
                role="img",
                **{"aria-label": f"{label} {text}"},
            ),
            html.Span(text, className="bar-value"),
        ],
        className="bar-row",
    )


def _holder(context: Context, held: Row) -> Component:
    part = "" if held["amount"] == 100 else f" {held['amount']} %"
    return html.Div(
        [
            dmc.Anchor(
                held["name"] or short(held["run_id"]),
                href=context.href(f"/runs/{held['run_id']}"),
                size="sm",
            ),
            dmc.Text(
                f"{held['user']}{part}{', draining' if held['draining'] else ''}",
                size="xs",
                c="dimmed",
            ),
        ],
        className="device-holder",
    )


def _reading(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _of(used: float | None, limit: float | None, unit: str) -> str:
    if used is None:
        return ""
    return f"{used:.0f} {unit}" if limit is None else f"{used:.0f} of {limit:.0f} {unit}"
