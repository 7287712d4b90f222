"""One run: what happened to it over time, every decision, and why."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.store import StoreError
from mlflow_rlsched.words import short
from rlsched_dashboard import (
    actions,
    address,
    charts,
    components,
    linked_zoom,
    live,
    run_charts,
    run_parts,
)
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.run_updates import Seen, updates
from rlsched_dashboard.sources.run import RunData, read_histories, read_run
from rlsched_dashboard.sources.tracking import RunGone, TrackingError
from rlsched_dashboard.timeline import Timeline

CHART = "run-chart"
SAMPLED = "sampled: lowest and highest of each stretch, zoom in for all"


def layout(context: Context, view: View) -> Component:
    """The page."""
    run_id = view.path.rsplit("/", 1)[-1]
    try:
        data = read_run(context, run_id)
    except RunGone:
        return _gone(context, run_id)
    described = context.scheduler.describe(data.task) if data.task else {}
    timeline = timeline_of(data, view.zone, view.query)
    name = data.name or short(run_id)
    heads = _heads(context, data, described)
    zoom = None if timeline.zoom is None else address.pair(view.query.get("zoom"))
    return html.Div(
        [
            components.page_title(
                name,
                [
                    *_links(context, data),
                    html.Div(heads["actions"], id="run-actions"),
                ],
                html.Span(heads["state"], id="run-state"),
            ),
            html.Div(heads["notes"], id="run-notes"),
            html.Div(heads["figures"], id="run-figures"),
            _chart_tools(timeline),
            html.Div(
                _charts(context, data, timeline),
                id="run-charts",
                className="charts run-charts linked",
            ),
            components.card("Decisions", run_parts.decisions(data, view.zone)),
            components.card(
                "Attempts",
                html.Div(run_parts.attempts(data, view.zone), id="run-attempts-part"),
            ),
            components.card(
                "Output",
                html.Div(heads["output"], id="run-output"),
                note=f"the last lines; all of it: rlsched logs {short(run_id)}",
            ),
            html.Div(heads["about"], id="run-about", className="charts"),
            dmc.Drawer(
                id="run-drawer",
                title="Decision",
                position="right",
                size="lg",
                closeButtonProps={"aria-label": "Close"},
            ),
            dcc.Store(id="run-id", data=run_id),
            dcc.Store(id="run-chosen", data=[{"run_id": run_id, "name": name}]),
            dcc.Store(id="run-zoom", data=zoom),
            dcc.Store(id="run-whole-range", data=timeline.whole()),
            dcc.Store(id="run-decision", data=address.whole(view.query.get("decision"))),
            dcc.Store(id="run-seen", data=Seen.of(context, data, timeline).to_json()),
            dcc.Store(id="run-heads", data=live.digests(heads)),
        ]
    )


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    if not context.settings.read_only:
        source = ("run-chosen", "data")
        actions.register_choice(app, "run", tuple(actions.ACTIONS), source, always=True)
    _register_zoom(app, context)
    _register_decisions(app, context)

    @app.callback(
        Output({"type": CHART, "name": ALL}, "extendData"),
        Output("run-charts", "children"),
        Output("run-decisions", "rowTransaction"),
        Output("run-attempts-part", "children"),
        Output("run-whole-range", "data"),
        Output("run-seen", "data"),
        live.REFRESH,
        State("run-id", "data"),
        State("run-seen", "data"),
        State("run-zoom", "data"),
        State("run-axis", "value"),
        State("view", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, run_id: str, seen: Any, zoom: Any, axis: str, view: Any) -> Any:
        names = [each["id"]["name"] for each in ctx.outputs_list[0]]
        still: list[Any] = [no_update] * len(names)
        nothing = (still, *[no_update] * 5)
        try:
            data = read_run(context, run_id)
        except (RunGone, TrackingError, StoreError):
            return nothing  # the heads say so
        timeline = timeline_of(data, view["zone"], {"axis": axis}, zoom)
        now, before = Seen.of(context, data, timeline), Seen.from_json(seen)
        if now == before:
            return nothing
        rows = run_parts.decision_rows(data.decisions[before.decisions :])
        transaction = {"add": rows} if rows else no_update
        table = no_update
        if now.attempts != before.attempts:
            table = run_parts.attempts(data, view["zone"])
        news = updates(context, data, timeline, before, now)
        if news is None:
            return (
                still,
                _charts(context, data, timeline),
                transaction,
                table,
                timeline.whole(),
                now.to_json(),
            )
        parts = [news.get(name, no_update) for name in names]
        drawn = now.grown(before).to_json()
        return parts, no_update, transaction, table, timeline.whole(), drawn

    @app.callback(
        Output("run-state", "children"),
        Output("run-actions", "children"),
        Output("run-notes", "children"),
        Output("run-figures", "children"),
        Output("run-output", "children"),
        Output("run-about", "children"),
        Output("run-heads", "data"),
        live.REFRESH,
        State("run-id", "data"),
        State("run-heads", "data"),
        prevent_initial_call=True,
    )
    def _renew_heads(_: Any, run_id: str, seen: dict[str, str]) -> Any:
        try:
            data = read_run(context, run_id)
            described = context.scheduler.describe(data.task) if data.task else {}
            heads = _heads(context, data, described)
        except RunGone:
            return components.state_badge("deleted"), None, _gone(context, run_id), *[no_update] * 4
        except (TrackingError, StoreError) as error:
            told = components.notice("It cannot be read now", str(error), kind="error")
            return no_update, no_update, told, *[no_update] * 3, {**seen, "notes": ""}
        digests = live.digests(heads)
        return *(
            no_update if digests[part] == seen.get(part) else heads[part] for part in heads
        ), digests


def timeline_of(data: RunData, zone: str, query: Mapping[str, str], zoom: Any = None) -> Timeline:
    """The axis of a run's charts, as the address has it; ``zoom`` are places on it."""
    start = data.started_at or time.time()
    over = data.state != "running"
    ends = [each.ended_at for each in data.attempts if each.ended_at]
    if data.tracked and data.tracked.ended_at:
        ends.append(data.tracked.ended_at)
    if data.decisions:  # the last one is made after the end
        ends.append(data.decisions[-1]["time"])
    length_s = max([1.0, (max(ends) if over and ends else time.time()) - start])
    plain = Timeline(start, length_s, zone, query.get("axis") == "elapsed")
    places = zoom or address.pair(query.get("zoom"))
    if not places:
        return plain
    try:
        low, high = (plain.time(place) for place in places)
    except (ValueError, TypeError, OverflowError):
        return plain
    return replace(plain, zoom=(low, high)) if 0 < high - low < math.inf else plain


