"""What people can ask of runs, each after a question whether they mean it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.requests import MAX_PRIORITY, RefusedError
from mlflow_rlsched.store import StoreError
from mlflow_rlsched.words import short
from rlsched_dashboard.context import Context


@dataclass(frozen=True)
class Action:
    """Something that can be asked.

    Attributes:
        label: What the button says.
        question: What is asked before it is done; ``{runs}`` are the runs.
        colour: Colour of the button that does it.
    """

    label: str
    question: str
    colour: str


ACTIONS = {
    "cancel": Action(
        "Cancel", "Cancel {runs}? What runs is ended with every process that it started.", "red"
    ),
    "prioritize": Action(
        "Change priority", "Give {runs} another priority? Larger goes first.", "blue"
    ),
    "retry": Action(
        "Retry", "Queue {runs} again? It goes on from its last checkpoint, if it has one.", "blue"
    ),
}


def buttons(page: str, kinds: Sequence[str], read_only: bool, disabled: bool = True) -> Component:
    """Buttons that ask for the runs chosen on a page; none where nothing can be changed."""
    if read_only:
        return html.Div()
    return dmc.Group(
        [
            dmc.Button(
                ACTIONS[kind].label,
                id={"action": kind, "page": page},
                size="compact-sm",
                variant="light",
                color=ACTIONS[kind].colour,
                disabled=disabled,
            )
            for kind in kinds
        ],
        gap="xs",
    )


def components() -> Component:
    """What the shell holds for it: the question."""
    return html.Div(
        [
            dcc.Store(id="asked"),
            dmc.Modal(
                [
                    dmc.Text(id="question"),
                    dmc.NumberInput(
                        id="priority",
                        label="Priority",
                        value=0,
                        min=-MAX_PRIORITY,
                        max=MAX_PRIORITY,
                        allowDecimal=False,
                        mt="sm",
                    ),
                    dmc.Group(
                        [
                            dmc.Button("Leave it", id="leave", variant="default"),
                            dmc.Button("Do it", id="confirm"),
                        ],
                        justify="flex-end",
                        mt="md",
                    ),
                ],
                id="confirmation",
                title="Are you sure?",
                centered=True,
                closeButtonProps={"aria-label": "Close"},
            ),
        ]
    )


def register_choice(
    app: Dash, page: str, source: Input, read_only: bool, always: bool = False
) -> None:
    """Let the buttons of a page ask for what is chosen in it.

    Args:
        app: The app.
        page: As in ``buttons``.
        source: What is chosen: the ``selectedRows`` of a grid.
        read_only: Nothing can be asked.
        always: Whether something is always chosen.
    """
    if read_only:
        return

    if not always:
        app.clientside_callback(
            "(rows, all) => all.map(() => !(rows && rows.length))",
            Output({"action": ALL, "page": page}, "disabled"),
            source,
            State({"action": ALL, "page": page}, "id"),
            prevent_initial_call=True,
        )

    @app.callback(
        Output("asked", "data", allow_duplicate=True),
        Input({"action": ALL, "page": page}, "n_clicks"),
        State(source.component_id, source.component_property),
        prevent_initial_call=True,
    )
    def _ask(clicks: list[int | None], chosen: list[dict[str, Any]] | None) -> Any:
        if not any(clicks) or not chosen or ctx.triggered_id is None:
            return no_update
        rows = [{"run_id": row["run_id"], "name": row.get("name", "")} for row in chosen]
        return {"kind": ctx.triggered_id["action"], "runs": rows, "click": sum(map(bool, clicks))}


def register(app: Dash, context: Context) -> None:
    """The question, and what is done when it is answered."""

    @app.callback(
        Output("confirmation", "opened"),
        Output("confirmation", "title"),
        Output("question", "children"),
        Output("confirm", "children"),
        Output("confirm", "color"),
        Output("priority", "display"),
        Input("asked", "data"),
        prevent_initial_call=True,
    )
    def _question(asked: dict[str, Any] | None) -> Any:
        if not asked:
            return (False, *[no_update] * 5)
        action = ACTIONS[asked["kind"]]
        text = action.question.format(runs=_runs(asked["runs"]))
        shown = "block" if asked["kind"] == "prioritize" else "none"
        return True, action.label, text, action.label, action.colour, shown

    @app.callback(
        Output("asked", "data", allow_duplicate=True),
        Input("leave", "n_clicks"),
        prevent_initial_call=True,
    )
    def _leave(_: int) -> None:
        return None

    @app.callback(
        Output("notifications", "sendNotifications"),
        Output("asked", "data", allow_duplicate=True),
        Input("confirm", "n_clicks"),
        State("asked", "data"),
        State("priority", "value"),
        running=[(Output("confirm", "loading"), True, False)],
        prevent_initial_call=True,
    )
    def _do(clicks: int | None, asked: dict[str, Any] | None, priority: Any) -> Any:
        if not clicks or not asked:
            return no_update, no_update
        told = [
            _told(*done(context, asked["kind"], run["run_id"], priority)) for run in asked["runs"]
        ]
        return told, None


def done(context: Context, kind: str, run_id: str, priority: Any = None) -> tuple[bool, str]:
    """Ask something of a run; whether it was taken, and what to tell."""
    scheduler = context.scheduler
    if context.settings.read_only:
        return False, "This dashboard is read-only: start it with --allow-actions."
    try:
        task = scheduler.task(run_id)
        if task is None:
            return False, f"The run {short(run_id)} is not in this store."
        if kind == "cancel":
            return True, scheduler.cancel(task)
        if kind == "prioritize":
            if not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
                return False, f"Write a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}."
            return True, scheduler.prioritize(task, priority)
        warnings: list[str] = []
        text = scheduler.retry(task, warnings.append)
        return True, "; ".join([text, *warnings])
    except (RefusedError, StoreError, OSError) as error:
        return False, str(error)


def _runs(runs: Sequence[dict[str, str]]) -> str:
    names = [f"{run['name']} ({short(run['run_id'])})" for run in runs]
    return (
        names[0]
        if len(names) == 1
        else f"{len(names)} runs: {', '.join(names[:5])}" + (" …" if len(names) > 5 else "")
    )


def _told(good: bool, text: str) -> dict[str, Any]:
    shown = text[:1].upper() + text[1:]
    return {
        "action": "show",
        "title": "Done" if good else "Not done",
        "message": shown,
        "color": "teal" if good else "red",
        "autoClose": 6000 if good else 15000,
    }
