"""Cluster: the pool over time, and workloads that were simulated."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from mlflow_rlsched.store import StoreError
from mlflow_rlsched.words import duration
from rlsched_dashboard import charts, components, formats, live, pool_charts
from rlsched_dashboard.charts import Figure
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.pool_charts import Clock, Share
from rlsched_dashboard.sources.pool import (
    ELSEWHERE,
    NoSimulationError,
    Pool,
    Simulation,
    real_pool,
    simulation,
    simulations,
    simulations_folder,
)

WINDOWS = {"1h": 3600.0, "6h": 6 * 3600.0, "24h": 86400.0, "7d": 7 * 86400.0, "all": None}
"""How far to look back, by the name in the address."""

USUAL = "24h"
CHART = "cluster-chart"
CHARTS = ("tasks", "use", "waiting", "fairness")
PARTS = ("notes", "figures", *CHARTS, "shares")


class Chart(NamedTuple):
    """A chart, and what is round it."""

    shown: Figure
    title: str
    note: str
    height: int = charts.HEIGHT

    def card(self, name: str, kind: str = CHART) -> Component:
        """Its card."""
        identifier = {"type": kind, "name": name}
        return charts.chart_card(identifier, self.title, self.shown, self.note, self.height)


def layout(context: Context, view: View) -> Component:
    """The page."""
    window = view.query.get("window", USUAL)
    window = window if window in WINDOWS else USUAL
    parts = _read(context, window, view.zone)
    shown = [html.Div(_shown(name, parts[name]), id=f"cluster-{name}") for name in PARTS]
    return html.Div(
        [
            components.page_title("Cluster", [_windows(window)]),
            *shown[:3],
            html.Div(shown[3:], className="charts"),
            _simulated(view.query.get("simulation")),
            dcc.Store(id="cluster-zone", data=view.zone),
            dcc.Store(id="cluster-seen", data=_digests(parts)),
        ]
    )


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
    live.keep_in_address(app, {"window": ("cluster-window", "value")})
    app.clientside_callback(
        ClientsideFunction("cluster", "simulation"),
        Output("address", "data", allow_duplicate=True),
        Input("cluster-simulation", "value"),
        State("cluster-simulation", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output({"type": CHART, "name": ALL}, "figure"),
        *(Output(f"cluster-{name}", "children") for name in PARTS),
        Output("cluster-seen", "data"),
        live.REFRESH,
        Input("cluster-window", "value"),
        State("cluster-zone", "data"),
        State("cluster-seen", "data"),
        running=live.RUNNING,
        prevent_initial_call=True,
    )
    def _renew(_: Any, window: str, zone: str, seen: dict[str, str]) -> Any:
        names = [each["id"]["name"] for each in ctx.outputs_list[0]]
        still: list[Any] = [no_update] * len(names)
        try:
            parts = _read(context, window, zone)
        except StoreError as error:
            told = components.notice("The store cannot be read", str(error), kind="error")
            return [still, told, *[no_update] * (len(PARTS) - 1), {**seen, "notes": ""}]
        digests = _digests(parts)
        if digests == seen:
            return [still, *[no_update] * (len(PARTS) + 1)]
        news = {name: parts[name] for name in PARTS if digests[name] != seen.get(name)}
        # A chart whose frame is the same keeps its place, and its zoom.
        kept = [n for n in names if digests.get(_frame(n)) == seen.get(_frame(n))]
        figures = [
            charts.renewed(news[n].shown) if n in news and n in kept else no_update for n in names
        ]
        changed = [_shown(n, news[n]) if n in news and n not in kept else no_update for n in PARTS]
        return [figures, *changed, digests]


def _shown(name: str, part: Any) -> Any:
    return part.card(name) if isinstance(part, Chart) else part


def _digests(parts: dict[str, Any]) -> dict[str, str]:
    """What tells whether a part changed, or what is round a chart."""
    drawn = {name: part for name, part in parts.items() if isinstance(part, Chart)}
    figures = {name: chart.shown for name, chart in drawn.items()}
    frames = {_frame(name): [*chart[1:]] for name, chart in drawn.items()}
    return live.digests({**parts, **figures, **frames})


def _frame(name: str) -> str:
    return f"{name}'s frame"


def _read(context: Context, window: str, zone: str) -> dict[str, Any]:
    """What is shown of the real pool, by part."""
    try:
        pool, trouble = real_pool(context, WINDOWS[window])
    except ValueError as error:
        told = components.notice(
            "The devices of this host cannot be told", str(error), kind="error"
        )
        return dict.fromkeys(PARTS) | {"notes": told}
    notes = []
    if trouble is not None:
        notes.append(components.notice("Runs of MLflow are missing", str(trouble), kind="error"))
    if not pool.holds and not pool.waits:
        text = "Choose a longer stretch of time, or submit a run in a project's folder:"
        notes.append(
            components.notice("Nothing held a device", text, "mlflow run . --backend rlsched")
        )
        return dict.fromkeys(PARTS) | {"notes": notes}
    return {"notes": notes, **_drawn(pool, Clock(zone))}


def _drawn(pool: Pool, clock: Clock) -> dict[str, Any]:
    """The parts of a pool, real or simulated."""
    found = pool_charts.shares(pool)
    more = len(pool.devices) - pool_charts.MOST_ROWS
    weighted = clock.zone is not None
    whose = "user" if weighted else "application"
    return {
        "figures": _figures(pool, found),
        "tasks": Chart(
            pool_charts.tasks(pool, clock),
            "Tasks on devices",
            f"coloured by {whose}" + f"; {more} more devices are left out" * (more > 0),
            pool_charts.height(pool),
        ),
        "use": Chart(pool_charts.use(pool, clock), "Devices held", f"by {whose}"),
        "waiting": Chart(pool_charts.waiting(pool, clock), "Waiting", "runs"),
        "fairness": Chart(
            pool_charts.fairness(found, weighted=weighted),
            "Shares",
            f"of the device-hours, by {whose}" + ", beside those by weight" * weighted,
        ),
        "shares": components.card(f"By {whose}", _shares(found, whose, weighted)),
    }


def _figures(pool: Pool, found: Sequence[Share]) -> Component:
    own = [device for device in pool.devices if device != ELSEWHERE]
    held = sum(hold.device_s for hold in pool.holds if hold.device != ELSEWHERE)
    room = len(own) * (pool.end - pool.start)
    waits = [wait.end - wait.start for wait in pool.waits]
    now = sum(wait.end >= pool.end for wait in pool.waits)
    ends = [hold.ended for hold in pool.holds]
    return components.strip(
        [
            components.figure("Devices", str(len(own))),
            components.figure(
                "Held",
                formats.percent(held / room if room else None),
                f"of {duration(_rough(pool.end - pool.start))}",
            ),
            components.figure("Device time", formats.hours(sum(each.device_s for each in found))),
            components.figure(
                "Waited",
                duration(_rough(median(waits))) if waits else formats.MISSING,
                f"median of {len(waits)}" if waits else "nothing waited",
            ),
            components.figure("Waiting", str(now), "at the end of this stretch"),
            components.figure("Out of memory", str(ends.count("oom")), f"of {len(ends)} holds"),
        ]
    )


def _rough(seconds: float) -> float:
    """A length of time that changes seldom."""
    return seconds if seconds < 60 else seconds - seconds % 60


def _shares(found: Sequence[Share], whose: str, weighted: bool) -> Component:
    rows = [
        (
            each.group,
            str(each.runs),
            formats.hours(each.device_s),
            formats.percent(each.share),
            *([formats.percent(each.fair)] if weighted else []),
            formats.MISSING if each.waited_s is None else duration(each.waited_s),
            formats.MISSING if each.longest_s is None else duration(each.longest_s),
        )
        for each in found
    ]
    fair = ["By weight"] if weighted else []
    headings = ("", "Runs", "Device time", "Share", *fair, "Waited, median", "Longest")
    return components.table(headings, rows, f"Shares by {whose}")


def _windows(window: str) -> Component:
    return dmc.SegmentedControl(
        id="cluster-window",
        data=[{"value": name, "label": name} for name in WINDOWS],
        value=window,
        size="xs",
        **{"aria-label": "How far to look back"},
    )


def _simulated(wanted: str | None) -> Component:
    """Workloads that were simulated, marked as such."""
    names = simulations()
    name = wanted if wanted in names else (names[0] if names else None)
    badge = dmc.Badge("simulated", color="grape", variant="filled", radius="sm")
    title = dmc.Group([dmc.Title("Simulated workloads", order=2, size="h4"), badge], gap="sm")
    picker = dmc.Select(
        id="cluster-simulation",
        data=names,
        value=name,
        size="xs",
        w=260,
        allowDeselect=False,
        display=None if names else "none",
        **{"aria-label": "Simulated workload"},
    )
    heading = dmc.Group([title, picker], justify="space-between", mb="sm")
    return html.Section([heading, *_simulation(name)], className="simulated")


def _simulation(name: str | None) -> list[Component]:
    if name is None:
        text = "What a scheduler would make of a workload is shown beside what happened, once kept:"
        command = (
            f"mkdir -p {simulations_folder()}\nrlsched simulate --profiles DIR --workload FILE.csv"
            f" --policy goodput --json > {simulations_folder()}/NAME.json"
        )
        return [components.notice("Nothing was simulated yet", text, command)]
    try:
        found = simulation(name)
    except NoSimulationError as error:
        return [components.notice("This cannot be shown", str(error), kind="error")]
    parts = _drawn(found.pool, Clock(None))
    cards = [parts[chart].card(chart, "simulated-chart") for chart in CHARTS]
    return [
        dmc.Text(_told(found), size="sm", c="dimmed", mb="sm"),
        parts["figures"],
        cards[0],
        html.Div([*cards[1:], parts["shares"]], className="charts"),
    ]


def _told(found: Simulation) -> str:
    figures = found.figures
    return (
        f"{figures['finished']} jobs of {figures['workload']} under {figures['policy']}: done after"
        f" {duration(figures['avg_jct_s'])} on average, all after"
        f" {duration(figures['makespan_s'])}, {figures['gpu_hours']:.1f} GPU-hours,"
        f" {figures['restarts']:.0f} restarts. Nothing of this ran."
    )
