"""Grids: their columns, and the one look that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag

Column = dict[str, Any]
Row = Mapping[str, Any]


def text(field: str, name: str, **more: Any) -> Column:
    """A column of text."""
    return {"field": field, "headerName": name, "filter": "agTextColumnFilter", **more}


def number(field: str, name: str, **more: Any) -> Column:
    """A column of numbers, with four significant digits."""
    return {
        "field": field,
        "headerName": name,
        "filter": "agNumberColumnFilter",
        "type": "rightAligned",
        "valueFormatter": {"function": "rlsched.number(params.value)"},
        **more,
    }


def duration(field: str, name: str, **more: Any) -> Column:
    """A column of lengths of time, in seconds."""
    shown = {"valueFormatter": {"function": "rlsched.duration(params.value)"}}
    return number(field, name, **shown, **more)


def when(field: str, name: str, zone: str, **more: Any) -> Column:
    """A column of points in time, in seconds since the epoch."""
    shown = {"valueFormatter": {"function": f"rlsched.when(params.value, '{zone}')"}}
    return number(field, name, **({"type": "leftAligned", "width": 170} | shown | more))


def state(field: str = "state", name: str = "State", **more: Any) -> Column:
    """A column of states, as coloured badges."""
    return text(field, name, cellRenderer="State", width=120, **more)


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
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> dag.AgGrid:
    """A grid that keeps its selection, filters and order when its rows are renewed.

    Args:
        identifier: Of the component.
        columns: As the functions above make them.
        rows: JSON objects.
        row_id: Field that tells rows apart.
        label: What a screen reader says.
        height: Pixels, or a CSS length; None for as high as its rows are.
        options: More of AG Grid's ``dashGridOptions``.
        more: More of ``AgGrid``.
    """
    shown = {"domLayout": "autoHeight"} if height is None else {}
    style = {"height": None if height is None else height, "width": "100%"}
    return dag.AgGrid(
        id=identifier,
        columnDefs=list(columns),
        rowData=list(rows),
        getRowId=f"params.data.{row_id}",
        defaultColDef={"resizable": True, "sortable": True, "minWidth": 80},
        columnSize="responsiveSizeToFit",
        dashGridOptions={
            "theme": {"function": "rlsched.theme(themeQuartz)"},
            "animateRows": False,
            "rowHeight": 38,
            "headerHeight": 38,
            "ensureDomOrder": True,
            "suppressColumnVirtualisation": True,
            "enableCellTextSelection": True,
            "overlayNoRowsTemplate": "Nothing to show",
            **shown,
            **(options or {}),
        },
        style=style,
        **more,
    )
