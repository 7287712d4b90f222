"""What a whole record of a decision has: files of runs may be spoilt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import LARGEST

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


def is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record has all that is told of a decision, each number finite."""
    try:
        _Decision.model_validate(record)
    except ValidationError:
        return False
    return True
