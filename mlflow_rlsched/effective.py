"""Which batch size and learning rate a run trained with, all in all (stdlib only).

A policy changes both while a run goes on, so what was asked for is not what led to the result.
What stands for the whole run is the geometric mean of what was in force, weighted by running time:
both numbers act by their ratios, a trial that is soon taken back hardly counts, and a value that
was found early and kept counts for nearly all. The learning rate follows the scheduler's factor
alone: what the training's own schedule (warm-up, cosine) does goes on underneath, whatever rate it
starts from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

TAG = "rlsched.effective"
"""Tag of a run with such values by the name of their parameter, as JSON."""


def effective(
    records: Iterable[Mapping[str, Any]],
    asked: Mapping[str, str],
    batch_size: str | None,
    learning_rate: str | None,
) -> dict[str, float]:
    """Values that stand for what a run trained with; empty where nothing was changed.

    Args:
        records: The decisions on it, oldest first (``decision_log``).
        asked: Its parameters as submitted.
        batch_size: Name of the parameter that is the batch size, or None.
        learning_rate: Name of the one that is the learning rate, or None.
    """
    intervals, changed, elapsed = [], False, 0.0
    last: Mapping[str, Any] = {}
    for last in records:
        intervals.append((max(0.0, last["elapsed_s"] - elapsed), last["before"]))
        elapsed = last["elapsed_s"]
        changed = changed or last["setting"] != last["before"]
    if not changed:
        return {}
    if last["ended"] and last["setting"] != last["before"]:
        # It ran out of memory, and the attempts after that told nothing.
        intervals = [(1.0, last["setting"])]
    found: dict[str, float] = {}
    batch = _mean(intervals, "batch_size")
    if batch_size is not None and batch is not None:
        found[batch_size] = max(1, round(batch))
    scale, rate = _mean(intervals, "lr_scale"), _number(asked.get(learning_rate or ""))
    if learning_rate is not None and scale is not None and rate is not None:
        found[learning_rate] = rate * scale
    return found


def of_tag(text: str | None) -> dict[str, float]:
    """What the tag of a run says; nothing where it has none or a damaged one."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {
        name: number
        for name, number in value.items()
        if isinstance(number, int | float) and math.isfinite(number) and number > 0
    }


def _mean(intervals: Iterable[tuple[float, Mapping[str, Any]]], name: str) -> float | None:
    """Geometric mean, weighted by seconds; None where nothing lasted."""
    known = [(seconds, setting[name]) for seconds, setting in intervals if setting[name]]
    total = sum(seconds for seconds, _ in known)
    if not total:
        return None
    return math.exp(sum(seconds * math.log(value) for seconds, value in known) / total)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
