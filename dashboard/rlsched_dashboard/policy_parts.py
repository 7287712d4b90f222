"""Parts of the page of policies: versions, history, worth, what there is to learn from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.words import short
from rlsched_dashboard import charts, components, formats, policy_charts, tables
from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.policies import RUNS, Evaluation
from rlsched_dashboard.sources.replay import Seen

KEYS_SHOWN = 20
"""Key transitions in the table, the newest."""


def figures(about: Mapping[str, Any], seen: Sequence[Seen], zone: str) -> Component:
    """The strip of key figures; ``about`` is of ``Policies.overview``."""
    history = about["history"]
    last = history[-1] if history else None
    learnable = sum(each.learnable for each in seen)
    keys = sum(each.key for each in seen)
    return components.strip(
        [
            components.figure(
                "Champion",
                about["champion"] or formats.MISSING,
                f"since {formats.when(last['time'], zone)}" if last else "comes with the package",
            ),
            components.figure("Versions", str(len(about["versions"])), "the shipped one included"),
            components.figure(
                "Promotions",
                str(sum(each["change"] == "promotion" for each in history)),
                f"{sum(each['change'] == 'rollback' for each in history)} taken back",
            ),
            components.figure(
                "To learn from", f"{learnable:,}", f"of {len(seen):,} transitions that are kept"
            ),
            components.figure(
                "Key transitions",
                f"{keys:,}",
                f"{100 * keys / len(seen):.1f} % of them"
                if seen
                else "out of memory, restarts, divergence",
            ),
        ]
    )


def version_columns(zone: str) -> list[tables.Column]:
    """Columns of the table of versions."""
    return [
        tables.text("name", "Version", width=140),
        tables.text("what", "Is", width=150),
        tables.when("written_at", "Written", zone),
        tables.text("origin", "Comes from", minWidth=220, flex=3, tooltipField="origin"),
        tables.text("trouble", "Trouble", minWidth=120, flex=2, tooltipField="trouble"),
    ]


def version_rows(context: Context, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of versions."""
    return [
        {
            "name": row["name"],
            "what": ", ".join(kind for kind in ("champion", "shipped") if row[kind]),
            "written_at": row["written_at"],
            "origin": "" if row["trouble"] else _origin(context, row),
            "trouble": row["trouble"],
        }
        for row in about["versions"]
    ]


def _origin(context: Context, row: Mapping[str, Any]) -> str:
    card = context.policies.version("shipped" if row["shipped"] else row["name"]).card
    continued = card.get("continued")
    if isinstance(continued, dict):
        return f"learned from {continued.get('decisions')} decisions, after {continued.get('from')}"
    return f"trained {card.get('trained', 'elsewhere')}"


def history_columns(zone: str) -> list[tables.Column]:
    """Columns of the table of promotions and rollbacks."""
    return [
        tables.when("time", "When", zone),
        tables.text("change", "What", width=110),
        tables.text("champion", "Champion since", width=150),
        tables.text("reason", "Why", minWidth=260, flex=5, wrapText=True, autoHeight=True),
    ]


