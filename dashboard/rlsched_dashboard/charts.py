"""Charts: their look, their lines and the card that holds one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Patch, dcc, html
from dash.development.base_component import Component

from rlsched_dashboard.components import card

PALETTE = ("#228be6", "#f76707", "#0ca678", "#be4bdb", "#e03131", "#f59f00", "#15aabf", "#7950f2")
"""Colours of lines; each can be told from both backgrounds."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_GRID = "rgba(134,142,150,0.22)"
_ZOOM = ("range", "autorange", "uirevision")
HEIGHT = 240

FEW = 30
"""Points of a line, below which each gets a mark."""

Identifier = str | dict[str, str]
Trace = dict[str, Any]
Figure = dict[str, Any]
"""As Plotly takes it in JSON: its own classes check each value, which takes a second here."""

# Texts are coloured by the style sheet, so that a figure looks well in light and in dark.
_AXIS = {
    "gridcolor": _GRID,
    "zeroline": False,
    "linecolor": _GRID,
    "automargin": True,
    "tickangle": 0,
}


def _in_document(identifier: Identifier) -> str:
    """The id that Dash gives the element."""
    if isinstance(identifier, str):
        return identifier
    return json.dumps(identifier, sort_keys=True, separators=(",", ":"))


def figure(
    traces: Sequence[Trace],
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Figure:
    """A figure in the dashboard's look.

    Args:
        traces: What it shows, as ``line``, ``steps`` and Plotly's reference describe them.
        x: More for the horizontal axis, as Plotly names it.
        y: The same for the vertical one.
        layout: More of the layout.
    """
    return {
        "data": list(traces),
        "layout": {
            "font": {"family": FONT, "size": 12, "color": "#868e96"},
            "colorway": PALETTE,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 56, "r": 12, "t": 8, "b": 32},
            "hovermode": "x",
            "hoverlabel": {"font": {"family": FONT}, "align": "left", "namelength": -1},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "showlegend": len(traces) > 1,
            "uirevision": "kept",
            "xaxis": _AXIS | {"showgrid": False, "ticks": "outside", "nticks": 6} | dict(x or {}),
            "yaxis": _AXIS | dict(y or {}),
            **layout,
        },
    }


def renewed(shown: Figure) -> Patch:
    """The change to a figure that is drawn: all but where its horizontal axis begins and ends.

    Dash draws a chart anew when it was zoomed, and Plotly takes that for a zoom by the app, which
    a whole figure would replace whatever its ``uirevision``; and a figure that was asked for before
    a zoom may come after it.
    """
    change = Patch()
    change["data"] = shown["data"]
    for name, part in shown["layout"].items():
        if name not in ("xaxis", "yaxis"):
            change["layout"][name] = part
            continue
        for key, value in part.items():
            if name == "yaxis" or key not in _ZOOM:
                change["layout"][name][key] = value
    return change


def text(name: str) -> str:
    """A name as Plotly shows it: not as the markup that somebody wrote into it."""
    return name.replace("&", "&amp;").replace("<", "&lt;")


def template(name: str) -> str:
    """A name within a ``hovertemplate``."""
    return text(name).replace("%", "&#37;")


def mode(points: int) -> str:
    """How a line of so many points is drawn: where there are few, one may stand alone."""
    return "lines+markers" if points < FEW else "lines"


def line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, **more: Any) -> Trace:
    """A line; points that are None are gaps. Lists, as ``extendData`` needs them."""
    return {
        "type": "scatter",
        "name": name,
        "x": list(x),
        "y": list(y),
        "mode": "lines",
        **more,
        "marker": {"size": 5},
        "line": {"color": colour, "width": 1.75} | more.get("line", {}),
    }


def steps(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, **more: Any) -> Trace:
    """A value that holds until the next one."""
    return line(name, x, y, colour, **{**more, "line": {"shape": "hv"}})


def graph(identifier: Identifier, shown: Figure, label: str, height: int = HEIGHT) -> dcc.Graph:
    """A graph of a fixed height; ``label`` is what a screen reader says."""
    return dcc.Graph(
        id=identifier,
        figure=shown,
        responsive=True,
        style={"height": f"{height}px"},
        config={"displayModeBar": False, "displaylogo": False, "doubleClick": "autosize"},
        className="chart",
    )


def chart_card(
    identifier: Identifier, title: str, shown: Figure, note: str = "", height: int = HEIGHT
) -> Component:
    """A chart with its title and its two downloads."""
    actions = [
        dmc.Button(
            kind,
            variant="subtle",
            color="gray",
            size="compact-xs",
            className="export",
            **{
                "aria-label": f"Download {title} as {kind}",
                "data-chart": _in_document(identifier),
                "data-kind": kind.lower(),
                "data-name": title,
            },
        )
        for kind in ("PNG", "CSV")
    ]
    chart = html.Div(
        graph(identifier, shown, title, height),
        role="img",
        **{"aria-label": f"Chart: {title}"},
    )
    return card(title, chart, actions, note, wrap=False)
