from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS, Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import (
    ENCODED,
    INPUTS,
    LAST_ACTION,
    WEIGHTS_AT,
    Advice,
    action_of,
    chosen,
    encode,
    inputs_of,
)
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.state import build_state
from tests.policy.builders import interval

FACTOR = st.floats(FACTOR_MIN, FACTOR_MAX)


@given(st.sampled_from(GPU_DELTAS), FACTOR, FACTOR)
def test_an_action_comes_back_as_it_was(delta: int, batch: float, rate: float) -> None:
    encoded = encode(np.array([delta]), np.array([batch]), np.array([rate]))
    assert encoded.shape == (1, ENCODED)
    assert np.abs(encoded).max() <= 1
    found = action_of(encoded[0])
    assert found.gpu_delta == delta
    assert (found.batch_factor, found.lr_factor) == pytest.approx((batch, rate), abs=1e-6)


def test_the_inputs_stand_in_their_order() -> None:
    state = build_state(History(action=Action(2, 1.1, 0.9)), interval(), Limits(batch_initial=64))
    weights = Weights(alpha=1.5, beta=0.25, gamma=3, smoothness=0.2)
    found = inputs_of(state, weights, Advice(-1, 1.2, math.e - 1, 0.07))
    assert found.shape == (len(INPUTS),)
    assert found[:23] == pytest.approx(state.vector)
    assert found[WEIGHTS_AT].tolist() == pytest.approx([1.5, 0.25, 3, 0.2])
    assert found[-4:].tolist() == pytest.approx([-0.5, 1, 1, 0.07])
    assert found[list(LAST_ACTION)] == pytest.approx(Action(2, 1.1, 0.9).encoded())


@pytest.mark.parametrize("gain", [-5.0, -1.0, 0.0, 1e30, math.inf])
def test_advice_is_bounded(gain: float) -> None:
    assert all(-1 <= number <= 1 for number in Advice(2, 0.8, gain, 50.0).encoded())


@pytest.mark.parametrize(
    ("ahead", "delta"), [(math.log(1.4), 0), (math.log(1.6), 1), (0.0, 0), (-1.0, 0)]
)
def test_the_devices_stay_unless_a_change_is_clearly_likelier(ahead: float, delta: int) -> None:
    outputs = np.zeros((1, ENCODED))
    outputs[0, :5] = [-1, -1, 0, ahead, -1]
    outputs[0, 5:] = [0.5, -0.25]
    found = action_of(chosen(outputs)[0])
    assert (found.gpu_delta, found.batch_factor, found.lr_factor) == pytest.approx(
        (delta, 1.1, 0.95)
    )
