"""The charts of a run, all over the same time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_rlsched.overview.decisions import change, changed
from rlsched_dashboard import charts
from rlsched_dashboard.charts import PALETTE, Figure, Trace
from rlsched_dashboard.sampling import MOST, Numbers
from rlsched_dashboard.sources.histories import History
from rlsched_dashboard.sources.run import Record, RunData
from rlsched_dashboard.timeline import Timeline

BARS = 300
"""Bars of the rewards; more decisions than that are put together."""

REWARDS = {
    "throughput": PALETTE[2],
    "cost": PALETTE[4],
    "progress": PALETTE[0],
    "smoothness": PALETTE[5],
    "penalty": PALETTE[7],
}

_DEVICE = re.compile(
    r"system/gpu_(?P<name>\d+(_mig_\w+)?)_"
    r"(?P<what>utilization_percentage|memory_usage_percentage|power_usage_watts)"
)
_HOST = {
    "utilization_percentage": "system/cpu_utilization_percentage",
    "memory_usage_percentage": "system/system_memory_usage_percentage",
}
FINE = (1, 1.5, 2, 3, 5, 7)
"""Digits of the ticks where rates are near each other."""

_LOOK = ("size", "color", "opacity")
_BANDS = {"oom": "#e03131", "user_error": "#e03131", "finished": "#0ca678"}


@dataclass(frozen=True)
class Chart:
    """One chart of the page.

    Attributes:
        title: What it shows.
        note: How it is to be read.
        metrics: Metrics in it, by the names of their lines.
    """

    title: str
    note: str = ""
    metrics: Mapping[str, str] | None = None


NAMES = (
    "loss",
    "throughput",
    "gpus",
    "batch_size",
    "learning_rate",
    "reward",
    "utilisation",
    "memory",
    "power",
)
"""The charts, in the order of the page."""


def charts_of(data: RunData) -> dict[str, Chart]:
    """The charts for which a run has something to show, by name."""
    found = {
        "loss": Chart("Loss and objective", "", _losses(data)),
        "throughput": Chart(
            "Throughput",
            "samples a second; goodput counts what is useful",
            _present(data, {"throughput": "rlsched/throughput", "goodput": "rlsched/goodput"}),
        ),
        "utilisation": _percent(data, "Utilisation", "utilization_percentage"),
        "memory": _percent(data, "Memory", "memory_usage_percentage"),
        "power": Chart("Power", "watts", _of_devices(data, "power_usage_watts")),
    }
    shown = {name: chart for name, chart in found.items() if chart.metrics}
    if data.decisions:
        shown["gpus"] = Chart("Devices")
        if any(each["setting"]["batch_size"] is not None for each in data.decisions):
            shown["batch_size"] = Chart("Batch size")
        shown["learning_rate"] = Chart("Learning rate")
        shown["reward"] = Chart("Reward", "of each interval, by component, and their sum")
    return {name: shown[name] for name in NAMES if name in shown}


def figures(
    data: RunData, histories: Mapping[str, History], timeline: Timeline
) -> dict[str, Figure]:
    """A figure for each chart of ``charts_of``."""
    made = {}
    bands = _bands(data, timeline)
    ends = np.array([each.ended_at for each in data.attempts[:-1] if each.ended_at is not None])
    named = _bands(data, timeline, named=True)
    for name, chart in charts_of(data).items():
        if chart.metrics is not None:
            shapes = named if name == "loss" else bands
            made[name] = _lines(name, chart.metrics, histories, timeline, shapes, ends)
        elif name == "reward":
            made[name] = _reward(data.decisions, timeline, bands)
        else:
            made[name] = _knob(name, data.decisions, timeline, bands)
    return made


def thinned(data: RunData, histories: Mapping[str, History]) -> set[str]:
    """Names of those charts that show fewer points than there are."""
    return {
        name
        for name, chart in charts_of(data).items()
        for metric in (chart.metrics or {}).values()
        if metric in histories and len(histories[metric]) > MOST
    }


def metric_names(data: RunData) -> list[str]:
    """Metrics that the charts of a run need."""
    shown = (chart.metrics or {} for chart in charts_of(data).values())
    return sorted({metric for metrics in shown for metric in metrics.values()})


def _losses(data: RunData) -> dict[str, str]:
    loss = "loss" if "loss" in data.metrics else "rlsched/loss"
    return _present(data, {"loss": loss, data.objective: data.objective})


def _present(data: RunData, metrics: Mapping[str, str]) -> dict[str, str]:
    return {name: metric for name, metric in metrics.items() if metric in data.metrics}


def _of_devices(data: RunData, what: str) -> dict[str, str]:
    """A line for each device; that of the processes where a run has none."""
    found = {}
    for metric in sorted(data.metrics):
        match = _DEVICE.fullmatch(metric)
        if match and match["what"] == what:
            found[f"GPU {match['name'].replace('_mig_', ' MIG ')}"] = metric
    return found or _present(data, {"its processes": _HOST[what]} if what in _HOST else {})


def _percent(data: RunData, title: str, what: str) -> Chart:
    """The chart of a reading in percent: of each device, or of the host by its processes."""
    metrics = _of_devices(data, what)
    whose = " of the host, by its processes" * (_HOST[what] in metrics.values())
    return Chart(title, f"percent{whose}", metrics)


def _lines(
    name: str,
    metrics: Mapping[str, str],
    histories: Mapping[str, History],
    timeline: Timeline,
    bands: Sequence[dict[str, Any]],
    ends: Numbers,
) -> Figure:
    traces: list[Trace] = []
    wild: list[Trace] = []
    for place, (label, metric) in enumerate(metrics.items()):
        history = histories.get(metric)
        if history is None:
            continue
        times, values, steps = timeline.thinned(history)
        colour = PALETTE[place % len(PALETTE)]
        bad = ~np.isfinite(values)
        if bad.any():
            wild.append(not_finite(label, timeline.places(times[bad]), values[bad], steps[bad]))
        # Between two attempts nothing was measured, and the line is broken.
        at = np.searchsorted(times, ends)
        at, breaks = at[(at > 0) & (at < len(times))], ends[(at > 0) & (at < len(times))]
        times, values, steps = (
            np.insert(each, at, new)
            for each, new in ((times, breaks), (values, np.nan), (steps, np.nan))
        )
        shown = [float(value) if np.isfinite(value) else None for value in values]
        traces.append(
            charts.line(
                label,
                timeline.places(times),
                shown,
                colour,
                customdata=[None if np.isnan(step) else step for step in steps.tolist()],
                hovertemplate="%{y:.5~g} at step %{customdata:.0f}",
                connectgaps=False,
                mode=charts.mode(len(history)),
                meta=metric,
            )
        )
    percent = {"rangemode": "tozero"} if name in ("utilisation", "memory", "power") else {}
    return charts.figure(
        [*traces, *wild],
        x=timeline.axis(),
        y=percent,
        shapes=list(bands),
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        showlegend=len(metrics) > 1,
    )


def not_finite(label: str, x: Sequence[Any], values: Numbers, steps: Numbers) -> Trace:
    """Marks where a metric was no finite number: at the upper edge, whatever the axis shows."""
    said = ["NaN" if np.isnan(value) else "infinite" for value in values]
    return {
        "type": "scatter",
        "name": f"{label}: not finite",
        "x": list(x),
        "y": [0.97] * len(x),
        "yaxis": "y2",
        "cliponaxis": False,
        "mode": "markers",
        "marker": {"symbol": "x", "size": 8, "color": "#e03131"},
        "text": [
            f"{charts.text(label)}: {word} at step {step:.0f}"
            for step, word in zip(steps, said, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }


def _knob(
    name: str, records: Sequence[Record], timeline: Timeline, bands: Sequence[dict[str, Any]]
) -> Figure:
    """What a knob was set to, with a mark at each decision."""
    known = [record for record in records if _value(name, record, "setting") is not None]
    moved = [_value(name, each, "setting") != _value(name, each, "before") for each in known]
    every = -(-len(known) // MOST)
    kept = [i for i, change_ in enumerate(moved) if change_ or i % every == 0]
    known, moved = [known[i] for i in kept], [moved[i] for i in kept]
    y = [_value(name, record, "setting") for record in known]
    trace = charts.steps(
        "decision",
        timeline.places(record["time"] for record in known),
        y,
        PALETTE[0],
        customdata=[record["number"] for record in known],
        text=[_told(record) for record in known],
        hovertemplate="%{text}<extra></extra>",
    )
    trace |= {
        "mode": "lines+markers",
        "marker": {
            "size": [9 if each else 5 for each in moved],
            "color": [PALETTE[1] if each else PALETTE[0] for each in moved],
            "opacity": [1.0 if each else 0.45 for each in moved],
            "line": {"width": 0},
        },
    }
    return charts.figure(
        [trace],
        x=timeline.axis(),
        y=knob_axis(name, [value for value in y if value]),
        shapes=list(bands),
        hovermode="closest",
    )


def more_decisions(
    name: str, records: Sequence[Record], new: Sequence[Record], timeline: Timeline
) -> list[Any]:
    """What Plotly is to add to the chart of a knob or of the rewards for ``new`` decisions."""
    if name == "reward":
        drawn = _reward(new, timeline, ())["data"]
        parts = [part for part in REWARDS if any(each["reward"][part] for each in records)]
        known = {trace["name"]: trace for trace in drawn}
        x = drawn[-1]["x"]
        y = [known[part]["y"] if part in known else [0.0] * len(x) for part in parts]
        y.append(known["total"]["y"])
        return [{"x": [x] * len(y), "y": y}, list(range(len(y)))]
    (trace,) = _knob(name, new, timeline, ())["data"]
    added = {part: [trace[part]] for part in ("x", "y", "customdata", "text")}
    look = {f"marker.{part}": [trace["marker"][part]] for part in _LOOK}
    return [added | look, [0]]


def knob_axis(name: str, values: Sequence[float]) -> dict[str, Any]:
    """A knob's axis: whole devices, batches by powers of two, rates by powers of ten."""
    if name == "gpus":
        return {"rangemode": "tozero", "dtick": 1 if max(values, default=1) < 10 else None}
    if name == "batch_size" and values:
        low = int(np.floor(np.log2(min(values)))) - 1
        high = int(np.ceil(np.log2(max(values)))) + 1
        ticks = [2.0**power for power in range(low, high + 1)]
        texts = [f"{tick:g}" for tick in ticks]
        span = [float(np.log10(ticks[0])), float(np.log10(ticks[-1]))]
        return {"type": "log", "tickvals": ticks, "ticktext": texts, "range": span}
    if values:
        low, high = np.log10(min(values)), np.log10(max(values))
        room = max(0.15, 0.1 * (high - low))
        ticks = [
            digit * 10.0**power
            for power in range(int(np.floor(low - room)), int(np.ceil(high + room)) + 1)
            for digit in ((1,) if high - low > 1.5 else (1, 3) if high - low > 0.7 else FINE)
        ]
        shown = {"tickvals": ticks, "ticktext": [f"{tick:.1e}" for tick in ticks]}
        return {"type": "log", "range": [low - room, high + room], **shown}
    return {}


