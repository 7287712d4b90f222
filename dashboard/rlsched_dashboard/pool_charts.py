"""Charts of a pool over time, real or simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mlflow_rlsched.words import duration
from rlsched_dashboard import charts, formats
from rlsched_dashboard.charts import PALETTE, Figure, Trace
from rlsched_dashboard.sources.pool import Pool

ROW = 22
"""Height of a device in the chart of tasks, pixels."""

MOST_ROWS = 64
MOST_NAMED = 300
"""Bars on which names are written; more take a browser seconds."""

LABEL = 18
"""Characters of a device's name beside its row."""

REST = "#868e96"
_EDGE = "rgba(127,127,127,0.6)"


@dataclass(frozen=True)
class Clock:
    """How times are placed on an axis: on a clock of a zone, or, simulated, in hours."""

    zone: str | None

    def places(self, times: Sequence[float]) -> list[Any]:
        """Places of points in time."""
        if self.zone is None:
            return [round(each / 3600, 4) for each in times]
        return list(formats.zoned(list(times), self.zone))

    def length(self, seconds: float) -> float:
        """Length of a bar."""
        return seconds / 3600 if self.zone is None else 1000 * seconds

    def axis(self, pool: Pool) -> dict[str, Any]:
        """The axis, as Plotly has it."""
        ends = self.places([pool.start, pool.end])
        whole = {"autorangeoptions": {"include": ends}}
        if self.zone is None:
            return {"type": "linear", "title": {"text": "hours of the workload"}, **whole}
        return {"type": "date", **whole}


def colours(pool: Pool) -> dict[str, str]:
    """A colour for each user or application; those that held least share one."""
    groups = pool.groups
    own = dict(zip(groups, PALETTE, strict=False))
    return own | dict.fromkeys(groups[len(PALETTE) :], REST)


def tasks(pool: Pool, clock: Clock) -> Figure:
    """Who held which device when."""
    shown = list(pool.devices)[:MOST_ROWS]
    known = set(shown)
    named = len(pool.holds) <= MOST_NAMED
    traces: list[Trace] = []
    for group, colour in colours(pool).items():
        holds = [each for each in pool.holds if each.group == group and each.device in known]
        if not holds:
            continue
        ends = clock.places([each.end for each in holds])
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": charts.text(group),
                "y": [each.device for each in holds],
                "base": clock.places([each.start for each in holds]),
                "x": [round(clock.length(each.end - each.start), 4) for each in holds],
                "customdata": [
                    [end, charts.text(each.name), duration(each.end - each.start), _how(each.ended)]
                    for each, end in zip(holds, ends, strict=True)
                ],
                "hovertemplate": f"<b>%{{customdata[1]}}</b>, {charts.template(group)}<br>%{{y}},"
                " %{customdata[2]}<br>%{customdata[3]}<extra></extra>",
                "marker": {
                    "color": colour,
                    "line": {"color": _EDGE, "width": 0.5},
                },
                "text": [charts.text(each.name) for each in holds] if named else None,
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "textfont": {"color": "#fff"},
            }
        )
    return charts.figure(
        traces,
        x=clock.axis(pool),
        y={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": shown[::-1],
            "range": [-0.5, len(shown) - 0.5],
            "showgrid": False,
            "ticklabelstep": 1 if len(shown) <= 24 else 4,
            "tickmode": "array",
            "tickvals": shown,
            "ticktext": [charts.text(_short(each)) for each in shown],
        },
        barmode="overlay",
        bargap=0.2,
        hovermode="closest",
        showlegend=True,
        uniformtext={"minsize": 10, "mode": "hide"},
    )


def height(pool: Pool) -> int:
    """Height of the chart of tasks, pixels."""
    return 110 + ROW * max(3, min(len(pool.devices), MOST_ROWS))


