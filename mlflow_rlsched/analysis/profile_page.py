"""A profile as a page that stands alone: Plotly's code is in it, and nothing is asked of a host.

Needs Plotly (``pip install 'mlflow-rlsched[analysis]'``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from itertools import groupby, pairwise
from typing import Any, TypeVar

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from mlflow_rlsched.analysis import profile_text as text
from mlflow_rlsched.analysis.findings import Finding
from mlflow_rlsched.analysis.profile import Profile, known
from mlflow_rlsched.analysis.timeline import WORDS

_CODE = re.compile(r"`([^`]*)`")

T = TypeVar("T")

MOST_POINTS = 2000
"""Points of a line; of more, every so many-th is drawn."""

COLOURS = {
    "queue": "#b8c0cc",
    "over": "#e3e6ea",
    "start": "#f0b95b",
    "restart": "#e07b39",
    "repeated": "#c03a2b",
    "compute": "#3a7d5c",
    "communication": "#5b7fc7",
    "input": "#8a5fb5",
    "ending": "#d6c48a",
    "silent": "#8d99a6",
}

_STYLE = """
:root { color-scheme: light dark; --text: #1c232b; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #dfe4ea; --page: #171b20; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }
.wide { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem .8rem .2rem 0; vertical-align: top; }
th { text-align: left; } .number { text-align: right; font-variant-numeric: tabular-nums; }
li { margin: .4rem 0; } h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.main-svg text { fill: var(--text) !important; }
.hoverlayer .main-svg text, .hovertext text { fill: #1c232b !important; }
"""

_GRID = "rgba(128, 128, 128, .3)"
"""Of lines behind the drawn ones: is seen on a light page and on a dark one."""


def page(found: Profile, stands_out: Sequence[Finding], unknown: Sequence[str]) -> str:
    """A profile as an HTML document."""
    name = found.record.task.spec.label or found.record.task.run_id
    pictures = [_parts(found), _times(found), _speed(found), _devices(found), _scaling(found)]
    body = [
        f"<h1>Profile of {escape(name)}</h1>",
        _table(["", ""], [[key, value] for key, value in text.facts(found).items()], numbers=False),
        "<h2>What stands out</h2>",
        _list([_finding(each) for each in stands_out] or ["Nothing."]),
        _table(text.PART_HEADINGS, text.part_rows(found)),
        *(_picture(each) for each in pictures if each is not None),
    ]
    if unknown:
        body += ["<h2>What is not known</h2>", _list([_words(each) for each in unknown])]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(name)}</title>"
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>"
        f"<body>{''.join(body)}</body></html>"
    )


def _parts(found: Profile) -> go.Figure | None:
    figure = go.Figure(layout={"barmode": "stack"})
    for part, seconds in found.parts.items():
        if seconds:
            figure.add_bar(
                x=[seconds],
                y=["its time"],
                orientation="h",
                name=WORDS[part],
                marker_color=COLOURS[part],
                hovertemplate="%{x:.1f} s",
            )
    figure.update_layout(height=260, xaxis_title="seconds", yaxis_visible=False)
    return figure if figure.data else None


def _times(found: Profile) -> go.Figure | None:
    figure = go.Figure(layout={"barmode": "overlay", "title": "Over time, UTC"})
    shown: set[str] = set()
    for (part, attempt), group in groupby(found.stretches, lambda each: (each.part, each.attempt)):
        members = list(group)
        start, end = members[0].start, members[-1].end
        figure.add_bar(
            base=[_moment(start)],
            x=[1000 * (end - start)],
            y=[f"attempt {attempt}" if attempt else "waiting"],
            orientation="h",
            name=WORDS[part],
            legendgroup=part,
            showlegend=part not in shown,
            marker_color=COLOURS[part],
            hovertemplate=f"{end - start:.1f} s",
        )
        shown.add(part)
    figure.update_layout(xaxis_type="date", height=240 + 30 * len(found.record.launches))
    return figure if shown else None


def _speed(found: Profile) -> go.Figure | None:
    figure = go.Figure(layout={"title": "Speed and batch size, UTC"})
    for launch in found.record.launches:
        told = _thinned(launch.told)
        points = [
            (_moment(after.time), (after.samples - before.samples) / (after.time - before.time))
            for before, after in pairwise(told)
            if before.samples is not None
            and after.samples is not None
            and after.samples > before.samples
            and after.time > before.time
        ]
        name = f"attempt {launch.attempt.number}"
        if points:
            times, rates = zip(*points, strict=True)
            figure.add_scatter(x=times, y=rates, name=f"samples/s, {name}")
        batches = [(_moment(each.time), each.batch) for each in told if each.batch is not None]
        if points and batches:
            times, sizes = zip(*batches, strict=True)
            line = {"shape": "hv", "dash": "dot"}
            figure.add_scatter(x=times, y=sizes, name=f"batch, {name}", yaxis="y2", line=line)
    right = {"title": "batch size", "overlaying": "y", "side": "right", "showgrid": False}
    right["tickmode"] = "auto"
    figure.update_layout(
        yaxis={"title": "samples/s", "rangemode": "tozero"}, yaxis2=right | {"rangemode": "tozero"}
    )
    return figure if figure.data else None


def _devices(found: Profile) -> go.Figure | None:
    figure = go.Figure(layout={"title": "Devices, at each decision, UTC"})
    names = {"gpu_utilisation": "utilisation", "memory_used": "memory", "power": "power"}
    for field, name in names.items():
        told = _thinned(known(found.record.decisions, field))
        points = [(_moment(record["time"]), value) for record, value in told]
        if points:
            times, values = zip(*points, strict=True)
            figure.add_scatter(x=times, y=values, name=name)
    figure.update_layout(yaxis={"range": [0, 1.05], "tickformat": ".0%"})
    return figure if figure.data else None


def _scaling(found: Profile) -> go.Figure | None:
    if len(found.scaling) < 2:
        return None
    figure = go.Figure(layout={"title": "Scaling"})
    gpus = [each.gpus for each in found.scaling]
    base = found.scaling[0]
    figure.add_scatter(x=gpus, y=[each.rate for each in found.scaling], name="measured")
    ideal = [base.rate / base.gpus * each for each in gpus]
    figure.add_scatter(x=gpus, y=ideal, name="in proportion", line_dash="dot")
    figure.update_layout(xaxis_title="devices", yaxis_title="samples/s")
    return figure


def _picture(figure: go.Figure) -> str:
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        margin={"l": 10, "r": 10, "t": 50, "b": 50},
        legend={"orientation": "h", "yref": "container", "y": 0, "traceorder": "normal"},
        hoverlabel={"bgcolor": "#fff"},
    )
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(gridcolor=_GRID, zerolinecolor=_GRID, linecolor=_GRID, automargin=True)
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _thinned(points: Sequence[T]) -> Sequence[T]:
    return points[:: len(points) // MOST_POINTS + 1]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _finding(each: Finding) -> str:
    setting = f" <i>Try:</i> {_words(each.setting)}" if each.setting else ""
    return f"<b>{_words(each.what)}</b>: {_words(each.evidence)}.{setting}"


def _words(sentence: str) -> str:
    """A sentence, with what stands in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(sentence))


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]], numbers: bool = True) -> str:
    kind = ' class="number"' if numbers else ""
    first, *others = (escape(each.capitalize()) for each in headings)
    head = f"<th>{first}</th>" + "".join(f"<th{kind}>{each}</th>" for each in others)
    body = "".join(
        f"<tr><td>{escape(first)}</td>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