def _value(name: str, record: Record, which: str) -> float | None:
    setting = record[which]
    if name != "learning_rate":
        return None if setting[name] is None else float(setting[name])
    base = record.get("training", {}).get("learning_rate")
    return float(setting["lr_scale"] * (1.0 if base is None else base))


def _told(record: Record) -> str:
    """What the pointer is told of a decision."""
    what = change(record) if changed(record) else "no change"
    lines = [f"<b>decision {record['number']}: {what}</b>", *_wrapped(record["reason"])]
    return "<br>".join(lines)


def _wrapped(text: str, width: int = 70) -> list[str]:
    """Lines of a text, safe as Plotly's markup."""
    lines = [""]
    for word in charts.text(text).split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:8]


def _reward(
    records: Sequence[Record], timeline: Timeline, bands: Sequence[dict[str, Any]]
) -> Figure:
    """Rewards by component, stacked, with their total."""
    groups = np.array_split(np.arange(len(records)), min(len(records), BARS))
    x = timeline.places(records[int(group[-1])]["time"] for group in groups)
    means = {
        part: [float(np.mean([records[int(i)]["reward"][part] for i in group])) for group in groups]
        for part in (*REWARDS, "total")
    }
    traces: list[Any] = [
        {
            "type": "bar",
            "name": part,
            "x": x,
            "y": means[part],
            "marker": {"color": colour, "line": {"width": 0}},
            "hovertemplate": f"{part} %{{y:+.3f}}<extra></extra>",
        }
        for part, colour in REWARDS.items()
        if any(means[part])
    ]
    hover = {"hovertemplate": "total %{y:+.3f}<extra></extra>"}
    total = charts.line("total", x, means["total"], "#868e96", **hover)
    return charts.figure(
        [*traces, total],
        x=timeline.axis(),
        barmode="relative",
        bargap=0.1,
        shapes=list(bands),
    )


