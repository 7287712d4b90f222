"""Charts of policies: how they learned, what they are worth, what there is to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlflow_rlsched.policy.action import GPU_DELTAS
from mlflow_rlsched.words import short
from rlsched_dashboard import charts
from rlsched_dashboard.charts import PALETTE, Figure
from rlsched_dashboard.context import Context
from rlsched_dashboard.sampling import min_max
from rlsched_dashboard.sources.explorer import Explored
from rlsched_dashboard.sources.histories import Numbers
from rlsched_dashboard.sources.policies import Evaluation
from rlsched_dashboard.sources.replay import Seen
from rlsched_dashboard.sources.tracking import TrackedRun

LEARNING = {
    "Learning": (
        "loss of the actor, by round",
        {"imitation/loss": "of the expert", "loss/actor": "of better actions"},
    ),
    "Critics' loss": (
        "by round",
        {"loss/critic": "from recorded runs", "critics/loss": "from simulated runs"},
    ),
    "Q": ("mean absolute value that the critics estimate", {"value": "Q"}),
    "Better actions": ("share of the recorded ones that all critics prefer", {"better": "share"}),
    "Faster than the champion": (
        "mean logarithm of the ratio of times, above 0 is better, by simulated runs so far",
        {"faster/fitted": "runs like yours", "faster/general": "any others"},
    ),
}
"""Charts of learning: how to read them, and their metrics with the names of their lines."""

DRAWN_RUNS = len(PALETTE) // 2
"""Runs of learning that are drawn at once."""

BINS = 30


def learning(context: Context, runs: Sequence[TrackedRun]) -> dict[str, Figure]:
    """The charts of ``LEARNING`` for which these runs have something to show."""
    made = {}
    for title, (_, metrics) in LEARNING.items():
        traces = [
            _history(context, run, metric, label, PALETTE[(2 * i + j) % len(PALETTE)])
            for i, run in enumerate(runs)
            for j, (metric, label) in enumerate(metrics.items())
            if metric in run.metrics
        ]
        if traces:
            made[title] = charts.figure(traces, x={"type": "linear"}, showlegend=True)
    return made


def _history(
    context: Context, run: TrackedRun, metric: str, label: str, colour: str
) -> charts.Trace:
    history = context.tracking.history(run.run_id, metric)
    kept = min_max(history.steps, history.values)
    values = history.values[kept]
    finite = np.isfinite(values)
    return charts.line(
        charts.text(f"{label}, {run.name or 'run'} {short(run.run_id)}"),
        history.steps[kept].tolist(),
        [float(v) if good else None for v, good in zip(values, finite, strict=True)],
        colour,
        mode=charts.mode(len(history)),
        hovertemplate="%{y:.4~g}",
    )


def evaluation(found: Evaluation) -> Figure:
    """Times over those of each baseline, with their 95 % intervals; 1 is as fast."""
    rows = found.against
    trace = {
        "type": "scatter",
        "name": "time over the baseline's",
        "mode": "markers",
        "x": [each.time for each in rows],
        "y": [each.baseline for each in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [each.high - each.time for each in rows],
            "arrayminus": [each.time - each.low for each in rows],
            "color": PALETTE[0],
            "thickness": 2,
        },
        "marker": {"color": PALETTE[0], "size": 10},
        "hovertemplate": "%{x:.2f} times the time of %{y}<extra></extra>",
    }
    high = max([1.1, *(each.high for each in rows)])
    low = min([0.5, *(each.low for each in rows)])
    line = {"color": "#868e96", "width": 1.5, "dash": "dash"}
    equal = {"type": "line", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "line": line}
    return charts.figure(
        [trace],
        x={
            "title": {"text": "time to the target over the baseline's"},
            "range": [low, high + 0.05],
        },
        y={"autorange": "reversed", "type": "category"},
        shapes=[equal],
        hovermode="closest",
    )


def replay(seen: Sequence[Seen]) -> Figure:
    """Transitions by who decided, key ones apart."""
    counts = {
        "others": Counter(each.policy for each in seen if not each.key),
        "key": Counter(each.policy for each in seen if each.key),
    }
    names = sorted({each.policy for each in seen})
    return charts.figure(
        [
            _bar(kind, names, [count[name] for name in names], colour)
            for (kind, count), colour in zip(counts.items(), PALETTE, strict=False)
        ],
        barmode="stack",
        showlegend=True,
        x={"type": "category"},
    )


def _bar(name: str, x: Sequence[Any], y: Sequence[float], colour: str) -> charts.Trace:
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": f"{name}: %{{y:,.4~g}}<extra></extra>",
    }


def priorities(ordinary: Numbers, key: Numbers) -> Figure:
    """How many transitions are drawn how often."""
    highest = float(np.concatenate([ordinary, key]).max())
    edges = np.linspace(0, highest, BINS + 1)
    middle = ((edges[1:] + edges[:-1]) / 2).round(3).tolist()
    return charts.figure(
        [
            _bar(name, middle, np.histogram(values, edges)[0].tolist(), colour)
            for name, values, colour in (
                ("others", ordinary, PALETTE[0]),
                ("key", key, PALETTE[1]),
            )
        ],
        barmode="stack",
        bargap=0.05,
        showlegend=True,
        x={"title": {"text": "times as likely as the average one"}},
    )


def chances(found: Explored) -> Figure:
    """What the actor thinks of each change of the devices."""
    bar = _bar(
        "probability", [f"{d:+d}" if d else "0" for d in GPU_DELTAS], found.chances, PALETTE[0]
    )
    picked = [PALETTE[1] if d == found.actor.gpu_delta else PALETTE[0] for d in GPU_DELTAS]
    bar["marker"] = {"color": picked}
    return charts.figure(
        [bar],
        x={"type": "category", "title": {"text": "devices more or fewer"}},
        y={"range": [0, 1], "tickformat": ".0%"},
    )


def curves(found: Explored) -> Figure:
    """What the critics think of each batch factor, by change of the devices."""
    traces = [
        charts.line(f"{delta:+d} devices" if delta else "as many", found.factors, y, colour)
        for (delta, y), colour in zip(found.curves.items(), PALETTE, strict=False)
    ]
    return charts.figure(
        traces, x={"title": {"text": "factor on the batch size"}}, y={"tickformat": ".3f"}
    )


def titles(made: Mapping[str, Figure]) -> list[tuple[str, str, Figure]]:
    """Title, note and figure of each chart of ``learning``."""
    return [(title, LEARNING[title][0], figure) for title, figure in made.items()]
