"""Decisions in words: records of ``decision_log``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]


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
