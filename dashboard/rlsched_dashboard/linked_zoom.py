"""One zoom for all charts of a page: ``assets/zoom.js`` in the page's callbacks."""

from __future__ import annotations

from dash import ALL, ClientsideFunction, Dash, Input, Output, State


def register(app: Dash, page: str, kind: str) -> None:
    """Show in all charts what one is zoomed to, and all of it at a button.

    Args:
        app: The app.
        page: Prefix of the page's stores ``-zoom`` (what is zoomed to, or None) and
            ``-whole-range`` (from where to where all of it is), and of its button ``-whole``.
        kind: ``type`` in the ids of its charts.
    """
    app.clientside_callback(
        ClientsideFunction("zoom", "asked"),
        Output(f"{page}-zoom", "data"),
        Output(f"{page}-whole", "disabled"),
        Input({"type": kind, "name": ALL}, "relayoutData"),
        Input(f"{page}-whole", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("zoom", "whole"),
        Output("address", "data", allow_duplicate=True),
        Input(f"{page}-whole-range", "data"),
        State(f"{page}-zoom", "data"),
        prevent_initial_call="initial_duplicate",
    )
