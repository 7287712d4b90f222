"""What the critics of a policy version think an action is worth."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version, critic_outputs
from mlflow_rlsched.policy.inputs import INPUTS, encode
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
    if found is None or inputs is None or len(inputs) != len(INPUTS):
        return {}
    values = worth(found, inputs, [Action(**action) for action in actions.values()])
    return dict(zip(actions, values, strict=False))


def worth(version: Version, inputs: Sequence[float], actions: Sequence[Action]) -> list[float]:
    """The lower estimate of both critics for each action; none where the version has no critics."""
    if not has_critics(version):
        return []
    clipped = [action.clipped() for action in actions]
    names = ("gpu_delta", "batch_factor", "lr_factor")
    encoded = encode(*(np.array([getattr(each, name) for each in clipped]) for name in names))
    seen = np.tile(np.array(inputs), (len(actions), 1))
    return [float(value) for value in critic_outputs(version.arrays, seen, encoded)]


def has_critics(version: Version) -> bool:
    """Whether a version can judge actions, not only act."""
    return "critics.bodies.1.0.weight" in version.arrays


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
