"""What is wrong with a configuration, in one line for the person who wrote it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

_LONGEST_VALUE = 60


class ConfigError(ValueError):
    """A configuration that cannot be used: a line for each wrong key, its place and a remedy."""

    @classmethod
    def of(cls, problems: Sequence[str]) -> ConfigError:
        """The error for one or more problems, one a line."""
        return cls("\n".join(problems))


@dataclass(frozen=True)
class Layer:
    """Values that come from one place.

    Attributes:
        where: The place in words, as errors name it.
        values: What it says, as read.
    """

    where: str
    values: Mapping[str, Any]


def shown(value: Any) -> str:
    """A value as its writer knows it, on one line and not long."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def near(word: Any, known: Iterable[str], prefix: str = "") -> str:
    """``(did you mean ...?)`` with the known word that is nearest, or nothing."""
    matches = difflib.get_close_matches(word, known, 1) if isinstance(word, str) else []
    return f" (did you mean {prefix + matches[0]!r}?)" if matches else ""


def origin(path: Sequence[Any], layers: Sequence[Layer]) -> str | None:
    """The first of ``layers`` (highest first) that says something at ``path``, in words."""
    return next((layer.where for layer in layers if _at(layer.values, path) is not _ABSENT), None)


def section(model: type[BaseModel], key: Any) -> type[BaseModel] | None:
    """The model of the section ``key`` of ``model``, or None when it is no section."""
    field = model.model_fields.get(key)
    kind = field.annotation if field is not None else None
    return kind if isinstance(kind, type(BaseModel)) else None


def explain(
    error: ValidationError,
    model: type[BaseModel],
    layers: Sequence[Layer],
) -> list[str]:
    """Say in one line each what pydantic found wrong.

    Args:
        error: What it found.
        model: The model that refused; the ``description`` of a field completes the words
            "must be".
        layers: Where the values come from, highest first.
    """
    problems: dict[tuple[Any, ...], str] = {}
    for item in error.errors(include_url=False):
        if item["type"] in ("extra_forbidden", "invalid_key"):
            path = item["loc"]
            problem = _unknown(path, model)
        else:
            path, field = _field(item["loc"], model)
            if origin(path, layers) is None:
                continue  # a default that follows from a wrong value
            own = item["type"] == "value_error"
            problem = str(item["ctx"]["error"]) if own else _wrong(path, field, layers)
        problems.setdefault(path, f"{origin(path, layers)}: {problem}")
    return list(problems.values())


def _unknown(path: tuple[Any, ...], model: type[BaseModel]) -> str:
    *parents, key = path
    for parent in parents:
        model = section(model, parent) or model
    prefix = "".join(f"{parent}." for parent in parents)
    known = model.model_fields
    return f"unknown key {shown(prefix + key if isinstance(key, str) else key)}" + (
        near(key, known, prefix) or f"; known are {', '.join(known)}"
    )


def _field(location: tuple[Any, ...], model: type[BaseModel]) -> tuple[tuple[Any, ...], FieldInfo]:
    """The innermost key at or above an error's location: its path and its field."""
    key, *rest = location
    inner = section(model, key)
    if inner is not None and rest and rest[0] in inner.model_fields:
        return (key, rest[0]), inner.model_fields[rest[0]]
    return (key,), model.model_fields[key]


def _wrong(path: tuple[Any, ...], field: FieldInfo, layers: Sequence[Layer]) -> str:
    value = next(v for v in (_at(layer.values, path) for layer in layers) if v is not _ABSENT)
    hint = ""
    if field.description is not None:
        allowed = field.description
    elif get_origin(field.annotation) is Literal:
        words = get_args(field.annotation)
        allowed, hint = " or ".join(map(repr, words)), near(value, words)
    else:
        keys = getattr(field.annotation, "model_fields", ())
        allowed = f"an object with the keys {', '.join(keys)}"
    return f"{'.'.join(path)} is {shown(value)}, must be {allowed}{hint}"


_ABSENT = object()


def _at(values: Any, path: Sequence[Any]) -> Any:
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return _ABSENT
        values = values[part]
    return values
