"""Parameters of MLflow as values of distributions."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("optuna")
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from mlflow_rlsched.search.values import UnusableError, converted, same, unquoted

RATE = FloatDistribution(1e-4, 1.0, log=True)
BATCH = IntDistribution(16, 512, log=True)


@pytest.mark.parametrize(
    ("text", "distribution", "value"),
    [
        ("1e-3", RATE, 0.001),
        ("0.001", RATE, 0.001),
        ("'0.001'", RATE, 0.001),
        ("1", RATE, 1.0),
        ("64", BATCH, 64),
        ("64.0", BATCH, 64),
        ("6.4e1", BATCH, 64),
        ("20", IntDistribution(0, 100, step=10), 20),
        ("0.3", FloatDistribution(0.0, 1.0, step=0.1), 0.3),
        ("'a b'", CategoricalDistribution(["a b", "c"]), "a b"),
        ("a b", CategoricalDistribution(["a b", "c"]), "a b"),
        ("0.001", CategoricalDistribution(["1e-3", "1e-2"]), "1e-3"),
        ("1.0", CategoricalDistribution([1, 2]), 1),
        ("False", CategoricalDistribution([True, False]), False),
        ("None", CategoricalDistribution([None, "x"]), None),
        ("''", CategoricalDistribution(["", "x"]), ""),
    ],
)
def test_values_that_are_written_differently(text: str, distribution: Any, value: Any) -> None:
    found = converted(text, distribution, "p")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "distribution", "why"),
    [
        ("fast", RATE, "p is no number"),
        ("nan", RATE, "p is no number"),
        ("inf", RATE, "p is no number"),
        ("1" * 400, BATCH, "p is outside 16 to 512"),
        ("2", RATE, "p is outside 0.0001 to 1"),
        ("64.5", BATCH, "p is no whole number"),
        ("25", IntDistribution(0, 100, step=10), "p is between the steps of 10"),
        ("1", CategoricalDistribution([True, False]), "p is none of the choices"),
        ("d", CategoricalDistribution(["a", "c"]), "p is none of the choices"),
        ("a" * 6000, CategoricalDistribution(["a" * 7000]), "p was cut at 6,000 characters"),
    ],
)
def test_values_that_no_trial_can_have(text: str, distribution: Any, why: str) -> None:
    with pytest.raises(UnusableError, match=f"^{why}$"):
        converted(text, distribution, "p")


@given(st.floats(1e-4, 1.0))
def test_every_rate_comes_back_as_it_was(value: float) -> None:
    for text in (repr(value), shlex.quote(repr(value)), f"{value:.17e}"):
        assert converted(text, RATE, "lr") == value


@given(st.integers(16, 512))
def test_every_batch_size_comes_back_as_it_was(value: int) -> None:
    for text in (str(value), f"{value}.0", f"{value:e}"):
        assert converted(text, BATCH, "bs") == value


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5, unique=True), st.data())
def test_every_choice_is_found_as_mlflow_quotes_it(choices: list[str], data: Any) -> None:
    choice = data.draw(st.sampled_from(choices))
    found = converted(shlex.quote(choice), CategoricalDistribution(choices), "p")
    assert same(found, choice)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_reason(text: str) -> None:
    for distribution in (RATE, BATCH, CategoricalDistribution(["a", "b"])):
        try:
            value = converted(text, distribution, "p")
        except UnusableError:
            continue
        assert distribution._contains(distribution.to_internal_repr(value))


@given(st.text(max_size=40))
def test_quotes_come_off_as_a_shell_takes_them(text: str) -> None:
    assert unquoted(shlex.quote(text)) in (text, unquoted(text))
