"""What people can ask of runs, each after a question whether they mean it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
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


def buttons(page: str, kinds: Sequence[str], shown: Sequence[str] | None = None) -> Component:
    """Buttons that ask for the runs chosen on a page.

    Args:
        page: Name of the place, as in ``register_choice``.
        kinds: What can be asked there.
        shown: Which of them can be asked now; None for those that wait for a choice.
    """
    return dmc.Group(
        [
            dmc.Button(
                ACTIONS[kind].label,
                id=f"{page}-{kind}",
                size="compact-sm",
                variant="light",
                color=ACTIONS[kind].colour,
                disabled=shown is None,
                display=None if shown is None or kind in shown else "none",
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
                        value="",
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
    app: Dash, page: str, kinds: Sequence[str], source: tuple[str, str], always: bool = False
) -> None:
    """Let the buttons of a page ask for what is chosen in it.

    Args:
        app: The app.
        page: As in ``buttons``.
        kinds: As in ``buttons``.
        source: Component and property of what is chosen, rows with ``run_id`` and ``name``.
        always: Whether something is always chosen.
    """
    for kind in kinds:
        app.clientside_callback(
            f"(clicks, rows) => dash_clientside.actions.ask({json.dumps(kind)}, clicks, rows)",
            Output("asked", "data", allow_duplicate=True),
            Input(f"{page}-{kind}", "n_clicks"),
            State(*source),
            prevent_initial_call=True,
        )
        if not always:
            app.clientside_callback(
                "(rows) => !(rows && rows.length)",
                Output(f"{page}-{kind}", "disabled"),
                Input(*source),
                prevent_initial_call=True,
            )


def register(app: Dash, context: Context) -> None:
    """The question, and what is done when it is answered."""

    @app.callback(
        Output("confirmation", "opened"),
        Output("confirmation", "title"),
        Output("question", "children"),
        Output("confirm", "children"),
        Output("confirm", "color"),
        Output("priority", "display"),
        Output("priority", "value"),
        Input("asked", "data"),
        prevent_initial_call=True,
    )
    def _question(asked: dict[str, Any] | None) -> Any:
        if not asked:
            return (False, *[no_update] * 6)
        action = ACTIONS[asked["kind"]]
        text = action.question.format(runs=_runs(asked["runs"]))
        question = True, action.label, text, action.label, action.colour
        if asked["kind"] != "prioritize":
            return *question, "none", no_update
        return *question, "block", _priority(context, asked["runs"])

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


def _priority(context: Context, runs: Sequence[dict[str, str]]) -> int | str:
    """The priority of these runs; "" where they have several."""
    try:
        tasks = [context.scheduler.task(run["run_id"]) for run in runs]
    except StoreError:
        return ""  # who confirms is told
    found = {task.priority for task in tasks if task is not None}
    return found.pop() if len(found) == 1 else ""


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
