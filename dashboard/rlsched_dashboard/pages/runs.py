"""Runs: all scheduled runs that MLflow knows, also when no agent lives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, Patch, State, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.words import short
from rlsched_dashboard import actions, address, components, live, tables
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.sources.tracking import TrackedRun, TrackingError

GRID = "runs-grid"
ASKED = ("cancel", "retry")
USUAL = ("metrics.val_loss", "metrics.val_accuracy")
"""Columns besides the fixed ones that are shown where runs have them."""

_OURS = ("rlsched/", "system/")


def layout(context: Context, view: View) -> Component:
    """The page."""
    runs = context.tracking.runs()
    if not runs:
        return live.again(
            html.Div(
                [
                    components.page_title("Runs"),
                    components.notice(
                        "No runs yet",
                        f"{redacted(context.tracking.uri)} has no run of this scheduler. In a"
                        " project's folder:",
                        "mlflow run . --backend rlsched",
                    ),
                ]
            )
        )
    rows = [_row(context, run) for run in runs]
    revision = context.run_rows.take(rows)
    possible = _possible(runs)
    wanted = view.query.get("columns")
    asked = USUAL if wanted is None else address.value(wanted, [])
    more = [name for name in dict.fromkeys(map(str, asked)) if name in possible]
    return html.Div(
        [
            components.page_title("Runs", _saved_views()),
            html.Div(id="runs-trouble"),
            dmc.Group(_tools(context, view, possible, more), gap="xs", mb="sm"),
            components.card("", _grid(context, view, rows, more)),
            dcc.Store(id="runs-revision", data=revision),
            dcc.Store(id="runs-sort", data=view.query.get("sort")),
        ]
    )


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    if not context.settings.read_only:
        actions.register_choice(app, "runs", ASKED, (GRID, "selectedRows"))
    _register_tools(app, context)

    @app.callback(
        Output(GRID, "rowTransaction"),
        Output("runs-revision", "data"),
        Output("runs-trouble", "children"),
        live.REFRESH,
        State("runs-revision", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, revision: int | None) -> Any:
        if revision is None:
            return no_update, no_update, no_update
        try:
            context.run_rows.take(_row(context, run) for run in context.tracking.runs())
        except TrackingError as error:
            told = components.notice("MLflow does not answer", str(error), kind="error")
            return no_update, no_update, told
        news = context.run_rows.since(revision)
        if not news:
            return no_update, no_update, None
        removed = [{"run_id": name} for name in news.removed]
        transaction = {"add": news.added, "update": news.updated, "remove": removed}
        return transaction, news.revision, None


def _register_tools(app: Dash, context: Context) -> None:
    live.keep_in_address(
        app,
        {
            "q": ("runs-quick", "value"),
            "filter": (GRID, "filterModel"),
            "sort": ("runs-sort", "data"),
            "columns": ("runs-columns", "value"),
        },
    )
    app.clientside_callback(
        ClientsideFunction("runs", "sort"),
        Output("runs-sort", "data"),
        Input(GRID, "columnState"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(clicks, rows) => dash_clientside.runs.compare(clicks, rows, "
        f"{json.dumps(context.href('/compare'))})",
        Output("address", "data", allow_duplicate=True),
        Input("runs-compare", "n_clicks"),
        State(GRID, "selectedRows"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("runs", "comparable"),
        Output("runs-compare", "disabled"),
        Output("runs-compare", "children"),
        Input(GRID, "selectedRows"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("runs", "csv"),
        Output(GRID, "csvExportParams"),
        Output(GRID, "exportDataAsCsv"),
        Input("runs-csv", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("runs", "views"),
        Output("runs-views", "data"),
        Output("runs-views-kept", "data"),
        Input("runs-views-kept", "data"),
        Input("runs-keep", "n_clicks"),
        Input("runs-forget", "n_clicks"),
        State("runs-view-name", "value"),
        State("runs-views", "value"),
    )
    app.clientside_callback(
        ClientsideFunction("runs", "show"),
        Output("address", "data", allow_duplicate=True),
        Input("runs-views", "value"),
        State("runs-views-kept", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output(GRID, "dashGridOptions"), Input("runs-quick", "value"), prevent_initial_call=True
    )
    def _quick(text: str | None) -> Patch:
        options = Patch()
        options["quickFilterText"] = text or ""
        return options

    @app.callback(
        Output(GRID, "columnDefs"),
        Input("runs-columns", "value"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def _choose(names: list[str], view: dict[str, Any]) -> Any:
        return _columns(view["zone"], names, {})


def _saved_views() -> list[Component]:
    """Views by name, kept in this browser: what the address says under each."""
    return [
        dcc.Store(id="runs-views-kept", storage_type="local"),
        dmc.Select(
            id="runs-views",
            placeholder="Saved views",
            data=[],
            size="xs",
            w=170,
            clearable=True,
            nothingFoundMessage="None was saved in this browser",
            **{"aria-label": "Saved views"},
        ),
        dmc.Popover(
            [
                dmc.PopoverTarget(
                    dmc.Button("Save view", size="compact-sm", variant="default"),
                ),
                dmc.PopoverDropdown(
                    dmc.Stack(
                        [
                            dmc.TextInput(id="runs-view-name", label="Name", size="xs"),
                            dmc.Group(
                                [
                                    dmc.Button("Save", id="runs-keep", size="compact-sm"),
                                    dmc.Button(
                                        "Forget the chosen one",
                                        id="runs-forget",
                                        size="compact-sm",
                                        variant="subtle",
                                        color="red",
                                    ),
                                ]
                            ),
                        ],
                        gap="xs",
                    )
                ),
            ],
            trapFocus=True,
            keepMounted=True,
            position="bottom-end",
        ),
    ]


def _tools(
    context: Context, view: View, possible: Sequence[str], more: Sequence[str]
) -> list[Component]:
    return [
        dmc.TextInput(
            id="runs-quick",
            placeholder="Search all columns",
            value=view.query.get("q", ""),
            debounce=200,
            size="xs",
            w=200,
            **{"aria-label": "Search all columns"},
        ),
        dmc.Popover(
            [
                dmc.PopoverTarget(dmc.Button("Columns", size="compact-sm", variant="default")),
                dmc.PopoverDropdown(
                    dmc.MultiSelect(
                        id="runs-columns",
                        label="Metrics and parameters to show",
                        data=list(possible),
                        value=list(more),
                        searchable=True,
                        clearable=True,
                        maxDropdownHeight=320,
                        comboboxProps={"withinPortal": False},
                    )
                ),
            ],
            width=340,
            trapFocus=True,
            keepMounted=True,
            position="bottom-start",
        ),
        *([] if context.settings.read_only else [actions.buttons("runs", ASKED)]),
        dmc.Button(
            "Compare",
            id="runs-compare",
            size="compact-sm",
            disabled=True,
        ),
        dmc.Button(
            "CSV",
            id="runs-csv",
            size="compact-sm",
            variant="subtle",
            color="gray",
            **{"aria-label": "Download the runs as CSV"},
        ),
    ]


def _grid(
    context: Context, view: View, rows: Sequence[dict[str, Any]], more: Sequence[str]
) -> Component:
    order = _sorted(view.query.get("sort"))
    return tables.grid(
        GRID,
        _columns(view.zone, more, order or {"started_at": "desc"}),
        rows,
        "run_id",
        "All scheduled runs",
        height="calc(100vh - 225px)",
        selection=True,
        options={"quickFilterText": view.query.get("q", "")},
        filterModel=_filtered(view.query.get("filter")),
    )


def _columns(zone: str, more: Iterable[str], order: dict[str, str]) -> list[tables.Column]:
    columns = [
        tables.link("name", "Run", "href", minWidth=170, flex=2, pinned="left"),
        tables.state(),
        tables.text("policy", "Policy", width=100),
        tables.text("tuned", "Tuned", width=90),
        tables.when("started_at", "Submitted", zone),
        tables.duration("lasted_s", "Waited and ran", width=165),
        tables.number("loss", "Loss", width=100),
        *(_extra(name) for name in more),
        tables.number("gpus", "Devices", width=105),
        tables.number("batch_size", "Batch", width=95),
        tables.number("learning_rate", "Rate", width=100),
        tables.number("throughput", "Samples/s", width=120),
        tables.duration("queue_s", "Waited", width=110),
        tables.number("attempts", "Attempts", width=115),
        tables.text("reason", "Ended as", width=120),
        tables.text("experiment", "Experiment", width=130),
        tables.text("user", "User", width=100),
        tables.text("message", "Message", minWidth=200, flex=2, tooltipField="message"),
    ]
    for column in columns:
        if (direction := order.get(column["field"])) in ("asc", "desc"):
            column["sort"] = direction
    return columns


def _extra(name: str) -> tables.Column:
    kind, _, key = name.partition(".")
    heading = key if kind == "metrics" else f"{key} (parameter)"
    # A field with a dot would be looked for inside another one.
    getter = {"valueGetter": {"function": f"params.data['{_field(name)}']"}, "colId": _field(name)}
    made = tables.number(_field(name), heading, width=150, **getter)
    return made if kind == "metrics" else tables.text(_field(name), heading, width=130, **getter)


def _field(name: str) -> str:
    return name.replace("'", "")


def _row(context: Context, run: TrackedRun) -> dict[str, Any]:
    tags, metrics = run.tags, run.metrics
    ours = {name: live.finite(metrics.get(f"rlsched/{name}")) for name in _METRICS}
    lasted = None if run.ended_at is None else run.ended_at - run.started_at
    return {
        "run_id": run.run_id,
        "href": context.href(f"/runs/{run.run_id}"),
        "name": run.name or short(run.run_id),
        "state": tags.get("rlsched.state", run.status.lower()),
        "experiment": run.experiment,
        "user": run.user,
        "policy": tags.get("rlsched.policy", ""),
        "tuned": "yes" if tags.get("rlsched.tuned") == "true" else "no",
        "started_at": run.started_at,
        "lasted_s": lasted,
        "attempts": run.attempts,
        "queue_s": ours["queue_seconds"],
        **{name: ours[name] for name in _METRICS if name != "queue_seconds"},
        "reason": tags.get("rlsched.exit_reason", ""),
        "message": tags.get("rlsched.message", ""),
        **{
            _field(f"metrics.{name}"): live.finite(value)
            for name, value in metrics.items()
            if not name.startswith(_OURS)
        },
        **{_field(f"params.{name}"): value for name, value in run.params.items()},
    }


_METRICS = ("loss", "gpus", "batch_size", "learning_rate", "throughput", "queue_seconds")


def _possible(runs: Iterable[TrackedRun]) -> list[str]:
    """Columns that some run has a value for."""
    found: set[str] = set()
    for run in runs:
        found |= {f"metrics.{name}" for name in run.metrics if not name.startswith(_OURS)}
        found |= {f"params.{name}" for name in run.params}
    return sorted(found)


def _sorted(text: str | None) -> dict[str, str]:
    """How the address sorts, by column: ``asc`` or ``desc``."""
    asked: list[Any] = address.value(text, [])
    wishes = [each for each in asked if isinstance(each, dict)]
    return {str(each.get("colId")): str(each.get("sort")) for each in wishes}


def _filtered(text: str | None) -> dict[str, Any]:
    """How the address filters, by column."""
    asked: dict[str, Any] = address.value(text, {})
    return {name: model for name, model in asked.items() if isinstance(model, dict)}