def _bands(data: RunData, timeline: Timeline, named: bool = False) -> list[dict[str, Any]]:
    """A band for every other attempt, and a line where one ended; ``named``: with the reason."""
    shapes: list[dict[str, Any]] = []
    end = timeline.start + timeline.length_s
    for attempt in data.attempts:
        first, last = timeline.places((attempt.started_at, attempt.ended_at or end))
        if attempt.number % 2 == 0:
            shapes.append(
                {
                    "type": "rect",
                    "xref": "x",
                    "yref": "paper",
                    "x0": first,
                    "x1": last,
                    "y0": 0,
                    "y1": 1,
                    "fillcolor": "rgba(134,142,150,0.10)",
                    "line": {"width": 0},
                    "layer": "below",
                }
            )
        if attempt.ended_at is not None and attempt.reason != "finished":
            colour = _BANDS.get(attempt.reason, "#f76707")
            shapes.append(
                {
                    "type": "line",
                    "xref": "x",
                    "yref": "paper",
                    "x0": last,
                    "x1": last,
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": colour, "width": 1.5, "dash": "dot"},
                    "label": {
                        "text": attempt.reason.replace("_", " ") * named,
                        "textangle": 0,
                        "textposition": "end",
                        "xanchor": "left",
                        "yanchor": "top",
                        "font": {"size": 11, "color": colour},
                    },
                }
            )
    return shapes
