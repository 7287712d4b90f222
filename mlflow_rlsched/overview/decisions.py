"""Decisions in words: records of ``decision_log``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mlflow_rlsched import decision_log
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import LARGEST

Record = Mapping[str, Any]


_Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
_Seconds = Annotated[float, Field(ge=0, le=1e11)]  # dates up to the year 5000
_Count = Annotated[int, Field(ge=0)]


class _Finite(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, strict=True)


class _Setting(_Finite):
    gpus: _Count
    batch_size: _Count | None
    lr_scale: _Number


class _Action(_Finite):
    gpu_delta: int
    batch_factor: _Number
    lr_factor: _Number


class _Proposal(_Finite):
    action: _Action
    reason: str


class _Alternative(_Finite):
    version: str
    action: _Action | None
    reason: str


class _Known(_Finite):
    value: _Number
    normalised: _Number
    missing: bool


class _Reward(_Finite):
    throughput: _Number
    cost: _Number
    progress: _Number
    smoothness: _Number
    penalty: _Number
    total: _Number


class _Scales(_Finite):
    total_s: _Number


class _Terms(_Finite):
    progress: _Number
    duration_s: _Seconds
    scales: _Scales


class _Training(_Finite):
    learning_rate: _Number | None = None


def _history(value: dict[str, Any]) -> dict[str, Any]:
    _Measured.model_validate(value)
    History.from_json(value)
    return value


class _Measured(_Finite):
    samples: _Number | None
    progress: _Number | None
    throughput: _Number | None
    throughput_noise: _Number | None
    memory_total: _Number | None


class _Decision(_Finite):
    number: int
    attempt: int
    time: _Seconds
    elapsed_s: _Seconds
    policy: str
    version: str
    reason: str
    state: dict[str, _Known]
    before: _Setting
    setting: _Setting
    proposal: _Proposal
    action: _Action
    vetoes: list[str]
    reward: _Reward
    terms: _Terms
    training: _Training
    history: Annotated[dict[str, Any], AfterValidator(_history)]
    inputs: list[_Number] | None = None
    alternatives: dict[str, _Alternative] = {}


def is_whole(record: Record) -> bool:
    """Whether a record has all that is told of a decision, each number finite."""
    try:
        _Decision.model_validate(record)
    except ValidationError:
        return False
    return True


def read(run_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """The decisions on a run, oldest first, and how many lines are torn or no whole decision.

    There are none where there is no file, or another user's.
    """
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
