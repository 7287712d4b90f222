from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.policy.action import Action, Setting, apply, batch_rule, resize


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("sgd", 4.0), ("adam", 2.0), ("shampoo", 2.0), (None, 2.0)]
)
def test_the_batch_rule_is_linear_for_sgd_and_the_square_root_else(
    optimizer: str | None, factor: float
) -> None:
    assert batch_rule(256, 64, optimizer) == pytest.approx(factor)


def test_without_a_batch_size_the_rule_changes_nothing() -> None:
    assert batch_rule(None, 64, "sgd") == 1
    assert batch_rule(64, None, "sgd") == 1


@pytest.mark.parametrize(
    ("batch", "factor", "after"),
    [
        (8, 1.2, 10),
        (1, 1.2, 2),
        (2, 0.8, 1),
        (1, 0.8, 1),
        (64, 1.0, 64),
        (3, 1.01, 4),
        (4, 0.99, 3),
    ],
)
def test_a_batch_moves_by_whole_samples_and_is_never_stuck(
    batch: int, factor: float, after: int
) -> None:
    assert apply(Action(batch_factor=factor), Setting(1, batch), batch, "sgd").batch_size == after


def test_the_learning_rate_scale_is_the_batch_rule_times_the_policys_factors() -> None:
    setting = apply(Action(batch_factor=1.25, lr_factor=0.8), Setting(1, 64), 64, "sgd")
    assert setting.batch_size == 77  # clipped to 1.2
    assert setting.lr_factor == 0.8
    assert setting.lr_scale == pytest.approx(77 / 64 * 0.8)


def test_the_scale_is_the_same_however_often_it_is_computed() -> None:
    once = resize(Setting(1, 64, lr_factor=0.8), 128, 64, "adam")
    again = once
    for _ in range(3):
        again = resize(again, again.batch_size, 64, "adam")
    assert again == once
    assert once.lr_scale == pytest.approx(0.8 * math.sqrt(2))


def test_there_and_back_is_where_it_began() -> None:
    smaller = resize(Setting(1, 64), 54, 64, "sgd")
    assert resize(smaller, 64, 64, "sgd") == Setting(1, 64)


def test_what_is_out_of_range_is_clipped_and_what_is_not_finite_changes_nothing() -> None:
    assert Action(7, 3.0, 0.1).clipped() == Action(2, 1.2, 0.8)
    assert Action(-7, math.nan, math.inf).clipped() == Action(-2, 1.0, 1.0)


def test_the_encoding_maps_each_range_to_minus_one_to_one() -> None:
    assert Action(2, 1.2, 0.8).encoded() == pytest.approx((1, 1, -1))
    assert Action(-1, 1.1, 1.0).encoded() == pytest.approx((-0.5, 0.5, 0))


@given(st.integers(-9, 9), st.floats(), st.floats(), st.integers(1, 2**31 - 1))
def test_no_action_leads_to_an_impossible_setting(
    delta: int, batch_factor: float, lr_factor: float, batch: int
) -> None:
    setting = apply(Action(delta, batch_factor, lr_factor), Setting(1, batch), 64, "sgd")
    assert setting.gpus >= 0
    assert setting.batch_size is not None
    assert setting.batch_size >= 1
    assert 0 < setting.lr_scale < math.inf
