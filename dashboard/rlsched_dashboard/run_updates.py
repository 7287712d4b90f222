"""What a page of a run has drawn already, and the points that came since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rlsched_dashboard import charts, run_charts
from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.run import RunData, read_histories
from rlsched_dashboard.timeline import Timeline

REDRAWN_AFTER = 1000
"""Points added to what is drawn, after which all is drawn anew and thinned again."""


@dataclass(frozen=True)
class Seen:
    """What a browser has drawn.

    Attributes:
        charts: Names of the charts.
        unit: Unit of the time axis.
        attempts: What tells whether attempts changed.
        decisions: Decisions.
        points: Points by metric.
        added: Points added since all was drawn.
    """

    charts: tuple[str, ...]
    unit: str
    attempts: str
    decisions: int
    points: Mapping[str, int]
    added: int = 0

    @classmethod
    def of(cls, context: Context, data: RunData, timeline: Timeline) -> Seen:
        """What a browser has drawn once all of a run is drawn."""
        histories = read_histories(context, data, run_charts.metric_names(data))
        return cls(
            tuple(run_charts.charts_of(data)),
            timeline.unit[1] if timeline.elapsed else "",
            " ".join(f"{each.number}{each.reason}" for each in data.attempts),
            len(data.decisions),
            {name: len(history) for name, history in histories.items()},
        )

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Seen:
        """What ``to_json`` made."""
        return cls(**{**value, "charts": tuple(value["charts"])})

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def grown(self, before: Seen) -> Seen:
        """This, after only the points since ``before`` were added to what was drawn."""
        added = sum(self.points.values()) - sum(before.points.values())
        return replace(self, added=before.added + added)


def updates(
    context: Context, data: RunData, timeline: Timeline, before: Seen, now: Seen
) -> dict[str, Any] | None:
    """What Plotly is to add to each chart, by name; None where all is to be drawn anew."""
    same = (now.charts, now.unit, now.attempts) == (before.charts, before.unit, before.attempts)
    if not same or now.points.keys() != before.points.keys():
        return None
    if now.grown(before).added > REDRAWN_AFTER:
        return None
    histories = read_histories(context, data, now.points)
    records = data.decisions[before.decisions :]
    made: dict[str, Any] = {}
    for name, chart in run_charts.charts_of(data).items():
        if chart.metrics is None:
            if records:
                made[name] = run_charts.more_decisions(name, data.decisions, records, timeline)
            continue
        x, y, steps, places = [], [], [], []
        for place, metric in enumerate(chart.metrics.values()):
            first = before.points[metric]
            history = histories[metric]
            values = history.values[first:]
            if charts.mode(first) != charts.mode(len(history)):
                return None
            if not np.isfinite(history.values).all():
                return None  # its marks are lines of their own
            if len(values):
                x.append(timeline.places(history.times[first:]))
                y.append(values.tolist())
                steps.append(history.steps[first:].tolist())
                places.append(place)
        if places:
            made[name] = [{"x": x, "y": y, "customdata": steps}, places]
    return made
