"""Charts of a study: its history, what matters in it, and where good values are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from mlflow_rlsched.words import short
from rlsched_dashboard import charts, formats
from rlsched_dashboard.charts import PALETTE, Figure
from rlsched_dashboard.sources.studies import Parameter, Studied, Trial

DRAWN_TRIALS = 5000
"""Trials that are drawn, the newest: more than that a browser draws slowly."""

LINES = 500
"""Lines of the parallel coordinates, the newest trials: more hide each other."""

SHADES = 5
LABEL = 14
"""Characters of a name or choice beside an axis."""


def history(study: Studied) -> Figure:
    """Values by trial, and the best so far."""
    kinds = {
        "past run": [t for t in study.complete if t.seeded],
        "trial": [t for t in study.complete if not t.seeded],
        "pruned": [t for t in study.trials if t.state == "pruned" and t.value is not None],
    }
    traces = [
        _dots(name, [t.number for t in trials], trials, colour)
        for (name, trials), colour in zip(
            kinds.items(), ("#868e96", PALETTE[0], PALETTE[1]), strict=True
        )
        if trials
    ]
    complete = study.complete
    best = list(accumulate((t.value or 0.0 for t in complete), max if study.maximizes else min))
    if best:
        numbers = [t.number for t in complete]
        traces.append(charts.steps("best so far", numbers, best, PALETTE[2], hoverinfo="skip"))
    return charts.figure(
        traces, x={"title": {"text": "trial"}}, showlegend=True, hovermode="closest"
    )


def importances(study: Studied) -> Figure:
    """Share of each parameter in what the values differ by."""
    names = sorted(study.importances, key=lambda name: study.importances[name])
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [study.importances[name] for name in names],
        "y": [charts.text(name) for name in names],
        "marker": {"color": PALETTE[0]},
        "hovertemplate": "%{y}: %{x:.0%}<extra></extra>",
    }
    return charts.figure(
        [bar],
        x={"tickformat": ".0%", "rangemode": "tozero"},
        y={"type": "category"},
        hovermode="closest",
    )


def parallel(study: Studied) -> Figure:
    """Each complete trial with all parameters as a line through its values.

    The better, the less pale; the best one apart. Drawn as lines: Plotly's own kind of chart for
    this needs WebGL.
    """
    sign = 1 if study.maximizes else -1
    trials = sorted(study.entire[-LINES:], key=lambda t: sign * (t.value or 0.0))
    axes = [_axis(each, trials) for each in study.parameters]
    axes.append(_scale("value", [t.value or 0.0 for t in trials], float))
    ends = [len(trials) * shade // SHADES for shade in range(SHADES)] + [len(trials) - 1]
    traces = [
        _lines(axes, trials, range(*span), PALETTE[0], 0.15 + 0.7 * shade / (SHADES - 1))
        for shade, span in enumerate(pairwise(ends))
    ]
    best = range(len(trials) - 1, len(trials))
    names = [charts.text(_clipped(axis.name)) for axis in axes]
    return charts.figure(
        [*traces, _lines(axes, trials, best, PALETTE[2], 1.0, width=3)],
        x={
            "tickmode": "array",
            "tickvals": list(range(len(axes))),
            "ticktext": names,
            "range": [-0.05, len(axes) - 0.6],
            "showgrid": True,
            "ticks": "",
            "fixedrange": True,
        },
        y={"visible": False, "range": [-0.08, 1.08], "fixedrange": True},
        hovermode="closest",
        showlegend=False,
        margin={"l": 24, "r": 12, "t": 8, "b": 32},
        annotations=[
            {
                "x": place,
                "y": y,
                "text": charts.text(_clipped(words)),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 4,
                "font": {"size": 11},
            }
            for place, axis in enumerate(axes)
            for y, words in axis.ticks
        ],
    )


def slices(study: Studied) -> dict[str, Figure]:
    """Values over each parameter, by its name."""
    made = {}
    for parameter in study.parameters:
        trials = [t for t in study.complete if parameter.name in t.params][-DRAWN_TRIALS:]
        x = [_shown(parameter, t) for t in trials]
        kind = "category" if parameter.choices else "log" if parameter.log else "linear"
        dots = _dots("trial", x, trials, PALETTE[0])
        dots["marker"] = {
            "size": 7,
            "color": [t.number for t in trials],
            "colorscale": [[0, "#adb5bd"], [1, PALETTE[0]]],
        }
        made[parameter.name] = charts.figure([dots], x={"type": kind}, hovermode="closest")
    return made


def _dots(name: str, x: Sequence[Any], trials: Sequence[Trial], colour: str) -> charts.Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": [t.value for t in trials],
        "text": [_about(t) for t in trials],
        "marker": {"size": 7, "color": colour},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _about(trial: Trial) -> str:
    """What is said of a trial under the pointer."""
    run = f", run {short(trial.run_id)}" if trial.run_id else ""
    lines = [f"{name} = {shown(value)}" for name, value in trial.params.items()]
    return "<br>".join(
        charts.text(line)
        for line in (f"trial {trial.number}{run}", f"value {shown(trial.value)}", *lines)
    )


def shown(value: Any) -> str:
    """A parameter's value for people."""
    return formats.number(value) if isinstance(value, float) else str(value)


def _clipped(text: str) -> str:
    return text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"


def _shown(parameter: Parameter, trial: Trial) -> Any:
    value = trial.params[parameter.name]
    return charts.text(str(value)) if parameter.choices else value


class _Axis(NamedTuple):
    """An axis of the parallel coordinates: where each trial crosses it, and what stands there."""

    name: str
    places: list[float]
    ticks: list[tuple[float, str]]


def _axis(parameter: Parameter, trials: Sequence[Trial]) -> _Axis:
    values = [t.params[parameter.name] for t in trials]
    if not parameter.choices:
        return _scale(parameter.name, values, math.log10 if parameter.log else float)
    last = max(1, len(parameter.choices) - 1)
    ticks = {choice: place / last for place, choice in enumerate(parameter.choices)}
    places = [ticks[str(value)] for value in values]
    return _Axis(parameter.name, places, [(y, choice) for choice, y in ticks.items()])


def _scale(name: str, values: Sequence[float], scale: Callable[[float], float]) -> _Axis:
    low, high = min(values), max(values)
    span = (scale(high) - scale(low)) or 1.0
    places = [(scale(value) - scale(low)) / span for value in values]
    return _Axis(name, places, [(0.0, formats.number(low)), (1.0, formats.number(high))])


def _lines(
    axes: Sequence[_Axis],
    trials: Sequence[Trial],
    which: range,
    colour: str,
    opacity: float,
    width: float = 1.5,
) -> charts.Trace:
    """Some trials in one trace, with gaps between them."""
    across = [*range(len(axes)), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": across * len(which),
        "y": [y for n in which for y in (*(axis.places[n] for axis in axes), None)],
        "text": [about for n in which for about in [_about(trials[n])] * len(across)],
        "opacity": opacity,
        "line": {"color": colour, "width": width},
        "hovertemplate": "%{text}<extra></extra>",
    }
