"""Live refresh: who may refresh when, and the view that the address carries."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from plotly.utils import PlotlyJSONEncoder

INTERVAL_MS = 2000

AGAIN_MS = 5000

TICK = "tick"
REFRESH = Input("refresh", "data")
"""Input of what a page renews: changes every two seconds while the page is seen and idle."""

RUNNING = [(Output("busy", "data"), True, False)]
"""``running`` of those callbacks: the next refresh waits until this one is painted."""


def components() -> Component:
    """What the shell holds for it."""
    return html.Div(
        [
            dcc.Interval(id=TICK, interval=INTERVAL_MS),
            dcc.Store(id="refresh"),
            dcc.Store(id="busy", data=False),
            dcc.Store(id="address"),
        ]
    )


def register(app: Dash) -> None:
    """Pass a tick on only if the page is seen, wanted live, and done with the one before."""
    app.clientside_callback(
        ClientsideFunction("live", "tick"),
        Output("refresh", "data"),
        Input(TICK, "n_intervals"),
        State("busy", "data"),
        State("live", "checked"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("live", "again"),
        Output("view", "data", allow_duplicate=True),
        Input("again", "n_intervals"),
        State("zone", "value"),
        prevent_initial_call=True,
    )


def again(shown: Component) -> Component:
    """What stands in the place of a page for now; the page is asked for again by itself."""
    return html.Div([shown, dcc.Interval(id="again", interval=AGAIN_MS)])


def digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """What tells whether a part changed, by its name."""
    return {
        name: hashlib.sha256(json.dumps(part, cls=PlotlyJSONEncoder).encode()).hexdigest()[:16]
        for name, part in parts.items()
    }


def finite(value: float | None) -> float | None:
    """A number that JSON can carry; NaN and infinities are none."""
    return value if value is not None and math.isfinite(value) else None


def keep_in_address(app: Dash, parts: Mapping[str, tuple[str, str]]) -> None:
    """Keep what people set on a page in its address, so that a link shows the same.

    Args:
        app: The app.
        parts: Component and property by the name of the address's parameter.
    """
    app.clientside_callback(
        f"(...values) => dash_clientside.live.address({json.dumps(list(parts))}, values)",
        Output("address", "data", allow_duplicate=True),
        *(Input(*where) for where in parts.values()),
        prevent_initial_call=True,
    )
