"""Cluster."""

from __future__ import annotations

from dash import Dash
from dash.development.base_component import Component

from rlsched_dashboard.components import page_title
from rlsched_dashboard.context import Context, View


def layout(context: Context, view: View) -> Component:
    """The page."""
    return page_title("Cluster")


def register(app: Dash, context: Context) -> None:
    """Its callbacks."""
