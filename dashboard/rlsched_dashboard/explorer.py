"""The explorer on the page of policies: a state set by hand, and what a version makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import (
    ALL,
    MATCH,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    ctx,
    dcc,
    html,
    no_update,
)
from dash.development.base_component import Component

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.overview.decisions import action_text
from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.policy.fields import FIELDS, Field
from mlflow_rlsched.policy.inputs import WEIGHTS
from mlflow_rlsched.versions import VersionNotFoundError
from mlflow_rlsched.words import short
from rlsched_dashboard import address, charts, components, formats, live, policy_charts
from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.explorer import LIMITS, Explored, explore

SLIDER = "explorer-slider"
VALUE = "explorer-value"
STEPS = 100
RUNS_OFFERED = 30
WEIGHT_MAX = 2.0

USUAL = {field.name: field.missing for field in FIELDS} | {
    name: getattr(Weights(), name) for name in WEIGHTS
}
"""Where the sliders stand at first."""

BOUNDS = {field.name: (field.low, field.high) for field in FIELDS} | dict.fromkeys(
    WEIGHTS, (0.0, WEIGHT_MAX)
)
"""From where to where they go."""


def layout(context: Context, version: Version, text: str | None) -> Component:
    """The explorer; ``text`` is the state in the address, those sliders that were moved."""
    values = USUAL | _moved(text)
    groups = dict.fromkeys(field.group for field in FIELDS)
    sections = [
        _section(group, [_field(each, values[each.name]) for each in FIELDS if each.group == group])
        for group in groups
    ]
    weights = [
        _slider(name, f"Weight of the reward: {name}", 0, WEIGHT_MAX, values[name])
        for name in WEIGHTS
    ]
    sections.append(_section("reward", weights))
    note = (
        f"a run of up to {LIMITS.gpus_max} devices that began with a batch of"
        f" {LIMITS.batch_initial}, 15 minutes ago"
    )
    return components.card(
        "Explorer",
        html.Div(
            [
                html.Div(sections, className="explorer-state"),
                html.Div(results(version, values), id="explorer-results"),
                dcc.Store(id="explorer-state", data=_moved(text)),
            ],
            className="explorer",
        ),
        [
            dmc.Select(
                id="explorer-from",
                placeholder="Take the state of a run",
                data=_offered(context),
                size="xs",
                w=230,
                searchable=True,
                nothingFoundMessage="No run has decisions here",
                **{"aria-label": "Take the state of a run's last decision"},
            ),
            dmc.Button("Reset", id="explorer-reset", size="compact-sm", variant="default"),
        ],
        note,
    )


def results(version: Version, values: Mapping[str, float]) -> list[Component]:
    """What a version makes of a state."""
    weights = Weights(**{name: values[name] for name in WEIGHTS})
    found = explore(version, {field.name: values[field.name] for field in FIELDS}, weights)
    parts = [
        components.table(
            ("", "Action", "Q"),
            [
                (who, action_text(_json(action)), value)
                for who, action, value in zip(
                    ("the actor alone", "the policy proposes", "the guard lets through"),
                    (found.actor, found.proposal.action, found.outcome.action),
                    [formats.number(each) for each in found.worth] or [formats.MISSING] * 3,
                    strict=True,
                )
            ],
            "What it would do, and what its critics think of it",
        ),
        dmc.Text(found.proposal.reason, size="sm", mt="sm"),
        *_words(found),
        charts.chart_card(
            "explorer-chances",
            "Devices, by the actor",
            policy_charts.chances(found),
            "probabilities; another number must be clearly likelier than none",
            height=180,
        ),
    ]
    if found.curves:
        parts.append(
            charts.chart_card(
                "explorer-curves",
                "Q over the batch factor",
                policy_charts.curves(found),
                "by change of the devices, the lower of both critics",
                height=220,
            )
        )
    return parts


def _words(found: Explored) -> list[Component]:
    parts = []
    if found.proposal.doubt:
        text = f"The rules decide in its place: {found.proposal.doubt}."
        parts.append(components.notice("The version is not trusted here", text, kind="gone"))
    if found.outcome.vetoes:
        words = dmc.List([dmc.ListItem(veto) for veto in found.outcome.vetoes], size="sm")
        parts.append(html.Div([dmc.Text("The guard says", size="sm", fw=600, mt="sm"), words]))
    else:
        parts.append(dmc.Text("The guard has no objection.", size="sm", c="dimmed", mt="sm"))
    return parts


def _json(action: Action) -> dict[str, Any]:
    """An action for people: factors that change next to nothing are 1."""
    return {
        "gpu_delta": action.gpu_delta,
        "batch_factor": round(action.batch_factor, 3),
        "lr_factor": round(action.lr_factor, 3),
    }


def _section(title: str, sliders: Sequence[Component]) -> Component:
    heading = dmc.Title(title.capitalize(), order=3, size="h6", mb="xs")
    return html.Section([heading, html.Div(list(sliders), className="sliders")])


def _field(field: Field, value: float) -> Component:
    meaning = f"{field.meaning} ({field.unit})"
    return _slider(field.name, meaning, field.low, field.high, value)


def _slider(name: str, meaning: str, low: float, high: float, value: float) -> Component:
    label = name.replace("_", " ")
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Text(label, size="xs", fw=500),
                    dmc.Text(
                        formats.number(value, 3),
                        id={"type": VALUE, "name": name},
                        size="xs",
                        c="dimmed",
                    ),
                ],
                justify="space-between",
                wrap="nowrap",
            ),
            dmc.Slider(
                id={"type": SLIDER, "name": name},
                min=low,
                max=high,
                step=(high - low) / STEPS,
                precision=4,
                value=value,
                size="sm",
                thumbLabel=label,
                updatemode="mouseup",
            ),
        ],
        title=meaning,
        className="slider",
    )


def _offered(context: Context) -> list[dict[str, str]]:
    tasks = context.scheduler.tasks()
    newest = sorted(tasks, key=lambda task: -task.submitted_at)[:RUNS_OFFERED]
    return [
        {"value": task.run_id, "label": f"{task.spec.label or 'run'} · {short(task.run_id)}"}
        for task in newest
        if (Path(task.spec.run_dir) / "decisions.jsonl").exists()
    ]


def _moved(text: str | None) -> dict[str, float]:
    """Values in the address, each within its slider."""
    asked: dict[str, Any] = address.value(text, {})
    return {
        name: float(min(max(number, BOUNDS[name][0]), BOUNDS[name][1]))
        for name, number in asked.items()
        if name in BOUNDS and isinstance(number, int | float) and not math.isnan(number)
    }


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    live.keep_in_address(app, {"state": ("explorer-state", "data")})
    app.clientside_callback(
        ClientsideFunction("policy", "value"),
        Output({"type": VALUE, "name": MATCH}, "children"),
        Input({"type": SLIDER, "name": MATCH}, "value"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output({"type": SLIDER, "name": ALL}, "value"),
        Input("explorer-from", "value"),
        Input("explorer-reset", "n_clicks"),
        prevent_initial_call=True,
    )
    def _take(run_id: str | None, _: Any) -> list[Any]:
        names = [each["id"]["name"] for each in ctx.outputs_list]
        if ctx.triggered_id == "explorer-reset":
            return [USUAL[name] for name in names]
        task = context.scheduler.task(run_id) if run_id else None
        known = context.decisions.of(task.run_id, Path(task.spec.run_dir)) if task else []
        if not known:
            return [no_update] * len(names)
        state = known[-1]["state"]
        return [state[name]["value"] if name in state else no_update for name in names]

    @app.callback(
        Output("explorer-results", "children"),
        Output("explorer-state", "data"),
        Input({"type": SLIDER, "name": ALL}, "value"),
        State("policy-version", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _explore(values: list[float], name: str) -> Any:
        names = [each["id"]["name"] for each in ctx.inputs_list[0]]
        given = dict(zip(names, values, strict=True))
        moved = {name: value for name, value in given.items() if abs(value - USUAL[name]) > 1e-9}
        try:
            return results(context.policies.version(name), USUAL | given), moved
        except (VersionNotFoundError, PolicyFileError) as error:
            return components.notice("This version cannot be used", str(error), kind="error"), moved
