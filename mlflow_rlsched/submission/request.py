"""What is asked for: the arguments of a project backend, and the command that they make."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow.exceptions import ExecutionException
from mlflow.utils.file_utils import get_local_path_or_none

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.submission.project import Project

_PYTHON = re.compile(r"python[0-9.]*(?=\s)")
_TORCHRUN = '-m mlflow_rlsched.executors.torchrun --standalone --nproc-per-node "$RLSCHED_NUM_GPUS"'
_NUMBERS: Mapping[str, type[int] | type[float]] = {"float": float, "int": int}


@dataclass(frozen=True)
class Request:
    """The arguments of a project backend's ``run``, and the run's name and further tags."""

    project_uri: str
    entry_point: str
    params: Mapping[str, Any]
    version: str | None
    backend_config: Mapping[str, Any]
    tracking_uri: str
    experiment_id: str
    run_name: str | None
    tags: Mapping[str, str] = field(default_factory=dict)

    def texts(self) -> dict[str, str]:
        """The user's parameters as texts."""
        return {str(name): str(value) for name, value in self.params.items()}

    def project_env(self) -> dict[str, Any]:
        """How MLflow shall prepare the project: its reserved keys, less the secret one."""
        names = ("ENV_MANAGER", "DOCKER_ARGS", "STORAGE_DIR", "build_image")
        values = {name: self.backend_config.get(name) for name in names}
        if values["STORAGE_DIR"] is not None:
            values["STORAGE_DIR"] = os.path.abspath(values["STORAGE_DIR"])
        return values


class Parameters:
    """The parameters of an entry point: the user's values, and defaults for the others.

    Args:
        project: The project, with the entry point.
        given: The user's values, of parameters that are declared and of others.

    Raises:
        ExecutionException: A value is missing or is not of the declared type.

    Attributes:
        given: As above, paths made absolute: the attempt runs in another folder.
        have_downloads: Whether the value of a ``path`` parameter has to be downloaded.
        defaults: Default by name of each declared parameter, None for a required one.
    """

    def __init__(self, project: Project, given: Mapping[str, str]) -> None:
        declared = project.entry_point.parameters
        self.defaults = {
            name: None if parameter.default is None else str(parameter.default)
            for name, parameter in declared.items()
        }
        self._types = {name: str(parameter.type) for name, parameter in declared.items()}
        self._shown = {
            **{name: text for name, text in self.defaults.items() if text is not None},
            **given,
        }
        project.compute_command(given)  # MLflow's own checks, of what is missing among them
        for name, text in given.items():
            self._check_number(name, text)
        self.given = dict(given)
        self.have_downloads = False
        for name in self._of_type("path"):
            local = get_local_path_or_none(self._shown[name])
            self.have_downloads |= local is None
            if local is not None:
                self.given[name] = self._existing(name, local)

    def recorded(self, config: RunConfig) -> dict[str, str]:
        """Values as the MLflow run shall hold them: as the training itself would log them.

        MLflow's own backend stores shell-quoted text, and a training that logs ``lr=0.001``
        where ``1e-3`` was given is refused; so values stand unquoted, and floats as Python
        writes them.
        """
        floats = {*self._of_type("float"), config.learning_rate.param}
        return {
            name: _as_python_writes(text) if name in floats else text
            for name, text in self._shown.items()
        }

    def _of_type(self, name: str) -> list[str]:
        return [key for key, kind in self._types.items() if kind == name]

    def _existing(self, name: str, path: str) -> str:
        if not os.path.exists(path):
            raise ExecutionException(f"Parameter {name!r} is {path!r}, but there is no such path")
        return os.path.abspath(path)

    def _check_number(self, name: str, text: str) -> None:
        kind = self._types.get(name, "")
        if kind in _NUMBERS:
            try:
                _NUMBERS[kind](text)
            except ValueError:
                raise ExecutionException(
                    f"Parameter {name!r} is {text!r}, but the project wants a number ({kind})"
                ) from None


def command(
    request: Request, project: Project, parameters: Parameters, config: RunConfig
) -> str | None:
    """The entry point's shell command; None when MLflow has to prepare something at the start.

    No environment given and no environment file: the submitter's own interpreter.

    Raises:
        ExecutionException: The command cannot be filled in, or not be started by torchrun.
    """
    manager = request.backend_config.get("ENV_MANAGER")
    wants = manager or ("local" if project.spec.env_config_path is None else "virtualenv")
    if project.spec.docker_env or wants != "local" or parameters.have_downloads:
        text = None
    else:
        text = project.compute_command(parameters.given)
    return text if config.launcher == "command" else _under_torchrun(text, config.gpus.initial)


def _under_torchrun(text: str | None, gpus: int) -> str:
    """A command with a process for each device that its attempt holds."""
    if gpus == 0:
        raise ExecutionException(
            'launcher is "torchrun", but gpus.initial is 0: it starts one process a device'
        )
    found = _PYTHON.match(text or "")
    if text is None or found is None:
        why = (
            "MLflow prepares this project's environment"
            if text is None
            else f"the command of the entry point does not begin with python: {text}"
        )
        raise ExecutionException(
            f'launcher is "torchrun", but {why}; let the command in MLproject itself begin with'
            " torchrun --standalone --nproc-per-node $RLSCHED_NUM_GPUS, and leave launcher out"
        )
    return f"{found.group()} {_TORCHRUN} {text[found.end() :].lstrip()}"


def _as_python_writes(text: str) -> str:
    """A float in Python's own words; whole numbers and words as they are."""
    try:
        return text if text.strip().lstrip("+-").isdecimal() else repr(float(text))
    except ValueError:
        return text
