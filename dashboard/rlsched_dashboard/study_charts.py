"""Charts of a study: its history, what matters in it, and where good values are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mlflow_rlsched.words import short
from rlsched_dashboard import charts
from rlsched_dashboard.charts import PALETTE, Figure
from rlsched_dashboard.sources.studies import Parameter, Studied, Trial

DRAWN_TRIALS = 5000
"""Trials that are drawn, the newest: more than that a browser draws slowly."""

_SCALE = [[0, PALETTE[0]], [0.5, PALETTE[5]], [1, PALETTE[4]]]


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
        "y": names,
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
    """Each complete trial as a line through its values, the better the bluer."""
    trials = study.complete[-DRAWN_TRIALS:]
    values = [t.value for t in trials]
    trace = {
        "type": "parcoords",
        "line": {
            "color": values,
            "colorscale": _SCALE,
            "reversescale": study.maximizes,
            "showscale": False,
        },
        "dimensions": [
            *(_dimension(each, trials) for each in study.parameters),
            {"label": "value", "values": values},
        ],
        "labelfont": {"size": 12},
    }
    return charts.figure([trace], margin={"l": 64, "r": 40, "t": 40, "b": 16})


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
    about = [
        f"trial {t.number}"
        + (f", run {short(t.run_id)}" if t.run_id else "")
        + "".join(f"<br>{key} = {value}" for key, value in t.params.items())
        for t in trials
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": [t.value for t in trials],
        "text": about,
        "marker": {"size": 7, "color": colour},
        "hovertemplate": "%{y:.4~g}<br>%{text}<extra></extra>",
    }


def _shown(parameter: Parameter, trial: Trial) -> Any:
    value = trial.params[parameter.name]
    return str(value) if parameter.choices else value


def _dimension(parameter: Parameter, trials: Sequence[Trial]) -> dict[str, Any]:
    """An axis of the parallel coordinates; a trial without the parameter is a gap."""
    known = [t.params.get(parameter.name) for t in trials]
    if parameter.choices:
        places = {choice: place for place, choice in enumerate(parameter.choices)}
        return {
            "label": parameter.name,
            "values": [places.get(str(value)) for value in known],
            "tickvals": list(places.values()),
            "ticktext": list(places),
        }
    if not parameter.log:
        return {"label": parameter.name, "values": known}
    logs = [None if value is None else math.log10(value) for value in known]
    real = [value for value in logs if value is not None] or [0.0]
    ticks = list(range(math.floor(min(real)), math.ceil(max(real)) + 1))
    return {
        "label": parameter.name,
        "values": logs,
        "tickvals": ticks,
        "ticktext": [f"{10.0**tick:g}" for tick in ticks],
    }
