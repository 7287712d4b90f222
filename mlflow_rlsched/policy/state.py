"""The state: 23 numbers that say how a run does.

``fields.FIELDS`` is the one definition: the code, the document ``docs/state.md`` (printed by
``python -m mlflow_rlsched.policy.state``) and the networks' inputs come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_rlsched.policy.fields import FIELDS, Known
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval, bounded
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.loss import signals

__all__ = ["FIELDS", "State", "build_state", "document"]


@dataclass(frozen=True)
class State:
    """A state.

    Attributes:
        values: Raw value by name, the defined one where it is missing.
        vector: The 23 normalised values, each in [-1, 1], in the order of ``FIELDS``.
        missing: Names of the fields that are not known.
    """

    values: Mapping[str, float]
    vector: tuple[float, ...]
    missing: frozenset[str]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Value, normalised value and whether it is missing, by name."""
        return {
            field.name: {
                "value": self.values[field.name],
                "normalised": normalised,
                "missing": field.name in self.missing,
            }
            for field, normalised in zip(FIELDS, self.vector, strict=True)
        }


def build_state(history: History, interval: Interval, limits: Limits) -> State:
    """The state of a run; finite for any input.

    Args:
        history: The history with the interval's measurements (``measuring.observe``).
        interval: The interval that has just ended.
        limits: The run's limits.
    """
    known = Known(history, interval, limits, signals(history.losses))
    found = {field.name: bounded(field.compute(known)) for field in FIELDS}
    values = {
        field.name: field.missing if (value := found[field.name]) is None else value
        for field in FIELDS
    }
    return State(
        values=values,
        vector=tuple(field.normalised(values[field.name]) for field in FIELDS),
        missing=frozenset(name for name, value in found.items() if value is None),
    )


def document() -> str:
    """The text of ``docs/state.md``."""
    lines = [
        "# The state",
        "",
        f"Every decision rests on {len(FIELDS)} numbers. Each is mapped linearly, `low` to -1 and"
        " `high` to 1, and",
        "clipped; one that is not known takes the value under `missing` and is named as missing"
        " in the record",
        "of the decision. This page is printed by `python -m mlflow_rlsched.policy.state`.",
    ]
    for group in dict.fromkeys(field.group for field in FIELDS):
        lines += [
            "",
            f"## {group.capitalize()}",
            "",
            "| name | meaning | unit | source | low | high | missing |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{f.name}` | {f.meaning} | {f.unit} | {f.source}"
            f" | {f.low:g} | {f.high:g} | {f.missing:g} |"
            for f in FIELDS
            if f.group == group
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
