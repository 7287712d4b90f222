"""Compare: two to ten runs over one axis, and what makes them different."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.store import StoreError
from mlflow_rlsched.words import short
from rlsched_dashboard import (
    address,
    charts,
    compare_charts,
    compare_table,
    components,
    linked_zoom,
    live,
    tables,
)
from rlsched_dashboard.compare_charts import COLOURS, TITLES, Shared
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.sources.comparison import AXES, MOST, read_runs
from rlsched_dashboard.sources.run import RunData
from rlsched_dashboard.sources.tracking import TrackingError

CHART = "compare-chart"
OFFERED = 500
"""Runs that the picker offers, the newest."""


@dataclass(frozen=True)
class Asked:
    """What is to be compared, and how.

    Attributes:
        run_ids: The runs, at most ``MOST``.
        left_out: Runs that were asked for beyond that.
        axis: One of ``AXES``.
        baseline: Run that the others are compared with, or "".
        metrics: Metrics to draw; None for the usual ones.
        zoom: Places of the axis that are zoomed to, or None.
        differs: Whether the table shows only what is not the same in all.
    """

    run_ids: Sequence[str]
    left_out: int
    axis: str
    baseline: str
    metrics: Sequence[str] | None
    zoom: tuple[float, float] | None
    differs: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """What an address asks for; what somebody spoilt there is ignored."""
        ids = list(dict.fromkeys(filter(None, query.get("runs", "").split(","))))
        kept = ids[:MOST]
        axis, baseline = query.get("axis", "time"), query.get("baseline", "")
        metrics = query.get("metrics")
        return cls(
            kept,
            len(ids) - len(kept),
            axis if axis in AXES else "time",
            baseline if baseline in kept else kept[0] if kept else "",
            None if metrics is None else list(dict.fromkeys(filter(None, metrics.split(",")))),
            _range(query.get("zoom")),
            query.get("differs") == "true",
        )


def layout(context: Context, view: View) -> Component:
    """The page."""
    asked = Asked.of(view.query)
    parts = _read(context, asked)
    return html.Div(
        [
            components.page_title("Compare", _links(context, parts.runs)),
            _pickers(context, asked, parts),
            html.Div(parts.notes, id="compare-notes"),
            *_compared(context, asked, parts),
            dcc.Store(id="compare-zoom", data=asked.zoom),
            dcc.Store(id="compare-whole-range", data=parts.whole),
            dcc.Store(id="compare-shown", data=_shown(asked, parts)),
            dcc.Store(id="compare-query", data=dict(view.query)),
            dcc.Store(id="compare-seen", data=_digests(parts)),
        ]
    )


@dataclass(frozen=True)
class _Parts:
    """What the page shows of what was asked."""

    runs: list[RunData]
    notes: list[Component]
    figures: dict[str, Any]
    whole: list[float]
    metrics: list[str]
    rows: list[dict[str, Any]]


def _read(context: Context, asked: Asked) -> _Parts:
    runs, gone, trouble = read_runs(context, asked.run_ids)
    shared = Shared.of(context, runs, asked.axis, asked.zoom)
    metrics = compare_charts.usual(runs) if asked.metrics is None else list(asked.metrics)
    figures, whole = compare_charts.figures(context, runs, metrics, shared, asked.baseline)
    pairs = zip(runs, shared.ways, strict=True)
    missing = [run.name or short(run.run_id) for run, way in pairs if way is None]
    return _Parts(
        runs,
        _notes(asked, gone, trouble, missing),
        {name: each for name, each in figures.items() if each["data"]},
        whole,
        metrics,
        compare_table.rows(context, runs, asked.differs),
    )


def _digests(parts: _Parts) -> dict[str, str]:
    """What tells whether a chart, the table or the notes changed."""
    return live.digests({**parts.figures, "": [parts.rows, parts.notes]})


def _notes(
    asked: Asked, gone: Sequence[str], trouble: TrackingError | None, missing: Sequence[str]
) -> list[Component]:
    notes = []
    if asked.left_out:
        text = f"The address names {asked.left_out} more: {MOST} can be told apart in a chart."
        notes.append(components.notice(f"The first {MOST} runs are shown", text, kind="gone"))
    if gone:
        text = f"MLflow has no run {', '.join(map(short, gone))}, or it was deleted there."
        notes.append(components.notice("Not all runs are there any more", text, kind="gone"))
    if trouble is not None:
        notes.append(components.notice("MLflow cannot be read", str(trouble), kind="error"))
    if missing:
        text = f"{AXES[asked.axis]} of {', '.join(missing)} were not recorded: choose another axis."
        notes.append(components.notice("Not all runs are in the charts", text))
    return notes


def _compared(context: Context, asked: Asked, parts: _Parts) -> list[Component]:
    shown = [
        _legend(context, asked, parts.runs),
        html.Div(_charts(parts.figures), id="compare-charts", className="charts linked"),
        _table(asked, parts),
    ]
    if len(parts.runs) > 1:
        return shown
    text = "Choose two to ten above, or mark them on the page Runs and press Compare there."
    empty = components.notice("Nothing to compare yet", text)
    return [empty, html.Div(shown, style={"display": "none"})]


def _charts(figures: Mapping[str, Any]) -> list[Component]:
    if not figures:
        text = "None of these runs has a point of the chosen metrics on this axis yet."
        return [components.notice("Nothing to draw yet", text)]
    return [
        charts.chart_card(
            {"type": CHART, "name": name},
            TITLES.get(name, name),
            shown,
            "sampled: lowest and highest of each stretch, zoom in for all"
            * shown["layout"]["meta"]["sampled"],
        )
        for name, shown in figures.items()
    ]


def _table(asked: Asked, parts: _Parts) -> Component:
    switch = dmc.Switch(
        id="compare-differs", label="Only what differs", checked=asked.differs, size="sm"
    )
    download = dmc.Button(
        "CSV",
        id="compare-csv",
        size="compact-xs",
        variant="subtle",
        color="gray",
        **{"aria-label": "Download the differences as CSV"},
    )
    grid = tables.grid(
        "compare-table",
        compare_table.columns(parts.runs, asked.baseline),
        parts.rows,
        "key",
        "What the runs were given, and what became of it",
        filters=False,
    )
    note = "less than the baseline in blue, more in orange"
    return components.card("Differences", grid, [switch, download], note)


def _pickers(context: Context, asked: Asked, parts: _Parts) -> Component:
    known = [run.run_id for run in parts.runs]
    names = {run.run_id: run.name or short(run.run_id) for run in parts.runs}
    return dmc.Group(
        [
            dmc.MultiSelect(
                id="compare-runs",
                label="Runs",
                data=_offered(context, parts.runs),
                value=known,
                maxValues=MOST,
                searchable=True,
                debounce=True,
                limit=100,
                hidePickedOptions=True,
                nothingFoundMessage="No such run",
                placeholder="" if known else "Name of a run, or the beginning of its id",
            ),
            dmc.Select(
                id="compare-baseline",
                label="Baseline",
                data=[{"value": run_id, "label": names[run_id]} for run_id in known],
                value=asked.baseline or None,
                allowDeselect=False,
                w=190,
            ),
            dmc.MultiSelect(
                id="compare-metrics",
                label="Metrics",
                data=compare_charts.metrics_of(parts.runs),
                value=parts.metrics,
                searchable=True,
                debounce=True,
                hidePickedOptions=True,
            ),
            html.Div(
                [
                    dmc.Text("Over", size="sm", fw=500),
                    dmc.SegmentedControl(
                        id="compare-axis",
                        data=[{"value": key, "label": name} for key, name in AXES.items()],
                        value=asked.axis,
                        size="sm",
                        **{"aria-label": "What the runs are drawn over"},
                    ),
                ]
            ),
        ],
        className="pickers",
        gap="md",
        align="flex-start",
        mb="md",
    )


def _shown(asked: Asked, parts: _Parts) -> dict[str, str]:
    """What the pickers stand at first, by the names of the address."""
    return {
        "runs": ",".join(run.run_id for run in parts.runs),
        "baseline": asked.baseline,
        "metrics": ",".join(parts.metrics),
        "axis": asked.axis,
    }


def _offered(context: Context, chosen: Sequence[RunData]) -> list[dict[str, str]]:
    runs = {run.run_id: run.name for run in chosen}
    runs |= {run.run_id: run.name for run in context.tracking.runs()[:OFFERED]}
    return [
        {"value": run_id, "label": f"{name or 'run'} · {short(run_id)}"}
        for run_id, name in runs.items()
    ]


def _legend(context: Context, asked: Asked, runs: Sequence[RunData]) -> Component:
    entries = [
        html.Li(
            [
                html.Span(
                    className="swatch baseline" if run.run_id == asked.baseline else "swatch",
                    style={"borderColor": colour},
                ),
                dmc.Anchor(
                    run.name or short(run.run_id),
                    href=context.href(f"/runs/{run.run_id}"),
                    size="sm",
                ),
                components.state_badge(run.state),
            ]
        )
        for run, colour in zip(runs, COLOURS, strict=False)
    ]
    whole = dmc.Button(
        "Whole runs",
        id="compare-whole",
        size="compact-sm",
        variant="default",
        disabled=asked.zoom is None,
    )
    return dmc.Group(
        [html.Ul(entries, id="compare-legend", className="legend"), whole],
        justify="space-between",
        mb="sm",
    )


def _links(context: Context, runs: Sequence[RunData]) -> list[Component]:
    base = context.settings.mlflow_ui_url
    tracked = [run.tracked for run in runs if run.tracked is not None]
    if base is None or len(tracked) < 2:
        return []
    ids = json.dumps([run.run_id for run in tracked])
    experiments = json.dumps(sorted({run.experiment_id for run in tracked}))
    href = f"{base.rstrip('/')}/#/compare-runs?runs={quote(ids)}&experiments={quote(experiments)}"
    return [dmc.Anchor("Compare in MLflow", href=href, target="_blank", size="sm")]


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    app.clientside_callback(
        ClientsideFunction("compare", "ask"),
        Output("address", "data", allow_duplicate=True),
        Input("compare-runs", "value"),
        Input("compare-baseline", "value"),
        Input("compare-metrics", "value"),
        Input("compare-axis", "value"),
        State("compare-shown", "data"),
        prevent_initial_call=True,
    )
    linked_zoom.register(app, "compare", CHART)
    app.clientside_callback(
        ClientsideFunction("compare", "csv"),
        Output("compare-table", "csvExportParams"),
        Output("compare-table", "exportDataAsCsv"),
        Input("compare-csv", "n_clicks"),
        prevent_initial_call=True,
    )
    live.keep_in_address(
        app, {"zoom": ("compare-zoom", "data"), "differs": ("compare-differs", "checked")}
    )

    @app.callback(
        Output({"type": CHART, "name": ALL}, "figure"),
        Output("compare-charts", "children"),
        Output("compare-table", "rowData"),
        Output("compare-notes", "children"),
        Output("compare-whole-range", "data"),
        Output("compare-seen", "data"),
        live.REFRESH,
        Input("compare-zoom", "data"),
        Input("compare-differs", "checked"),
        State("compare-query", "data"),
        State("compare-seen", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, zoom: Any, differs: bool, query: dict[str, str], seen: Any) -> Any:
        names = [each["id"]["name"] for each in ctx.outputs_list[0]]
        still: list[Any] = [no_update] * len(names)
        query = {**query, "zoom": json.dumps(zoom), "differs": str(differs).lower()}
        asked = Asked.of(query)
        try:
            parts = _read(context, asked)
        except StoreError as error:
            told = components.notice("The store cannot be read", str(error), kind="error")
            return still, no_update, no_update, told, no_update, no_update
        digests = _digests(parts)
        if digests == seen:
            return still, *[no_update] * 5
        same = digests[""] == seen.get("")
        table, told = (no_update, no_update) if same else (parts.rows, parts.notes)
        if len(parts.runs) > 1 and list(parts.figures) != names:
            return still, _charts(parts.figures), table, told, parts.whole, digests
        news = [
            no_update if digests[name] == seen.get(name) else charts.renewed(parts.figures[name])
            for name in names
        ]
        return news, no_update, table, told, parts.whole, digests


def _range(text: str | None) -> tuple[float, float] | None:
    """A zoom in the address."""
    try:
        low, high = map(float, address.pair(text) or ())
    except (ValueError, TypeError, OverflowError):
        return None
    return (low, high) if 0 < high - low < math.inf else None
