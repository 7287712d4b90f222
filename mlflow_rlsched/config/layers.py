"""Where a configuration comes from, and how its layers are merged.

The layers are merged key by key, and the first that says something wins: the variable
``RLSCHED_POLICY`` (for ``policy`` alone), the backend configuration, the variables
``RLSCHED_CFG_<KEY>``, the project's ``rlsched.toml``, the user's
``~/.config/rlsched/config.toml``. A ``null`` takes a key back to its default.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mlflow_rlsched.config.errors import ConfigError, Layer, explain, origin, section, shown
from mlflow_rlsched.config.keys import MAX_GPUS, RunConfig, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT_FILE = "rlsched.toml"

_VARIABLE = "RLSCHED_CFG_"
_VERBATIM = ("resume_run_id", "store")  # a run id of digits alone is no number
_USER_ONLY = ("store", "executor")  # where runs are kept and run is not for a project to say
_RESERVED = frozenset(  # what MLflow itself puts into the backend configuration
    {
        "ENV_MANAGER",
        "SYNCHRONOUS",
        "DOCKER_ARGS",
        "STORAGE_DIR",
        "build_image",
        "docker_auth",
        "_mlflow_local_backend_run_id",
    }
)
_AVAILABLE: Mapping[str, Sequence[Any]] = {  # the values of a key that this version can honour
    "executor": ("local",),
}


def resolve(
    backend_config: Mapping[str, Any],
    project_dir: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> RunConfig:
    """Merge and check the layers of a run's configuration.

    Args:
        backend_config: As MLflow hands it over, its own keys included; it is not changed.
        project_dir: Folder that may hold the project's ``rlsched.toml``, or None.
        environ: The environment.

    Raises:
        ConfigError: A layer cannot be read, or something in it cannot be used.
    """
    layers = []
    policy = environ.get("RLSCHED_POLICY")
    if policy:
        layers.append(Layer("variable RLSCHED_POLICY", {"policy": policy}))
    own = {key: value for key, value in backend_config.items() if key not in _RESERVED}
    layers.append(Layer("backend config", own))
    layers.extend(_variables(environ))
    if project_dir is not None:
        layers.append(_project_file(project_dir))
    layers.append(_user_file(environ))
    settings = _settings([Layer(x.where, _with_gpus_as_section(x.values)) for x in layers])
    return RunConfig.model_validate(dict(settings))


def store_url(text: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The absolute URL of the store that a command reads.

    Args:
        text: What ``--store`` said, a URL or a path; None for the one that ``resolve`` finds
            with no backend configuration.
        environ: The environment.

    Raises:
        ConfigError: A layer cannot be read, or what it says of the store cannot be used.
    """
    if text is not None:
        layers = [Layer("--store", {"store": text})]
    else:
        layers = [*_variables(environ), _user_file(environ)]
    said = [Layer(x.where, {"store": x.values["store"]}) for x in layers if "store" in x.values]
    return _settings(said).store


def _settings(layers: Sequence[Layer]) -> Settings:
    """The settings of ``layers``, highest first."""
    try:
        settings = Settings.model_validate(_merged(layers))
    except ValidationError as error:
        raise ConfigError.of(explain(error, Settings, layers)) from None
    unavailable = [
        f"{origin((key,), layers)}: {key} {shown(getattr(settings, key))} is not available in"
        f" this version; write {' or '.join(map(shown, available))}"
        for key, available in _AVAILABLE.items()
        if getattr(settings, key) not in available
    ]
    if unavailable:
        raise ConfigError.of(unavailable)
    return settings


def _merged(layers: Sequence[Layer]) -> Any:
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        for key, value in layer.values.items():
            lower = merged.get(key)
            if isinstance(lower, Mapping) and isinstance(value, Mapping):
                value = {**lower, **value}
            merged[key] = value
    return _without_nulls(
        {key: _without_nulls(value, section(Settings, key)) for key, value in merged.items()},
        Settings,
    )


def _without_nulls(values: Any, model: type[BaseModel] | None) -> Any:
    """``values`` less the keys of ``model`` that are null; ``param`` stays: there it means off."""
    if model is None or not isinstance(values, Mapping):
        return values
    known = model.model_fields.keys() - {"param"}
    return {key: value for key, value in values.items() if value is not None or key not in known}


def _with_gpus_as_section(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A plain number of GPUs as initial count, minimum and maximum, so that layers merge."""
    count = values.get("gpus")
    if type(count) is not int or not 0 <= count <= MAX_GPUS:
        return values
    return {**values, "gpus": {"initial": count, "min": count, "max": count}}


def _variables(environ: Mapping[str, str]) -> Iterator[Layer]:
    for name in sorted(environ):
        text = environ[name]
        if name.startswith(_VARIABLE) and text:
            key = name.removeprefix(_VARIABLE).lower()
            where = f"variable {name}"
            yield Layer(where, {key: _value(key, text, where)})


def _value(key: str, text: str, where: str) -> Any:
    """What a variable says: JSON, or else a plain string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith(("{", "[", '"')):
            raise ConfigError(f"{where}: not valid JSON: {error}") from None
        return text
    if key in _VERBATIM and not isinstance(value, str | None):
        return text
    return value


def _project_file(folder: Path) -> Layer:
    layer = read_toml(folder / PROJECT_FILE, PROJECT_FILE)
    for key in _USER_ONLY:
        if key in layer.values:
            raise ConfigError(
                f"{PROJECT_FILE}: {key} is not for a project to set; write it in your own"
                " ~/.config/rlsched/config.toml or in the backend config"
            )
    return layer


def _user_file(environ: Mapping[str, str]) -> Layer:
    base = Path(os.path.expanduser(environ.get("XDG_CONFIG_HOME") or "~/.config"))
    path = base / "rlsched" / "config.toml"
    return read_toml(path, str(path))


def read_toml(path: Path, where: str) -> Layer:
    """The layer in a TOML file; an empty one when there is no such file."""
    try:
        return Layer(where, tomllib.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return Layer(where, {})
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: not valid TOML: it is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
