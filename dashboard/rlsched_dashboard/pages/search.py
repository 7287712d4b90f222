"""Search: what studies of hyper-parameters have found, and what seeded them."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import Dash, html
from dash.development.base_component import Component

from rlsched_dashboard import components
from rlsched_dashboard.context import Context, View


def layout(context: Context, view: View) -> Component:
    """The page: searching is not part of this version, and what there is instead."""
    text = (
        "This version has no search of its own, so there are no studies to show. Until then, let"
        " Optuna propose the parameters and let each trial be a run of the queue:"
    )
    command = (
        'mlflow.projects.run(".", backend="rlsched", parameters={"lr": trial.suggest_float(…)})'
    )
    return html.Div(
        [
            components.page_title("Search"),
            components.notice("Studies are missing", text, command),
            dmc.Group(
                [
                    dmc.Text("Trials are runs like all others:", size="sm"),
                    dmc.Anchor("all runs", href=context.href("/runs"), size="sm"),
                    dmc.Anchor("compare some", href=context.href("/compare"), size="sm"),
                ],
                gap="sm",
            ),
        ]
    )


def register(app: Dash, context: Context) -> None:
    """It has no callbacks."""
