"""Policy versions as a training would leave them, without one: small, and of known actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlflow_rlsched.policy.checkpoint import LAYERS, Version
from mlflow_rlsched.policy.inputs import ENCODED, HIDDEN, INPUTS, STATE


def trained(lr_factor: float, card: Mapping[str, Any] | None = None, seen: float = 9.0) -> Version:
    """A version that always changes the learning rate by this factor (0.8 to 1.2, exclusive).

    Args:
        lr_factor: The factor.
        card: Its model card.
        seen: Largest input, in absolute value, that counts as seen in the training.
    """
    some = np.ones(len(INPUTS), np.float32)
    arrays = {
        "normaliser.mean": 0 * some,
        "normaliser.var": some,
        "normaliser.low": -seen * some,
        "normaliser.high": seen * some,
    }
    widths = [len(INPUTS), *HIDDEN, ENCODED]
    for layer, before, after in zip(LAYERS, widths, widths[1:], strict=False):
        arrays[f"actor.body.{layer}.weight"] = np.zeros((after, before), np.float32)
        arrays[f"actor.body.{layer}.bias"] = np.zeros(after, np.float32)
    arrays["actor.body.4.bias"][-1] = math.atanh((lr_factor - 1) / 0.2)
    return Version(arrays, card or {}, STATE)
