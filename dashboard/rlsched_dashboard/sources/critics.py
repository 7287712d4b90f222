"""What the critics of a policy version think an action is worth."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlflow_rlsched.policy.action import GPU_DELTAS
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version, critic_outputs
from mlflow_rlsched.policy.inputs import encode
from mlflow_rlsched.versions import VersionNotFoundError, Versions

_KEPT = 8


def q_values(
    version: str, inputs: Sequence[float] | None, actions: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """The lower estimate of both critics for each action; none where it cannot be told.

    Args:
        version: Version of the policy.
        inputs: What its networks saw, or None.
        actions: Actions by name, as decisions record them.
    """
    found = version_named(version)
    if found is None or inputs is None:
        return {}
    names = ("gpu_delta", "batch_factor", "lr_factor")
    deltas, *factors = (np.array([action[name] for action in actions.values()]) for name in names)
    encoded = encode(np.clip(deltas, GPU_DELTAS[0], GPU_DELTAS[-1]), *factors)
    seen = np.tile(np.array(inputs), (len(actions), 1))
    try:
        estimates = critic_outputs(found.arrays, seen, encoded)
    except (KeyError, ValueError):  # a version without critics, or of other inputs
        return {}
    return dict(zip(actions, estimates.tolist(), strict=True))


def version_named(version: str) -> Version | None:
    """The version of a name, the shipped one included; None where there is none to be used."""
    try:
        return _read(version)
    except (VersionNotFoundError, PolicyFileError, OSError):
        return None


@functools.lru_cache(_KEPT)
def _read(version: str) -> Version:
    with contextlib.suppress(VersionNotFoundError):
        return Versions().find(version)
    found = Versions().find("shipped")
    if found.name != version:
        raise VersionNotFoundError(version)
    return found
