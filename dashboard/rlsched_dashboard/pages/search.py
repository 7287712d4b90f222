"""Search: what studies of hyper-parameters have found, and what seeded them."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.studies import StudyError
from rlsched_dashboard import charts, components, formats, live, study_charts
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.sources.studies import Studied

BEST_TRIALS = 10
"""Trials in the table, the best ones."""

_STATES = {"complete": "finished", "pruned": "pruned", "fail": "failed"}

COMMAND = "rlsched search . --study NAME -P 'lr=loguniform(1e-4,1)' -P 'batch_size=int(16,512,log)'"


def layout(context: Context, view: View) -> Component:
    """The page."""
    try:
        names = context.studies.names()
    except StudyError as error:
        return _without(components.notice("Studies cannot be read", str(error), kind="error"))
    if not names:
        text = "A search makes a study, seeded by past runs; each of its trials is a run:"
        return _without(components.notice("Nothing was searched here yet", text, COMMAND))
    wanted = view.query.get("study", names[-1])
    body = _body(context, wanted)
    return html.Div(
        [
            components.page_title("Search", [_picker(names, wanted)]),
            html.Div(body, id="search-body"),
            dcc.Store(id="search-seen", data=live.digests({"body": body})),
        ]
    )


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    live.keep_in_address(app, {"study": ("search-study", "value")})

    @app.callback(
        Output("search-body", "children"),
        Output("search-study", "data"),
        Output("search-seen", "data"),
        live.REFRESH,
        Input("search-study", "value"),
        State("search-seen", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, name: str, seen: dict[str, str]) -> Any:
        body = _body(context, name)
        digests = live.digests({"body": body})
        if digests == seen:
            return no_update, no_update, no_update
        return body, context.studies.names(), digests


def _without(notice: Component) -> Component:
    return html.Div([components.page_title("Search"), notice])


def _picker(names: list[str], value: str) -> Component:
    return dmc.Select(
        id="search-study",
        data=names,
        value=value,
        searchable=True,
        allowDeselect=False,
        size="xs",
        w=260,
        **{"aria-label": "Study that is shown"},
    )


def _body(context: Context, name: str) -> list[Component]:
    """Everything of a study."""
    try:
        study = context.studies.study(name)
    except StudyError as error:
        return [components.notice(f"Study {name}", str(error), kind="gone")]
    if not study.complete:
        text = "No trial of this study is complete yet: there is nothing to draw."
        return [_figures(study), components.notice("No values yet", text), *_seeding(study)]
    return [
        _figures(study),
        charts.chart_card("search-history", "History", study_charts.history(study), "by trial"),
        html.Div(_charts(study), className="charts"),
        components.card("Best trials", _best(context, study)),
        *_seeding(study),
    ]


def _figures(study: Studied) -> Component:
    best, own = study.best, [t for t in study.trials if not t.seeded]
    which = "the more the better" if study.maximizes else "the less the better"
    return components.strip(
        [
            components.figure(
                "Best value",
                "none" if best is None else formats.number(best.value),
                which if best is None else f"trial {best.number}, {which}",
            ),
            components.figure("Trials", str(len(own)), f"{study.running} running now"),
            components.figure(
                "Pruned", str(sum(t.state == "pruned" for t in own)), "stopped by their curves"
            ),
            components.figure(
                "Past runs", str(sum(study.seeded.values())), "trials before the first one"
            ),
        ]
    )


def _charts(study: Studied) -> list[Component]:
    made = []
    if study.importances:
        made.append(
            charts.chart_card(
                "search-importances",
                "Importances",
                study_charts.importances(study),
                "share in what the values differ by",
            )
        )
    if study.entire:
        lines = study_charts.parallel(study)
        without = len(study.complete) - len(study.entire)
        more = f"; {without} trials lack a parameter" if without else ""
        note = f"the better the bluer, the best green{more}"
        made.append(charts.chart_card("search-parallel", "Parallel coordinates", lines, note))
    return made + [
        charts.chart_card({"type": "search-slice", "name": name}, name, shown, "value over it")
        for name, shown in study_charts.slices(study).items()
    ]


def _best(context: Context, study: Studied) -> Component:
    sign = -1 if study.maximizes else 1
    rows = sorted(study.complete, key=lambda t: sign * (t.value or 0.0))[:BEST_TRIALS]
    names = [each.name for each in study.parameters]
    return components.table(
        ["Trial", "Value", *names, "Run"],
        [
            (
                f"{t.number}{' (past run)' if t.seeded else ''}",
                formats.number(t.value),
                *(study_charts.shown(t.params.get(name, "")) for name in names),
                dmc.Anchor(t.run_id[:8], href=context.href(f"/runs/{t.run_id}"), size="xs")
                if t.run_id
                else "",
            )
            for t in rows
        ],
        "Best trials",
    )


def _seeding(study: Studied) -> list[Component]:
    """What seeded it: counts, and reasons of what was left out."""
    if not study.seeded and not study.left_out:
        return []
    rows = [(f"added, {_STATES[state]}", str(count)) for state, count in study.seeded.items()]
    rows += [(f"left out: {reason}", str(count)) for reason, count in study.left_out.items()]
    shown = components.table(["Past runs", "Number"], rows, "What seeded the study")
    return [components.card("What seeded it", shown)]