def _heads(context: Context, data: RunData, described: dict[str, Any]) -> dict[str, Any]:
    """What is renewed whole when it changes, by part."""
    notes = run_parts.note(described)
    if data.trouble:
        notes.insert(0, components.notice("Something is missing", data.trouble, kind="error"))
    return {
        "state": components.state_badge(data.state),
        "actions": None
        if context.settings.read_only
        else actions.buttons("run", tuple(actions.ACTIONS), _possible(data)),
        "notes": notes,
        "figures": run_parts.figures(data, described),
        "output": run_parts.output(described),
        "about": run_parts.about(data, described),
    }


def _charts(context: Context, data: RunData, timeline: Timeline) -> list[Component]:
    histories = read_histories(context, data, run_charts.metric_names(data))
    shown = run_charts.charts_of(data)
    if not shown:
        return [
            components.notice(
                "Nothing to draw yet",
                "Charts appear as soon as the training reports, or logs metrics to MLflow.",
            )
        ]
    made = run_charts.figures(data, histories, timeline)
    thinned = run_charts.thinned(data, histories)
    return [
        charts.chart_card(
            {"type": CHART, "name": name},
            chart.title,
            made[name],
            "; ".join(filter(None, (chart.note, SAMPLED * (name in thinned)))),
        )
        for name, chart in shown.items()
    ]


