"""Decisions in words: records of ``decision_log``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_rlsched import decision_log

Record = Mapping[str, Any]


def read(run_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """The decisions on a run, oldest first, and how many lines are torn or no whole decision.

    There are none where there is no file, or another user's.
    """
    from mlflow_rlsched.overview.whole import is_whole  # pydantic takes long to load

    lines = list(decision_log.lines(run_dir))
    whole = [record for record in lines if record is not None and is_whole(record)]
    return whole, len(lines) - len(whole)


def spoilt_text(count: int) -> str:
    """That so many lines are no decisions, in a sentence."""
    lines = "1 line" if count == 1 else f"{count} lines"
    return f"{lines} of {decision_log.NAME} cannot be read, and what was decided there is left out"


def changed(record: Record) -> bool:
    """Whether a decision changed the setting."""
    return bool(record["setting"] != record["before"])


def change(record: Record) -> str:
    """What a decision changed, in a few words."""
    before, after = record["before"], record["setting"]
    parts = []
    if after["gpus"] != before["gpus"]:
        parts.append(f"devices {before['gpus']} → {after['gpus']}")
    if after["batch_size"] != before["batch_size"]:
        parts.append(f"batch {batch_text(before)} → {batch_text(after)}")
    if after["lr_scale"] != before["lr_scale"]:
        parts.append(f"learning rate {rate_text(record, before)} → {rate_text(record, after)}")
    return ", ".join(parts)


def action_text(action: Record) -> str:
    """An action in a few words."""
    wanted = []
    if action["gpu_delta"]:
        wanted.append(f"{action['gpu_delta']:+d} devices")
    if action["batch_factor"] != 1:
        wanted.append(f"batch x {action['batch_factor']:.3g}")
    if action["lr_factor"] != 1:
        wanted.append(f"learning rate x {action['lr_factor']:.3g}")
    return ", ".join(wanted) or "no change"


def batch_text(setting: Record) -> str:
    """The batch size of a setting."""
    return "?" if setting["batch_size"] is None else str(setting["batch_size"])


def rate_text(record: Record, setting: Record) -> str:
    """The learning rate of a setting, or by what it is scaled where the rate is not known."""
    base = record["training"].get("learning_rate")
    scale = setting["lr_scale"]
    return f"x {scale:.4g}" if base is None else f"{base * scale:.4g}"