def history_rows(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its rows, the newest first."""
    rows = [
        {
            "number": number,
            "time": each["time"],
            "change": each["change"],
            "champion": each["champion"],
            "reason": each["reason"] or "nobody said",
        }
        for number, each in enumerate(about["history"])
    ]
    return rows[::-1]


def worth(context: Context, version: Version, is_shipped: bool) -> list[Component]:
    """What a version is worth, or what to do to learn that."""
    found = context.policies.evaluation(version)
    busy = context.policies.is_evaluating()
    argument = "shipped" if is_shipped else version.name
    command = f"rlsched policy evaluate {argument}"
    if isinstance(found, Evaluation):
        card = charts.chart_card(
            "policy-evaluation",
            f"Version {version.name} beside the baselines",
            policy_charts.evaluation(found),
            f"mean and 95 % interval, {found.basis}: all simulated",
        )
        return [card, components.card("The same in figures", _against(found))]
    if isinstance(found, str):
        return [components.notice("The evaluation failed", found, command, kind="error")]
    if busy == version.name:
        text = f"It plays {RUNS} simulated runs under each policy; the result appears here."
        return [components.notice("The evaluation goes on", text)]
    text = f"Nobody has played version {version.name} beside the baselines yet."
    parts = [components.notice("Not evaluated", text, command)]
    if not context.settings.read_only and busy is None:
        label = f"Evaluate on {RUNS} simulated runs"
        parts.append(dmc.Button(label, id={"type": "policy-evaluate", "name": argument}, size="xs"))
    return parts


def _against(found: Evaluation) -> Component:
    rows = [
        (
            each.baseline,
            f"{each.time:.2f} ({each.low:.2f} to {each.high:.2f})".replace(
                " ", "\N{NO-BREAK SPACE}"
            ),
            f"{each.geometric:.2f}",
            f"{each.device_hours:.2f}",
            formats.percent(each.reached),
        )
        for each in found.against
    ]
    headings = ("Over", "Time", "Geometric mean", "Device-hours", "Got there")
    return components.table(headings, rows, "Ratios to each baseline, below 1 is better")


def card(version: Version) -> Component:
    """A version's model card."""
    rows = [
        ("sets", ", ".join(sorted(version.heads)) or "nothing"),
        ("may be missing", f"{len(version.optional)} of the state's fields"),
        *((key, _text(value)) for key, value in version.card.items() if key != "figures"),
    ]
    return components.table(("", ""), rows, "Model card")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def key_columns() -> list[tables.Column]:
    """Columns of the table of key transitions."""
    return [
        tables.link("decision", "Decision", "href", width=150),
        tables.text("policy", "Policy", width=100),
        tables.text("why", "Why", minWidth=180, flex=2),
        tables.number("reward", "Reward", width=100),
    ]


def key_rows(context: Context, seen: Iterable[Seen]) -> list[dict[str, Any]]:
    """Its rows, the newest first."""
    keys = [each for each in seen if each.key][-KEYS_SHOWN:]
    return [
        {
            "key": f"{each.run_id} {each.decision}",
            "decision": f"{short(each.run_id)} · {each.decision}",
            "href": context.href(f"/runs/{each.run_id}", decision=str(each.decision)),
            "policy": each.policy,
            "why": each.why,
            "reward": each.reward,
        }
        for each in keys[::-1]
    ]


def replay(context: Context, seen: Sequence[Seen], version: Version) -> list[Component]:
    """What there is to learn from."""
    heading = dmc.Title("What there is to learn from", order=2, size="h4", mb="sm")
    if not seen:
        text = "Transitions are kept as soon as runs have decisions:"
        return [
            heading,
            components.notice("No transition yet", text, "mlflow run . --backend rlsched"),
        ]
    ordinary, key = context.replay.priorities(version)
    drawn = [
        charts.chart_card(
            "policy-transitions",
            "Transitions",
            policy_charts.replay(seen),
            "by the policy that decided; key ones are drawn three times as often",
        )
    ]
    if len(ordinary) + len(key):
        drawn.append(
            charts.chart_card(
                "policy-priorities",
                "Priorities",
                policy_charts.priorities(ordinary, key),
                f"as the critics of version {version.name} judge the newest"
                f" {len(ordinary) + len(key):,}, one step ahead",
            )
        )
    rows = key_rows(context, seen)
    grid = tables.grid("policy-keys", key_columns(), rows, "key", "Key transitions", filters=False)
    empty = dmc.Text("None yet: nothing ran out of memory, restarted or diverged.", size="sm")
    drawn.append(
        components.card("Key transitions", grid if rows else empty, note="the newest first")
    )
    return [heading, html.Div(drawn, className="charts")]
