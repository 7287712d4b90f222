"""Policy: the versions and how they came about, what they learned, and what they would do."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.store import StoreError
from mlflow_rlsched.versions import VersionNotFoundError
from mlflow_rlsched.words import short
from rlsched_dashboard import (
    charts,
    components,
    explorer,
    live,
    policy_charts,
    policy_parts,
    tables,
)
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.sources.tracking import RunGone, TrackedRun, TrackingError

USUALLY_DRAWN = 2
"""Runs of learning that are drawn where nobody chose any, the newest."""

_ONE = {"rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True}}


def layout(context: Context, view: View) -> Component:
    """The page."""
    about = context.policies.overview()
    shown, trouble = _chosen(context, about, view.query.get("version"))
    argument = _argument(about, shown.name) if shown else None
    wanted = _list(view.query.get("learning"))
    parts = _read(context, view.zone, argument, wanted)
    offered = [each["value"] for each in parts["offered"]]
    picked = offered[:USUALLY_DRAWN] if wanted is None else [i for i in wanted if i in offered]
    chosen = [] if shown is None else _of_version(context, shown, view.query.get("state"))
    return html.Div(
        [
            components.page_title("Policy"),
            html.Div(trouble),
            html.Div(parts["troubles"], id="policy-troubles"),
            html.Div(parts["figures"], id="policy-figures"),
            components.card(
                "Versions",
                tables.grid(
                    "policy-versions",
                    policy_parts.version_columns(view.zone),
                    parts["versions"],
                    "name",
                    "Versions: choose one to see what it is worth and what it would do",
                    filters=False,
                    options=_ONE,
                ),
                note="choose one to look at",
            ),
            components.card("Promotions and rollbacks", _history(parts, view.zone)),
            html.Div(parts["worth"], id="policy-worth", className="charts"),
            *chosen,
            _learning(parts, picked),
            html.Div(parts["replay"], id="policy-replay"),
            dcc.Store(id="policy-version", data=argument),
            dcc.Store(id="policy-picked", data=picked),
            dcc.Store(id="policy-zone", data=view.zone),
            dcc.Store(id="policy-seen", data=live.digests(parts)),
        ]
    )


def _chosen(
    context: Context, about: dict[str, Any], wanted: str | None
) -> tuple[Version | None, list[Component]]:
    """The version to show: the one in the address, or the champion; and what is wrong."""
    notes = []
    if about["trouble"]:
        notes.append(components.notice("The champion", about["trouble"], kind="error"))
    names = ["shipped", *(row["name"] for row in about["versions"])]
    if wanted and not any(name.startswith(wanted) for name in names):
        text = "There is no such version: this is the champion."
        notes.append(components.notice(f"Version {wanted[:40]}", text, kind="gone"))
        wanted = None
    for name in filter(None, (wanted, about["champion"])):
        try:
            return context.policies.version(_argument(about, name)), notes
        except (VersionNotFoundError, PolicyFileError) as error:
            notes.append(components.notice(f"Version {name}", str(error), kind="gone"))
    return None, notes


def _argument(about: dict[str, Any], name: str) -> str:
    """How a version is found by its name."""
    shipped = any(row["name"] == name and row["shipped"] for row in about["versions"])
    return "shipped" if shipped else name


def _read(
    context: Context, zone: str, argument: str | None, learning: list[str] | None
) -> dict[str, Any]:
    """What is renewed, by part."""
    about = context.policies.overview()
    seen = context.replay.transitions()
    troubles: list[Component] = []
    offered: list[TrackedRun] = []
    made: dict[str, Any] = {}
    try:
        offered = context.tracking.learning_runs()
        made = policy_charts.learning(context, _picked(offered, learning))
    except (TrackingError, RunGone) as error:
        troubles.append(components.notice("MLflow cannot be read", str(error), kind="error"))
    worth: list[Component] = []
    replay: list[Component] = []
    if argument is not None:
        version = context.policies.version(argument)
        worth = policy_parts.worth(context, version, argument == "shipped")
        replay = policy_parts.replay(context, seen, version)
    return {
        "troubles": troubles,
        "figures": policy_parts.figures(about, seen, zone),
        "versions": policy_parts.version_rows(context, about),
        "history": policy_parts.history_rows(about),
        "worth": worth,
        "learning": _learning_charts(made),
        "replay": replay,
        "offered": [_offer(run) for run in offered],
    }


def _picked(offered: list[TrackedRun], wanted: list[str] | None) -> list[TrackedRun]:
    """The runs of learning that are drawn: those of the address, or the newest."""
    if wanted is None:
        return offered[:USUALLY_DRAWN]
    return [run for run in offered if run.run_id in wanted][: policy_charts.DRAWN_RUNS]


def _offer(run: TrackedRun) -> dict[str, str]:
    return {"value": run.run_id, "label": f"{run.name or 'run'} · {short(run.run_id)}"}


def _history(parts: dict[str, Any], zone: str) -> Component:
    columns = policy_parts.history_columns(zone)
    label = "Promotions and rollbacks, the newest first"
    return tables.grid("policy-history", columns, parts["history"], "number", label, filters=False)


def _of_version(context: Context, version: Version, state: str | None) -> list[Component]:
    return [
        explorer.layout(context, version, state),
        components.card(f"Model card of version {version.name}", policy_parts.card(version)),
    ]


def _learning(parts: dict[str, Any], picked: list[str]) -> Component:
    picker = dmc.MultiSelect(
        id="policy-learning",
        data=parts["offered"],
        value=picked,
        maxValues=policy_charts.DRAWN_RUNS,
        size="xs",
        w=320,
        searchable=True,
        placeholder="" if picked else "Runs of learning",
        nothingFoundMessage="Nothing was learned yet",
        **{"aria-label": "Runs of learning that are drawn"},
    )
    title = dmc.Title("How it learned", order=2, size="h4")
    heading = dmc.Group([title, picker], justify="space-between", mb="sm")
    charts_ = html.Div(parts["learning"], id="policy-curves", className="charts")
    return html.Section([heading, charts_])


def _learning_charts(made: dict[str, Any]) -> list[Component]:
    if not made:
        text = (
            "Learning begins by itself when 500 new decisions can be learned from, where PyTorch is"
            " installed. A policy is trained from nothing by:"
        )
        return [components.notice("Nothing was learned here yet", text, "rlsched policy train")]
    return [
        charts.chart_card(f"policy-{place}", title, figure, note)
        for place, (title, note, figure) in enumerate(policy_charts.titles(made))
    ]


def _list(text: str | None) -> list[str] | None:
    return None if text is None else list(filter(None, text.split(",")))


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    explorer.register(app, context)
    app.clientside_callback(
        ClientsideFunction("policy", "choose"),
        Output("address", "data", allow_duplicate=True),
        Input("policy-versions", "selectedRows"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("policy", "learning"),
        Output("address", "data", allow_duplicate=True),
        Input("policy-learning", "value"),
        State("policy-picked", "data"),
        prevent_initial_call=True,
    )
    if not context.settings.read_only:
        _register_evaluation(app, context)

    @app.callback(
        Output("policy-troubles", "children"),
        Output("policy-figures", "children"),
        Output("policy-versions", "rowData"),
        Output("policy-history", "rowData"),
        Output("policy-worth", "children"),
        Output("policy-curves", "children"),
        Output("policy-replay", "children"),
        Output("policy-learning", "data"),
        Output("policy-seen", "data"),
        live.REFRESH,
        Input("policy-learning", "value"),
        State("policy-version", "data"),
        State("policy-zone", "data"),
        State("policy-seen", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, learning: Any, argument: str | None, zone: str, seen: Any) -> Any:
        try:
            parts = _read(context, zone, argument, learning)
        except (StoreError, VersionNotFoundError, PolicyFileError) as error:
            told = components.notice("It cannot be read now", str(error), kind="error")
            return [told, *[no_update] * 7, {**seen, "troubles": ""}]
        digests = live.digests(parts)
        if digests == seen:
            return [no_update] * 9
        return [
            *(no_update if digests[name] == seen.get(name) else parts[name] for name in parts),
            digests,
        ]


def _register_evaluation(app: Dash, context: Context) -> None:
    @app.callback(
        Output("policy-seen", "data", allow_duplicate=True),
        Input({"type": "policy-evaluate", "name": ALL}, "n_clicks"),
        State("policy-seen", "data"),
        prevent_initial_call=True,
    )
    def _evaluate(clicks: list[int | None], seen: dict[str, str]) -> Any:
        if not any(clicks) or ctx.triggered_id is None:
            return no_update
        argument = ctx.triggered_id["name"]
        context.policies.evaluate(context.policies.version(argument).name, argument)
        return {**seen, "worth": ""}
