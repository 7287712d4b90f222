"""What the critics of a policy version think an action is worth."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlflow_rlsched.policy.action import GPU_DELTAS, Action
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.versions import VersionNotFoundError, Versions

_KEPT = 8


def q_values(
    version: str, inputs: list[float] | None, actions: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """The lower estimate of both critics for each action; none where it cannot be told.

    Args:
        version: Version of the policy.
        inputs: What its networks saw, or None.
        actions: Actions by name, as decisions record them.
    """
    found = _read(version)
    if found is None or inputs is None:
        return {}
    try:
        rows = np.array([[*inputs, *_encoded(action)] for action in actions.values()])
        estimates = np.minimum(*(_critic(found, which, rows) for which in (0, 1)))
    except (KeyError, ValueError):  # a version without critics, or of other inputs
        return {}
    return dict(zip(actions, estimates.tolist(), strict=True))


@functools.lru_cache(_KEPT)
def _read(version: str) -> Version | None:
    for name in (version, "shipped"):
        with contextlib.suppress(VersionNotFoundError, PolicyFileError, OSError):
            found = Versions().find(name)
            if found.name == version:
                return found
    return None


def _encoded(action: Mapping[str, Any]) -> list[float]:
    """The devices one-hot, then the factors: as the critics saw actions in training."""
    done = Action(action["gpu_delta"], action["batch_factor"], action["lr_factor"])
    return [float(delta == done.gpu_delta) for delta in GPU_DELTAS] + list(done.encoded()[1:])


def _critic(version: Version, which: int, rows: Any) -> Any:
    out = rows
    for layer in (0, 2, 4):
        weight, bias = (
            version.arrays[f"critics.bodies.{which}.{layer}.{part}"] for part in ("weight", "bias")
        )
        out = out @ weight.T + bias
        if layer != 4:
            out = np.maximum(out, 0)
    return out[:, 0]
