"""Any input is taken, or refused in a line for people."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_rlsched.config import ConfigError, RunConfig, Settings, find_knobs, resolve
from tests.config.asking import (
    NOTHING,
    assert_for_people,
)

SECTIONS = ("gpus", "batch_size", "learning_rate", "objective", "reward", "requires")
NAMES = st.one_of(
    st.sampled_from([*Settings.model_fields, "initial", "min", "max", "param", "mode", "alpha"]),
    st.text(max_size=8),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "fixed", "min", "share", "local", 10**400, "~", "x/y", "\ud800"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.dictionaries(NAMES, VALUES, max_size=5)


VARIABLES = st.dictionaries(
    st.sampled_from(list(Settings.model_fields)),
    st.text(max_size=6) | VALUES.map(json.dumps),
    max_size=3,
)


@settings(max_examples=400)
@given(backend=CONFIGS, variables=VARIABLES)
def test_any_configuration_is_taken_or_refused_in_one_line(
    backend: dict[str, Any], variables: dict[str, str]
) -> None:
    environ = {f"RLSCHED_CFG_{key.upper()}": text for key, text in variables.items()}
    try:
        config = resolve(backend, None, {**NOTHING, **environ})
    except ConfigError as refused:
        assert_for_people(str(refused))
    else:
        assert RunConfig.model_validate(config.model_dump(mode="json")) == config
        json.dumps(config.model_dump(mode="json")).encode()


@settings(max_examples=300)
@given(section=st.sampled_from(SECTIONS), values=VALUES)
def test_any_section_is_taken_or_refused_in_one_line(section: str, values: Any) -> None:
    try:
        resolve({section: values}, None, NOTHING)
    except ConfigError as refused:
        assert_for_people(str(refused))


@settings(max_examples=300)
@given(
    parameters=st.dictionaries(st.sampled_from(["bs", "batch-size", "lr", "x\n"]), SCALARS),
    given_=st.dictionaries(st.sampled_from(["bs", "lr", "eta"]), st.text(max_size=5)),
    param=st.sampled_from([None, "bs", "eta", "x"]),
)
def test_any_parameters_are_taken_or_refused_in_one_line(
    parameters: dict[str, Any], given_: dict[str, str], param: str | None
) -> None:
    config = resolve({"learning_rate": {"param": param}} if param else {}, None, NOTHING)
    try:
        found = find_knobs(config, parameters, given_)
    except ConfigError as refused:
        assert_for_people(str(refused))
    else:
        assert (found.initial_batch_size is None) == (found.batch_size.param is None)
