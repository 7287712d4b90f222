"""Ways to ask for a configuration, or for what it is refused with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.config import ConfigError, RunConfig, find_knobs, resolve

NOTHING: dict[str, str] = {"XDG_CONFIG_HOME": "/nonexistent"}


def error(config: Mapping[Any, Any], project: Path | None = None, /, **variables: str) -> str:
    """What a configuration is refused with."""
    with pytest.raises(ConfigError) as caught:
        resolve(config, project, {**NOTHING, **variables})
    text = str(caught.value)
    assert_for_people(text)
    return text


def assert_for_people(text: str) -> None:
    lines = text.split("\n")
    assert lines == text.splitlines(), text
    assert all(line and len(line) < 700 for line in lines), text
    assert "pydantic" not in text.lower(), text
    assert "https://" not in text, text


def accept(
    config: Mapping[Any, Any], project: Path | None = None, /, **variables: str
) -> RunConfig:
    return resolve(config, project, {**NOTHING, **variables})


def project_file(folder: Path, text: str) -> Path:
    (folder / "rlsched.toml").write_text(text)
    return folder


def user_file(folder: Path, text: str) -> str:
    """Write the user's file; the value of XDG_CONFIG_HOME that makes it found."""
    (folder / "rlsched").mkdir()
    (folder / "rlsched" / "config.toml").write_text(text)
    return str(folder)


def knobs(
    parameters: Mapping[str, Any], given: Mapping[str, Any] | None = None, **config: Any
) -> tuple[str | None, int | None, str | None]:
    found = find_knobs(accept(config), parameters, given or {})
    return found.batch_size.param, found.initial_batch_size, found.learning_rate.param


def knob_error(
    parameters: Mapping[str, Any], given: Mapping[str, Any] | None = None, **config: Any
) -> str:
    with pytest.raises(ConfigError) as caught:
        find_knobs(accept(config), parameters, given or {})
    assert_for_people(str(caught.value))
    return str(caught.value)
