"""Which parameters of an entry point are knobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.config import RunConfig, find_knobs
from tests.config.asking import (
    accept,
    knob_error,
    knobs,
    project_file,
)


@pytest.mark.parametrize(
    "name",
    [
        "batch_size",
        "batch-size",
        "batchsize",
        "bs",
        "BS",
        "train_batch_size",
        "per_device_train_batch_size",
    ],
)
def test_the_batch_size_is_found_by_its_name(name: str) -> None:
    assert knobs({name: "32", "epochs": "3"}) == (name, 32, None)


@pytest.mark.parametrize("name", ["lr", "LR", "learning_rate", "learning-rate"])
def test_the_learning_rate_is_found_by_its_name(name: str) -> None:
    assert knobs({name: 0.1, "epochs": 3}) == (None, None, name)


def test_what_the_user_gave_goes_before_the_default() -> None:
    assert knobs({"bs": 32}, {"bs": "8"}) == ("bs", 8, None)
    assert knobs({"bs": None}, {"bs": "8"}) == ("bs", 8, None)
    assert knobs({}, {"batch_size": "8", "lr": "1e-3"}) == ("batch_size", 8, "lr")


def test_a_small_batch_is_nobodys_business_without_bounds() -> None:
    assert knobs({"batch_size": "1", "lr": "100"}) == ("batch_size", 1, "lr")


@pytest.mark.parametrize("value", [None, "", "auto", "0.5", True, "32.0", [8], "9" * 5000])
def test_words_in_a_fitting_parameter_turn_the_knob_off(value: object) -> None:
    assert knobs({"batch_size": value}) == (None, None, None)


@pytest.mark.parametrize("value", [None, "", "auto", False, "1/3"])
def test_words_in_a_fitting_rate_turn_the_knob_off(value: object) -> None:
    assert knobs({"lr": value}) == (None, None, None)


def test_an_explicit_null_turns_the_knob_off(tmp_path: Path) -> None:
    off = {"batch_size": {"param": None}, "learning_rate": {"param": None}}
    assert knobs({"batch_size": "-1", "bs": "3", "lr": "0"}, **off) == (None, None, None)
    project = project_file(tmp_path, '[batch_size]\nparam = "bs"\n')
    config = find_knobs(accept(off, project), {"bs": "8"}, {})
    assert config.batch_size.param is None


def test_a_knob_that_was_found_or_is_off_stays_so() -> None:
    for parameters in ({"bs": "8", "lr": "1"}, {}):
        config = find_knobs(accept({}), parameters, {})
        restored = RunConfig.model_validate(config.model_dump(mode="json"))
        assert find_knobs(restored, {"bs": "8", "lr": "1"}, {}).batch_size == config.batch_size


def test_configured_names_go_before_fitting_ones() -> None:
    config = {"batch_size": {"param": "chunk"}, "learning_rate": {"param": "eta"}}
    parameters = {"chunk": "4", "eta": "0.5", "batch_size": "8", "bs": "9", "lr": "1"}
    assert knobs(parameters, **config) == ("chunk", 4, "eta")


@pytest.mark.parametrize(
    ("parameters", "given", "config", "message"),
    [
        (
            {"batch_size": "8", "bs": "9"},
            {},
            {},
            "parameters 'batch_size' and 'bs' all look like the batch_size: say which one it is"
            ' with {"batch_size": {"param": "batch_size"}}, or null for none',
        ),
        ({"lr": "1"}, {"learning-rate": "2"}, {}, "parameters 'lr' and 'learning-rate' all look"),
        (
            {"chunk": "8"},
            {},
            {"batch_size": {"param": "chunks"}},
            "batch_size.param is 'chunks', but the entry point has no such parameter (did you mean"
            " 'chunk'?)",
        ),
        (
            {"a": "1", "b": "2"},
            {},
            {"learning_rate": {"param": "eta"}},
            "learning_rate.param is 'eta', but the entry point has no such parameter; it has 'a',"
            " 'b'",
        ),
        ({}, {}, {"learning_rate": {"param": "eta"}}, "learning_rate.param is 'eta', but the en"),
        (
            {"bs": "auto"},
            {},
            {"batch_size": {"param": "bs"}},
            "parameter 'bs' is 'auto', batch_size must be a whole number from 1 to 2147483647",
        ),
        ({"bs": None}, {}, {"batch_size": {"param": "bs"}}, "parameter 'bs' is null, batch_size"),
        (
            {"bs": "0"},
            {},
            {},
            "parameter 'bs' is '0', batch_size must be a whole number from 1 to 2147483647; if it"
            ' is something else, write {"batch_size": {"param": null}}',
        ),
        ({"bs": "-4"}, {}, {}, "parameter 'bs' is '-4', batch_size must be a whole number from 1"),
        ({"bs": str(2**31)}, {}, {}, "parameter 'bs' is '2147483648', batch_size must be"),
        ({"lr": "0"}, {}, {}, "parameter 'lr' is '0', learning_rate must be a finite number abo"),
        ({"lr": "nan"}, {}, {}, "parameter 'lr' is 'nan', learning_rate must be a finite number"),
        ({"lr": "inf"}, {}, {}, "parameter 'lr' is 'inf', learning_rate must be a finite number"),
        ({"lr": -0.1}, {}, {}, "parameter 'lr' is -0.1, learning_rate must be a finite number"),
        (
            {"bs": "8"},
            {},
            {"batch_size": {"min": 16}},
            "parameter 'bs' is '8', below batch_size.min 16",
        ),
        (
            {"lr": "8"},
            {"lr": "9"},
            {"learning_rate": {"max": 8}},
            "parameter 'lr' is '9', above learning_rate.max 8.0",
        ),
    ],
)
def test_parameters_that_cannot_be_knobs_are_refused(
    parameters: dict[str, Any], given: dict[str, str], config: dict[str, Any], message: str
) -> None:
    assert knob_error(parameters, given, **config).startswith(message)
