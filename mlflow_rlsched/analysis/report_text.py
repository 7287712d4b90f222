"""A report of a period as text: rows for a terminal, Markdown, JSON values."""

from __future__ import annotations

import time
from typing import Any

from mlflow_rlsched.analysis.markdown import cell, table
from mlflow_rlsched.analysis.report import BASIS, Report, Row
from mlflow_rlsched.analysis.savings import Amount
from mlflow_rlsched.analysis.usage import SECONDS_OF_AN_HOUR
from mlflow_rlsched.words import short

MOST_ROWS = 20
"""Runs that are listed, those that held most."""

SAVED_HEADINGS = ("SAVED, ESTIMATED", "", "95 % INTERVAL")
RUN_HEADINGS = ("RUN", "NAME", "STATE", "DEVICE-HOURS", "SAVED", "95 % INTERVAL")


def facts(found: Report) -> dict[str, str]:
    """What was taken, at a glance."""
    told = {
        "from": _clock(found.start),
        "until": _clock(found.end),
        "runs": str(len(found.rows)),
        "device time": f"{found.device_hours:.4g} h",
    }
    if found.cost is not None:
        told["cost"] = f"{found.cost:.4g} (of runs with `prices`)"
    saved = f"; of {len(found.estimated)} it can be told what that saved" if found.tuned else ""
    told["tuned"] = f"{found.tuned} runs{saved}"
    return told


def saved_rows(found: Report) -> list[list[str]]:
    """What was saved, as far as it is known."""
    amounts = {
        "running time": (found.hours_saved, "h"),
        "device time": (found.device_hours_saved, "h"),
        "energy": (found.kwh_saved, "kWh"),
        "cost": (found.cost_saved, ""),
    }
    return [
        [name, f"{amount.value:.4g} {unit}".strip(), _interval(amount)]
        for name, (amount, unit) in amounts.items()
        if amount is not None
    ]


def run_rows(found: Report) -> list[list[str]]:
    """The runs that held most."""
    return [_run(row) for row in found.rows[:MOST_ROWS]]


def unknown(found: Report) -> list[str]:
    """What is not known, a sentence each."""
    told = found.estimated
    spoilt = sum(row.spoilt > 0 for row in found.rows)
    named = {
        "what was saved is not known: no run of this time was tuned": not found.tuned,
        f"of {found.tuned - len(told)} tuned runs it cannot be told what that saved: they do not"
        " tell their progress, were not seen at one setting for long enough, or nothing but their"
        " learning rate was changed": found.tuned > len(told),
        f"of {spoilt} runs some decisions cannot be read, and are left out": spoilt > 0,
        "energy saved is not known: no power of these runs is recorded": bool(told)
        and found.kwh_saved is None,
        "cost is not known: set `prices`": bool(found.rows) and found.cost is None,
    }
    return [sentence for sentence, is_so in named.items() if is_so]


def markdown(found: Report, title: str) -> str:
    """A report as Markdown."""
    lines = [f"# {cell(title)}", ""]
    lines += [f"- {name}: {value}" for name, value in facts(found).items()]
    if rows := saved_rows(found):
        lines += ["", *table(SAVED_HEADINGS, rows)]
    if rows := run_rows(found):
        lines += ["", *table(RUN_HEADINGS, rows)]
    lines += ["", *(f"{sentence}\n" for sentence in BASIS)]
    lines += [f"- {sentence}" for sentence in unknown(found)]
    return "\n".join(lines).rstrip() + "\n"


def to_json(found: Report) -> dict[str, Any]:
    """A report as JSON values; what is not known is null."""
    return {
        "start": found.start,
        "end": found.end,
        "runs": len(found.rows),
        "device_hours": found.device_hours,
        "cost": found.cost,
        "tuned": found.tuned,
        "estimated": len(found.estimated),
        "saved": {
            "hours": _amount(found.hours_saved),
            "device_hours": _amount(found.device_hours_saved),
            "kwh": _amount(found.kwh_saved),
            "cost": _amount(found.cost_saved),
        },
        "basis": list(BASIS),
        "unknown": unknown(found),
        "rows": [
            {
                "run_id": row.run_id,
                "name": row.name,
                "state": row.state,
                "device_s": row.device_s,
                "tuned": row.tuned,
                "saved_s": _amount(row.seconds),
                "device_s_saved": _amount(row.saved_s),
                "watts": row.watts,
                "cost": row.cost,
            }
            for row in found.rows
        ],
    }


def _amount(amount: Amount | None) -> dict[str, float] | None:
    if amount is None:
        return None
    return {"value": amount.value, "low": amount.low, "high": amount.high}


def _run(row: Row) -> list[str]:
    hour = 1 / SECONDS_OF_AN_HOUR
    saved = row.saved_s and row.saved_s.times(hour)
    return [
        short(row.run_id),
        row.name,
        row.state,
        f"{row.device_s * hour:.4g}",
        "" if saved is None else f"{saved.value:.4g}",
        "" if saved is None else _interval(saved),
    ]


def _interval(amount: Amount) -> str:
    return f"{amount.low:.4g} to {amount.high:.4g}"


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
