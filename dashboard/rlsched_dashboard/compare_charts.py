"""Charts of several runs over one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_rlsched.words import short
from rlsched_dashboard import charts
from rlsched_dashboard.charts import PALETTE, Figure, Trace
from rlsched_dashboard.context import Context
from rlsched_dashboard.run_charts import knob_axis, not_finite
from rlsched_dashboard.sampling import min_max
from rlsched_dashboard.sources.comparison import HOUR_S, Way, way_of
from rlsched_dashboard.sources.run import RunData
from rlsched_dashboard.sources.tracking import RunGone, TrackingError

COLOURS = (*PALETTE, "#74b816", "#868e96")
"""A colour for each run."""

POINTS = 500
"""Points of a line: there are up to ten of them in each chart."""

KNOBS = {
    "rlsched/gpus": "gpus",
    "rlsched/batch_size": "batch_size",
    "rlsched/learning_rate": "learning_rate",
}
USUAL = ("rlsched/loss", "rlsched/throughput", *KNOBS)
"""Metrics that are drawn, besides the objectives, where nobody chose any."""

TITLES = {
    "rlsched/loss": "Training loss",
    "rlsched/throughput": "Throughput",
    "rlsched/gpus": "Devices",
    "rlsched/batch_size": "Batch size",
    "rlsched/learning_rate": "Learning rate",
}


@dataclass(frozen=True)
class Shared:
    """What the runs are drawn on.

    Attributes:
        axis: One of ``comparison.AXES``.
        ways: How far each run was when, None where that is not known.
        zoom: Places that are zoomed to, or None.
    """

    axis: str
    ways: Sequence[Way | None]
    zoom: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        context: Context,
        runs: Sequence[RunData],
        axis: str,
        zoom: tuple[float, float] | None = None,
    ) -> Shared:
        """The axis for these runs."""
        return cls(axis, [way_of(context, run, axis) for run in runs], zoom)

    def unit(self, longest: float) -> tuple[float, str]:
        """What one of the axis is, and its name; ``longest`` is the last place that is drawn."""
        if self.axis == "samples":
            return 1.0, "samples"
        if self.axis == "hours":
            return (1.0, "device-hours") if longest > 2 else (1 / 60, "device-minutes")
        if longest > 2 * HOUR_S:
            return HOUR_S, "hours since the start"
        return (
            (60.0, "minutes since the start") if longest > 120 else (1.0, "seconds since the start")
        )


@dataclass(frozen=True)
class Line:
    """A metric of one run on the axis, all points."""

    name: str
    colour: str
    places: Any
    values: Any
    steps: Any
    is_baseline: bool


def metrics_of(runs: Sequence[RunData]) -> list[str]:
    """Metrics that some run has, those that are drawn by default first."""
    present: set[str] = set().union(*(run.metrics for run in runs)) if runs else set()
    wanted = [*dict.fromkeys(run.objective for run in runs), *USUAL]
    usual = [name for name in wanted if name in present]
    return [*usual, *sorted(present - set(usual))]


def usual(runs: Sequence[RunData]) -> list[str]:
    """Metrics that are drawn where nobody chose any."""
    objectives = {run.objective for run in runs}
    return [name for name in metrics_of(runs) if name in objectives or name in USUAL]


def figures(
    context: Context,
    runs: Sequence[RunData],
    metrics: Sequence[str],
    shared: Shared,
    baseline: str,
) -> tuple[dict[str, Figure], list[float]]:
    """A figure for each metric, and the range of the axis that shows all of each run."""
    lines = {name: _lines(context, runs, name, shared, baseline) for name in metrics}
    ends = [float(line.places[-1]) for each in lines.values() for line in each if len(line.places)]
    longest = max(ends, default=0.0)
    size, unit = shared.unit(longest)
    whole = [0.0, round(1.01 * longest / size, 4) or 1.0]
    axis = {"title": {"text": unit}, "autorange": False, "range": list(shared.zoom or whole)}
    return {name: _figure(name, each, shared, size, axis) for name, each in lines.items()}, whole


def _lines(
    context: Context, runs: Sequence[RunData], metric: str, shared: Shared, baseline: str
) -> list[Line]:
    found = []
    for run, way, colour in zip(runs, shared.ways, COLOURS, strict=False):
        if way is None or metric not in run.metrics:
            continue
        try:
            history = context.tracking.history(run.run_id, metric)
        except (TrackingError, RunGone):
            continue  # the page says so
        places = way.at(history.times)
        name = run.name or short(run.run_id)
        is_baseline = run.run_id == baseline
        found.append(Line(name, colour, places, history.values, history.steps, is_baseline))
    return found


def _figure(
    metric: str,
    lines: Sequence[Line],
    shared: Shared,
    size: float,
    axis: Mapping[str, Any],
) -> Figure:
    traces: list[Trace] = []
    seen: list[float] = []
    for line in lines:
        first, last = 0, len(line.places)
        if shared.zoom is not None:
            low, high = np.searchsorted(line.places, np.array(shared.zoom) * size)
            first, last = max(0, int(low) - 1), min(last, int(high) + 1)
        kept = first + min_max(line.places[first:last], line.values[first:last], POINTS)
        x, values, steps = line.places[kept] / size, line.values[kept], line.steps[kept]
        finite = np.isfinite(values)
        seen += values[finite].tolist()
        places = np.round(x, 5).tolist()
        draw = charts.steps if metric in KNOBS else charts.line
        shown = [float(v) if good else None for v, good in zip(values, finite, strict=True)]
        more: dict[str, Any] = {
            "hovertemplate": f"{charts.template(line.name)}: %{{y:.5~g}}<extra></extra>"
        }
        more |= {"connectgaps": False, "mode": charts.mode(len(line.places))}
        trace = draw(charts.text(line.name), places, shown, line.colour, **more)
        trace["line"]["width"] = 3 if line.is_baseline else 1.6
        trace["line"]["dash"] = "dot" if line.is_baseline else "solid"
        traces.append(trace)
        if not finite.all():
            bad = ~finite
            marks = np.array(places)[bad].tolist()
            traces.append(not_finite(line.name, marks, values[bad], steps[bad]))
    knob = KNOBS.get(metric)
    y = knob_axis(knob, [value for value in seen if value > 0]) if knob else {}
    sampled = any(len(line.places) > POINTS for line in lines)
    return charts.figure(
        traces,
        x=axis,
        y=y,
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        showlegend=False,
        meta={"sampled": sampled},
    )
