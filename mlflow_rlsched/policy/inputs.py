"""What the networks see and say: one vector of inputs, one encoding of an action.

The inputs are the 23 numbers of the state, the reward's weights and the advice of the goodput
model, in this order. The weights are inputs, so that one policy obeys each user's own.

An action is encoded as seven numbers: a one-hot vector of the GPU delta, and the two factors mapped
to [-1, 1]. The critics see this encoding everywhere: of actions taken, of the actor's own and
of the target's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import FACTOR_MAX, GPU_DELTAS, Action
from mlflow_rlsched.policy.state import FIELDS, State

Array: TypeAlias = npt.NDArray[Any]

WEIGHTS = ("alpha", "beta", "gamma", "smoothness")
ADVICE = ("advised_gpu_delta", "advised_batch_factor", "advised_gain", "fit_error")
STATE = tuple(field.name for field in FIELDS)
INPUTS = (*STATE, *WEIGHTS, *ADVICE)
"""Names of the networks' inputs, in their order."""

LAST_ACTION = tuple(
    STATE.index(name) for name in ("last_gpu_delta", "last_batch_factor", "last_lr_factor")
)
"""Where the inputs hold the encoded action before."""

WEIGHTS_AT = slice(len(STATE), len(STATE) + len(WEIGHTS))

FACTORS = 2
ENCODED = len(GPU_DELTAS) + FACTORS
"""Numbers of an encoded action."""

HIDDEN = (256, 256)
"""Hidden units of each network."""

CLIP = 5.0
"""Standard deviations beyond which the networks see an input clipped."""

TINY = 1e-4
"""Variance that is added to each input's, so that one that never changes is no infinity."""

MARGIN = math.log(1.5)
"""How much likelier than no change a GPU delta must be, as a difference of logits."""

_HALF = FACTOR_MAX - 1


@dataclass(frozen=True)
class Advice:
    """What the goodput model proposes.

    Attributes:
        gpu_delta: Devices more or fewer, -2 to 2.
        batch_factor: Factor on the batch size, 0.8 to 1.2.
        gain: Relative gain in goodput that it predicts for both.
        error: Root mean square error of the fit, of the logarithm of the step time; 1 while
            there is nothing to fit.
    """

    gpu_delta: int = 0
    batch_factor: float = 1.0
    gain: float = 0.0
    error: float = 1.0

    def encoded(self) -> tuple[float, float, float, float]:
        """Four numbers in [-1, 1]."""
        return (
            self.gpu_delta / GPU_DELTAS[-1],
            (self.batch_factor - 1) / _HALF,
            min(max(math.log1p(max(self.gain, -0.9)), -1.0), 1.0),
            min(self.error, 1.0),
        )


def inputs_of(state: State, weights: Weights, advice: Advice) -> npt.NDArray[np.float32]:
    """The networks' inputs, in the order of ``INPUTS``."""
    told = [getattr(weights, name) for name in WEIGHTS]
    return np.array([*state.vector, *told, *advice.encoded()], np.float32)


def encode(gpu_delta: Array, batch_factor: Array, lr_factor: Array) -> npt.NDArray[np.float32]:
    """Encoded actions.

    Args:
        gpu_delta: (N,) devices more or fewer, each one of ``GPU_DELTAS``.
        batch_factor: (N,) in [0.8, 1.2].
        lr_factor: (N,) in [0.8, 1.2].

    Returns:
        (N, 7).
    """
    chosen = np.asarray(gpu_delta)[:, None] == np.array(GPU_DELTAS)
    factors = (np.stack([batch_factor, lr_factor], 1) - 1) / _HALF
    return np.hstack([chosen, np.clip(factors, -1, 1)]).astype(np.float32)


def chosen(outputs: Array) -> Array:
    """Encoded actions (N, 7) of what the actor says: (N, 7) logits and factors.

    The likeliest GPU delta, but no change unless another is clearly likelier: where two are about
    equal, noise would swing the devices to and fro, and each swing costs a restart.
    """
    logits = outputs[:, :-FACTORS]
    stay = np.zeros(len(GPU_DELTAS))
    stay[GPU_DELTAS.index(0)] = MARGIN
    deltas = (logits + stay).argmax(1)[:, None] == np.arange(len(GPU_DELTAS))
    return np.hstack([deltas, outputs[:, -FACTORS:]]).astype(np.float32)


def decode(encoded: Array) -> tuple[Array, Array, Array]:
    """GPU deltas, batch factors and learning-rate factors of (N, 7) encoded actions."""
    deltas = np.array(GPU_DELTAS)[encoded[:, :-FACTORS].argmax(1)]
    factors = 1 + _HALF * encoded[:, -FACTORS:]
    return deltas, factors[:, 0], factors[:, 1]


def action_of(encoded: Array) -> Action:
    """The action that one encoded vector (7,) stands for."""
    deltas, batch, rate = decode(encoded[None])
    return Action(int(deltas[0]), float(batch[0]), float(rate[0]))
