"""Grids: their columns, and the one look that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
from dash import html
from dash.development.base_component import Component

Column = dict[str, Any]
Row = Mapping[str, Any]


def _column(field: str, name: str, **more: Any) -> Column:
    # A column may grow where there is room, and is not squeezed where there is none.
    size = {"minWidth": more["width"]} if "width" in more else {"flex": 1}
    return {"field": field, "headerName": name, **size, **more}


def text(field: str, name: str, **more: Any) -> Column:
    """A column of text."""
    return _column(field, name, filter="agTextColumnFilter", **more)


def number(field: str, name: str, **more: Any) -> Column:
    """A column of numbers, with four significant digits."""
    look = {
        "filter": "agNumberColumnFilter",
        "type": "rightAligned",
        "valueFormatter": {"function": "rlsched.number(params.value)"},
    }
    return _column(field, name, **(look | more))


def duration(field: str, name: str, **more: Any) -> Column:
    """A column of lengths of time, in seconds."""
    shown = {"valueFormatter": {"function": "rlsched.duration(params.value)"}}
    return number(field, name, **(shown | more))


def moment(field: str, name: str, zone: str, **more: Any) -> Column:
    """The same as a time of day, with its date only if that is not today."""
    shown = {"valueFormatter": {"function": f"rlsched.moment(params.value, '{zone}')"}}
    return _column(field, name, **({"width": 110} | shown | more))


def when(field: str, name: str, zone: str, **more: Any) -> Column:
    """A column of points in time, in seconds since the epoch."""
    shown = {"valueFormatter": {"function": f"rlsched.when(params.value, '{zone}')"}}
    return _column(field, name, **({"width": 175} | shown | more))


def state(field: str = "state", name: str = "State", **more: Any) -> Column:
    """A column of states, as coloured badges."""
    return text(field, name, **({"cellRenderer": "State", "width": 115} | more))


def link(field: str, name: str, href: str, **more: Any) -> Column:
    """A column of links; ``href`` is the field that holds the address."""
    return text(field, name, cellRenderer="Link", cellRendererParams={"href": href}, **more)


def grid(
    identifier: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    row_id: str,
    label: str,
    *,
    height: int | str | None = None,
    selection: bool = False,
    filters: bool = True,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Component:
    """A grid that keeps its selection, filters and order when its rows are renewed.

    Args:
        identifier: Of the component.
        columns: As the functions above make them.
        rows: JSON objects.
        row_id: Field that tells rows apart.
        label: What a screen reader says.
        height: Pixels, or a CSS length; None for as high as its rows are.
        filters: Whether columns can be filtered.
        selection: Whether rows can be chosen.
        options: More of AG Grid's ``dashGridOptions``.
        more: More of ``AgGrid``.
    """
    shown: dict[str, Any] = {"domLayout": "autoHeight"} if height is None else {}
    if selection:
        shown["rowSelection"] = {"mode": "multiRow", "enableClickSelection": False}
        shown["selectionColumnDef"] = {"pinned": "left", "width": 44}
    style = {"height": None if height is None else height, "width": "100%"}
    made = dag.AgGrid(
        id=identifier,
        columnDefs=[each if filters else {**each, "filter": False} for each in columns],
        rowData=list(rows),
        getRowId=f"params.data.{row_id}.toString()",
        defaultColDef={"resizable": True, "sortable": True, "minWidth": 80},
        dashGridOptions={
            "theme": {"function": "rlsched.theme(themeQuartz)"},
            "animateRows": False,
            "rowHeight": 38,
            "headerHeight": 38,
            "ensureDomOrder": True,
            "rowBuffer": 4,  # of ten, the default, a page of a thousand runs opens later
            "enableCellTextSelection": True,
            "localeText": {"noRowsToShow": "Nothing to show"},
            **shown,
            **(options or {}),
        },
        style=style,
        **more,
    )
    return html.Div(made, role="region", **{"aria-label": label})