def use(pool: Pool, clock: Clock) -> Figure:
    """Devices held over time, by user."""
    # Stacked lines need the same places: Plotly takes what one does not have for 0.
    times = sorted({pool.start, pool.end, *(t for h in pool.holds for t in (h.start, h.end))})
    places = clock.places(times)
    traces = []
    for group, colour in colours(pool).items():
        events = [(h.start, h.end, h.devices) for h in pool.holds if h.group == group]
        more = {"stackgroup": "held", "fillcolor": f"{colour}66", "hovertemplate": "%{y:.3~g}"}
        traces.append(
            charts.steps(charts.text(group), places, _counted(events, times), colour, **more)
        )
        traces[-1]["line"]["width"] = 0
    return charts.figure(
        traces, x=clock.axis(pool), y=_whole(len(pool.devices)), showlegend=len(traces) > 1
    )


def waiting(pool: Pool, clock: Clock) -> Figure:
    """Runs that wait over time."""
    times = sorted({pool.start, pool.end, *(t for w in pool.waits for t in (w.start, w.end))})
    counts = _counted([(wait.start, wait.end, 1.0) for wait in pool.waits], times)
    line = charts.steps("waiting", clock.places(times), counts, PALETTE[1], fill="tozeroy")
    line["fillcolor"] = f"{PALETTE[1]}33"
    return charts.figure([line], x=clock.axis(pool), y=_whole(max(counts)))


def _whole(most: float) -> dict[str, Any]:
    """An axis of what is counted: no ticks between whole numbers."""
    return {"rangemode": "tozero", "dtick": 1 if most < 8 else None}


def _counted(events: Sequence[tuple[float, float, float]], times: Sequence[float]) -> list[float]:
    """How much there is from each point in time on, of (start, end, amount); the last repeats."""
    changes: dict[float, float] = defaultdict(float)
    for start, end, amount in events:
        changes[start] += amount
        changes[end] -= amount
    total, counts = 0.0, []
    for each in times[:-1]:
        total += changes[each]
        counts.append(round(total, 4))
    return [*counts, *(counts[-1:] or [0.0])]


@dataclass(frozen=True)
class Share:
    """What a user had of the pool.

    Attributes:
        group: The user, or the application.
        runs: Runs that held devices.
        device_s: Device-seconds.
        share: Part of all that was held.
        fair: Part by weight, among those that took part.
        waited_s: Median of the waiting times, or None where nothing waited.
        longest_s: The longest.
    """

    group: str
    runs: int
    device_s: float
    share: float
    fair: float
    waited_s: float | None
    longest_s: float | None


def shares(pool: Pool) -> list[Share]:
    """What each had of the pool, who had most first."""
    groups = pool.groups
    total = sum(hold.device_s for hold in pool.holds)
    weight = sum(pool.weights.get(group, 1.0) for group in groups) or 1.0
    found = []
    for group in groups:
        holds = [hold for hold in pool.holds if hold.group == group]
        waits = [wait.end - wait.start for wait in pool.waits if wait.group == group]
        device_s = sum(hold.device_s for hold in holds)
        found.append(
            Share(
                group,
                len({hold.run_id or hold.name for hold in holds}),
                device_s,
                device_s / total if total else 0.0,
                pool.weights.get(group, 1.0) / weight,
                median(waits) if waits else None,
                max(waits, default=None),
            )
        )
    return found


def fairness(found: Sequence[Share], weighted: bool) -> Figure:
    """Shares of the device-hours; ``weighted``: beside those by weight."""
    names = [charts.text(each.group) for each in found]
    bars = [("held", [each.share for each in found], PALETTE[0])]
    if weighted:
        bars.append(("by weight", [each.fair for each in found], REST))
    return charts.figure(
        [
            {
                "type": "bar",
                "name": name,
                "x": names,
                "y": values,
                "marker": {"color": colour},
                "hovertemplate": f"{name}: %{{y:.0%}}<extra></extra>",
            }
            for name, values, colour in bars
        ],
        x={"type": "category", "tickangle": "auto"},
        y={"tickformat": ".0%", "rangemode": "tozero"},
        barmode="group",
        bargap=0.4,
    )


def _short(device: str) -> str:
    return device if len(device) <= LABEL else f"{device[: LABEL - 1]}…"


def _how(ended: str) -> str:
    return ended.replace("_", " ") if ended else "goes on"
