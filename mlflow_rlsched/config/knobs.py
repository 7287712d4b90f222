"""Which parameters of an entry point are knobs, and with which values they start."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_rlsched.config.errors import ConfigError, near, shown
from mlflow_rlsched.config.keys import MAX_BATCH, BatchSize, LearningRate, RunConfig


@dataclass(frozen=True)
class _Kind:
    """A kind of knob that is a parameter.

    Attributes:
        key: Its section of the configuration.
        names: Names by which it is found, in lower case with ``_`` for ``-``.
        number: Type of its values.
        largest: Largest value; all are above 0.
        allowed: The same in words.
    """

    key: str
    names: frozenset[str]
    number: type[int] | type[float]
    largest: float
    allowed: str


_BATCH_SIZE = _Kind(
    "batch_size",
    frozenset({"batch_size", "batchsize", "bs", "train_batch_size", "per_device_train_batch_size"}),
    int,
    MAX_BATCH,
    f"a whole number from 1 to {MAX_BATCH}",
)
_LEARNING_RATE = _Kind(
    "learning_rate",
    frozenset({"learning_rate", "lr"}),
    float,
    sys.float_info.max,
    "a finite number above 0",
)


def find_knobs(
    config: RunConfig, parameters: Mapping[str, Any], given: Mapping[str, Any]
) -> RunConfig:
    """Fill in which parameters are the batch size and the learning rate.

    A knob is off (its ``param`` is None) when no parameter has a fitting name, when the one that
    has holds no number, or when the configuration says ``"param": null``.

    Args:
        config: The resolved configuration.
        parameters: Default value by name of the parameters that the entry point declares; None
            for a required one.
        given: The user's values (``-P``), of declared parameters and others.

    Returns:
        The configuration with ``batch_size.param``, ``learning_rate.param`` and
        ``initial_batch_size`` filled in.

    Raises:
        ConfigError: Two parameters have fitting names, the configured one does not exist, or
            its initial value is no such number or is outside the bounds.
    """
    values = {**parameters, **given}
    batch_name, batch_size = _find(_BATCH_SIZE, config.batch_size, values)
    rate_name, _ = _find(_LEARNING_RATE, config.learning_rate, values)
    return config.model_copy(
        update={
            "batch_size": config.batch_size.model_copy(update={"param": batch_name}),
            "learning_rate": config.learning_rate.model_copy(update={"param": rate_name}),
            "initial_batch_size": batch_size,
        }
    )


def _find(
    kind: _Kind, knob: BatchSize | LearningRate, values: Mapping[str, Any]
) -> tuple[str | None, float | None]:
    """Name and initial value of the parameter that is this knob; Nones when it is off."""
    name = _name(kind, knob, values)
    if name is None:
        return None, None
    said = f"parameter {shown(name)} is {shown(values[name])}"
    try:
        value = kind.number(str(values[name]))
    except ValueError:
        if knob.param is None:  # words in a parameter that only happens to have a fitting name
            return None, None
        raise ConfigError(f"{said}, {kind.key} must be {kind.allowed}") from None
    if not 0 < value <= kind.largest:
        off = json.dumps({kind.key: {"param": None}})
        raise ConfigError(
            f"{said}, {kind.key} must be {kind.allowed}; if it is something else, write {off}"
        )
    if knob.min is not None and value < knob.min:
        raise ConfigError(f"{said}, below {kind.key}.min {knob.min}")
    if knob.max is not None and value > knob.max:
        raise ConfigError(f"{said}, above {kind.key}.max {knob.max}")
    return name, value


def _name(kind: _Kind, knob: BatchSize | LearningRate, values: Mapping[str, Any]) -> str | None:
    """The parameter that is configured, or else the one with a fitting name."""
    if knob.param in values:
        return knob.param
    if knob.param is not None:
        has = ", ".join(map(shown, values)) or "none at all"
        raise ConfigError(
            f"{kind.key}.param is {shown(knob.param)}, but the entry point has no such parameter"
            + (near(knob.param, values) or f"; it has {has}")
        )
    if "param" in knob.model_fields_set:
        return None
    fitting = [name for name in values if name.lower().replace("-", "_") in kind.names]
    if len(fitting) > 1:
        choice = json.dumps({kind.key: {"param": fitting[0]}})
        raise ConfigError(
            f"parameters {' and '.join(map(shown, fitting))} all look like the {kind.key}: say"
            f" which one it is with {choice}, or null for none"
        )
    return fitting[0] if fitting else None
