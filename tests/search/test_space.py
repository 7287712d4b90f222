"""What ``-P`` means to a search."""

from __future__ import annotations

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

from mlflow_rlsched.search.space import SpaceError, parse


@pytest.mark.parametrize(
    ("expression", "distribution"),
    [
        ("uniform(0,1)", FloatDistribution(0, 1)),
        ("uniform( -1.5 , 1e3 )", FloatDistribution(-1.5, 1000)),
        ("loguniform(1e-4,1)", FloatDistribution(1e-4, 1, log=True)),
        ("int(16,512)", IntDistribution(16, 512)),
        ("int(16, 512, log)", IntDistribution(16, 512, log=True)),
        ("choice(a)", CategoricalDistribution(["a"])),
        ("choice(adam, 'a, b', \"c d\",)", CategoricalDistribution(["adam", "a, b", "c d", ""])),
    ],
)
def test_distributions(expression: str, distribution: Any) -> None:
    assert parse([f"x={expression}"]).searched == {"x": distribution}


@pytest.mark.parametrize("text", ["3", "", "a=b", "f(x)", "relu(1", "(1,2)", "uniform"])
def test_anything_else_is_fixed(text: str) -> None:
    assert parse(["lr=uniform(0,1)", f"x={text}"]).fixed == {"x": text}


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        (["lr"], "must be NAME=VALUE"),
        (["=uniform(0,1)"], "must be NAME=VALUE"),
        (["lr=0.1"], "nothing is searched"),
        ([], "nothing is searched"),
        (["lr=uniform(0,1)", "lr=3"], "-P lr is given twice"),
        (["lr=unifrom(0,1)"], "did you mean uniform"),
        (["lr=uniform(0,1"], r"must be uniform\(a,b\)"),
        (["lr=loguniform[1e-4,1]"], r"must be loguniform\(a,b\)"),
        (["lr=uniform(0)"], r"must be uniform\(a,b\)"),
        (["lr=int(1,2,3)"], r"must be int\(a,b\) or int\(a,b,log\)"),
        (["lr=uniform(1,0)"], "goes from 1 to 0"),
        (["lr=uniform(a,b)"], "'a' is no number"),
        (["lr=uniform(0,inf)"], "'inf' is no number"),
        (["lr=loguniform(0,1)"], "must begin above 0"),
        (["lr=int(1.5,3)"], "no whole number"),
        (["lr=choice()"], "needs at least one value"),
        (["lr=choice(0.1,1e-1)"], "'1e-1' twice"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(assignments: list[str], why: str) -> None:
    with pytest.raises(SpaceError, match=why):
        parse(assignments)


@given(st.text(max_size=30))
def test_any_expression_is_something_or_a_sentence(text: str) -> None:
    for form in (text, f"choice({text})", f"int({text})", f"uniform({text})"):
        try:
            found = parse(["a=uniform(0,1)", f"x={form}"])
        except SpaceError:
            continue
        assert "x" in found.fixed or "x" in found.searched


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_bounds_come_back_as_they_were(low: float, high: float) -> None:
    if low < high:
        found = parse([f"x=uniform({low!r},{high!r})"]).searched["x"]
        assert (found.low, found.high) == (low, high)
