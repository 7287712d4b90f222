"""Small things that pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

LONG = 10
"""Characters of a key figure that fit beside others in the usual size."""


def state_badge(state: str) -> Component:
    """A task's state."""
    return html.Span(state, className=f"state {state}")


def figure(label: str, value: str, note: str = "", title: str = "") -> Component:
    """A key figure: what it is, its value, what it rests on; ``title`` says more to a pointer."""
    return dmc.Paper(
        html.Div(
            [
                dmc.Text(label, size="sm", c="dimmed"),
                dmc.Text(value, className="figure-value" + " long" * (len(value) > LONG)),
                dmc.Text(note, size="xs", c="dimmed"),
            ],
            title=title,
        ),
        className="figure",
        withBorder=True,
        p="md",
    )


def strip(figures: Sequence[Component]) -> Component:
    """A row of key figures."""
    return html.Div(list(figures), className="figures")


def card(
    title: str, children: Any, actions: Any = None, note: str = "", wrap: bool = True
) -> Component:
    """A titled part of a page; ``wrap``: whether its actions may go below the title."""
    parts = [children]
    if title:
        heading = [dmc.Title(title, order=2, size="h5")]
        if note:
            heading.append(dmc.Text(note, size="sm", c="dimmed"))
        folds = "wrap" if wrap else "nowrap"
        top = dmc.Group(
            [html.Div(heading), dmc.Group(actions or [], gap="xs", wrap=folds)],
            justify="space-between",
            align="flex-start",
            mb="sm",
            wrap=folds,
        )
        parts.insert(0, top)
    return dmc.Paper(parts, withBorder=True, p="md", className="card")


def notice(title: str, text: str, command: str = "", kind: str = "empty") -> Component:
    """Why a place is empty, and what to do about it; ``kind`` is empty, error or gone."""
    parts: list[Any] = [dmc.Text(text)]
    if command:
        parts.append(dmc.Code(command, block=True, mt="xs"))
    colour = {"empty": "gray", "gone": "yellow", "error": "red"}[kind]
    return dmc.Alert(parts, title=title, color=colour, variant="light", className=f"notice {kind}")


def page_title(title: str, actions: Any = None, beside: Any = None) -> Component:
    """The heading of a page, what stands beside it, and on the right what can be done."""
    return dmc.Group(
        [
            dmc.Group([dmc.Title(title, order=1, size="h3"), beside], gap="sm"),
            dmc.Group(actions or [], gap="xs"),
        ],
        justify="space-between",
        mb="md",
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], label: str) -> Component:
    """A small table that does not change; ``label`` is what a screen reader says."""
    return html.Div(
        dmc.Table(
            [
                dmc.TableThead(dmc.TableTr([dmc.TableTh(each) for each in headings])),
                dmc.TableTbody([dmc.TableTr([dmc.TableTd(cell) for cell in row]) for row in rows]),
            ],
            striped=True,
            fz="xs",
            verticalSpacing=4,
        ),
        className="scrolls",
        role="region",
        tabIndex=0,
        **{"aria-label": label},
    )