def _chart_tools(timeline: Timeline) -> Component:
    return dmc.Group(
        [
            dmc.SegmentedControl(
                id="run-axis",
                data=[
                    {"value": "clock", "label": "Clock"},
                    {"value": "elapsed", "label": "Elapsed"},
                ],
                value="elapsed" if timeline.elapsed else "clock",
                size="xs",
                **{"aria-label": "Time axis"},
            ),
            dmc.Button(
                "Whole run",
                id="run-whole",
                size="compact-sm",
                variant="default",
                disabled=timeline.zoom is None,
            ),
            dmc.Text(
                "Drag over a chart to zoom all; click a mark for its decision",
                size="xs",
                c="dimmed",
                visibleFrom="sm",
            ),
        ],
        gap="sm",
        mb="sm",
    )


def _register_zoom(app: Dash, context: Context) -> None:
    linked_zoom.register(app, "run", CHART)
    app.clientside_callback(
        ClientsideFunction("zoom", "axis"),
        Output("address", "data", allow_duplicate=True),
        Input("run-axis", "value"),
        prevent_initial_call=True,
    )
    live.keep_in_address(app, {"zoom": ("run-zoom", "data"), "decision": ("run-decision", "data")})

    @app.callback(
        Output({"type": CHART, "name": ALL}, "figure"),
        Input("run-zoom", "data"),
        State("run-id", "data"),
        State("run-axis", "value"),
        State("view", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _finer(zoom: Any, run_id: str, axis: str, view: Any) -> list[Any]:
        names = [each["id"]["name"] for each in ctx.outputs_list]
        if ctx.triggered_id is None:  # the page was just drawn
            return [no_update] * len(names)
        try:
            data = read_run(context, run_id)
        except (RunGone, TrackingError, StoreError):
            return [no_update] * len(names)
        timeline = timeline_of(data, view["zone"], {"axis": axis}, zoom)
        histories = read_histories(context, data, run_charts.metric_names(data))
        thinned = run_charts.thinned(data, histories)
        made = run_charts.figures(data, histories, timeline) if thinned else {}
        return [charts.renewed(made[name]) if name in thinned else no_update for name in names]


def _register_decisions(app: Dash, context: Context) -> None:
    app.clientside_callback(
        ClientsideFunction("run", "decision"),
        Output("run-decision", "data"),
        Input({"type": CHART, "name": ALL}, "clickData"),
        Input("run-decisions", "selectedRows"),
        Input("run-drawer", "opened"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("run-drawer", "opened"),
        Output("run-drawer", "title"),
        Output("run-drawer", "children"),
        Input("run-decision", "data"),
        State("run-id", "data"),
        State("view", "data"),
    )
    def _show(number: int | None, run_id: str, view: Any) -> Any:
        if number is None:
            return False, no_update, no_update
        try:
            data = read_run(context, run_id)
        except (RunGone, TrackingError, StoreError):
            return False, no_update, no_update
        found = [record for record in data.decisions if record["number"] == number]
        if not found:
            told = components.notice("No such decision", f"This run has no decision {number}.")
            return True, "Decision", told
        return True, f"Decision {number}", run_parts.decision(found[-1], view["zone"])


def _links(context: Context, data: RunData) -> list[Component]:
    if data.tracked is None:
        return []
    href = context.mlflow_href(data.tracked.experiment_id, data.run_id)
    if href is None:
        return []
    return [
        dmc.Anchor("MLflow", href=href, target="_blank", size="sm"),
        dmc.Anchor("Artifacts", href=f"{href}/artifacts", target="_blank", size="sm"),
    ]


def _possible(data: RunData) -> tuple[str, ...]:
    """What can be asked of a run in its state."""
    if data.state in ("queued", "running"):
        return ("cancel", "prioritize")
    return ("retry",) if data.state in ("failed", "killed") else ()


def _gone(context: Context, run_id: str) -> Component:
    return html.Div(
        [
            components.notice(
                "This run is gone",
                f"MLflow has no run {run_id}, or it was deleted there. If it was, this brings it"
                " back:",
                f"mlflow runs restore --run-id {shlex.quote(run_id)}",
                kind="gone",
            ),
            dmc.Anchor("All runs", href=context.href("/runs")),
        ]
    )
