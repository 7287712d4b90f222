"""The frame round every page: navigation, settings, and where the page goes."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from rlsched_dashboard import actions, icons, live
from rlsched_dashboard.context import Context

NAVIGATION = (
    ("/", "Now", "gauge"),
    ("/runs", "Runs", "list"),
    ("/compare", "Compare", "compare"),
    ("/policy", "Policy", "brain"),
    ("/search", "Search", "search"),
    ("/cluster", "Cluster", "server"),
)

AWAY = (
    "The dashboard does not answer: what is shown may be old. It is asked again and again;"
    " if that does not help, look at the terminal in which it was started."
)


def layout(context: Context) -> Component:
    """The frame."""
    return dmc.MantineProvider(
        [
            dcc.Store(id="place"),
            dcc.Store(id="view"),
            live.components(),
            actions.components(),
            dmc.NotificationContainer(id="notifications", position="bottom-right"),
            html.Div(AWAY, id="away", className="away", role="alert", hidden=True),
            html.A("Skip to the content", href="#page", className="skip"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(_header(context), px="md"),
                    dmc.AppShellNavbar(_navigation(context), p="sm", id="navigation"),
                    dmc.AppShellMain(html.Main(id="page", tabIndex=-1)),
                ],
                id="shell",
                header={"height": 52},
                navbar={"width": 190, "breakpoint": "sm", "collapsed": {"mobile": True}},
                padding="md",
            ),
        ],
        defaultColorScheme="auto",
        theme={
            "fontFamily": "var(--rlsched-font)",
            "headings": {"fontFamily": "var(--rlsched-font)", "fontWeight": "600"},
            "primaryColor": "blue",
            "defaultRadius": "md",
        },
    )


def register(app: Dash) -> None:
    """The frame's callbacks: theme, time zone, navigation, and what is to be shown."""
    live.register(app)
    app.clientside_callback(
        ClientsideFunction("shell", "theme"),
        Output("theme", "value"),
        Input("theme", "value"),
    )
    app.clientside_callback(
        ClientsideFunction("shell", "view"),
        Output("view", "data"),
        Input("place", "data"),
        Input("zone", "value"),
    )
    app.clientside_callback(
        ClientsideFunction("shell", "navigation"),
        Output("shell", "navbar"),
        Input("burger", "opened"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("shell", "close"),
        Output("burger", "opened"),
        Input("place", "data"),
        prevent_initial_call=True,
    )


def _header(context: Context) -> Component:
    mode: list[Any] = []
    if context.settings.read_only:
        mode.append(dmc.Badge("read-only", color="gray", variant="light", radius="sm"))
    return dmc.Group(
        [
            dmc.Group(
                [
                    dmc.Burger(
                        id="burger",
                        hiddenFrom="sm",
                        size="sm",
                        **{"aria-label": "Open the navigation"},
                    ),
                    dmc.Anchor(
                        [icons.icon("logo", 22), html.Span("rlsched")],
                        href=context.href("/"),
                        className="brand",
                        underline="never",
                        c="bright",
                    ),
                ],
                gap="sm",
            ),
            dmc.Group(
                [
                    *mode,
                    dmc.Switch(
                        id="live",
                        checked=True,
                        label="Live",
                        size="sm",
                        persistence=True,
                        persistence_type="session",
                    ),
                    _settings(),
                ],
                gap="sm",
            ),
        ],
        justify="space-between",
        h="100%",
        wrap="nowrap",
    )


def _settings() -> Component:
    def choice(identifier: str, label: str, values: tuple[tuple[str, str], ...]) -> Component:
        return html.Div(
            [
                dmc.Text(label, size="sm", fw=500, mb=4),
                dmc.SegmentedControl(
                    id=identifier,
                    data=[{"value": value, "label": shown} for value, shown in values],
                    value=values[0][0],
                    persistence=True,
                    fullWidth=True,
                    **{"aria-label": label},
                ),
            ]
        )

    return dmc.Popover(
        [
            dmc.PopoverTarget(
                dmc.ActionIcon(
                    icons.icon("settings"),
                    id="settings",
                    variant="subtle",
                    color="gray",
                    size="lg",
                    **{"aria-label": "Appearance and time zone"},
                )
            ),
            dmc.PopoverDropdown(
                dmc.Stack(
                    [
                        choice(
                            "theme",
                            "Theme",
                            (("auto", "System"), ("light", "Light"), ("dark", "Dark")),
                        ),
                        choice("zone", "Times", (("local", "Local"), ("UTC", "UTC"))),
                    ],
                    gap="md",
                )
            ),
        ],
        width=260,
        position="bottom-end",
        withArrow=True,
        keepMounted=True,
        trapFocus=True,
    )


def _navigation(context: Context) -> list[Component]:
    return [
        dmc.NavLink(
            label=label,
            href=context.href(path),
            leftSection=icons.icon(name),
            active="exact" if path == "/" else "partial",
            className="nav",
        )
        for path, label, name in NAVIGATION
    ]
