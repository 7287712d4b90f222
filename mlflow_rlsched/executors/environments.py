"""Environments of projects, made by MLflow: one attempt at a time, none left half-made.

MLflow takes an environment whose folder exists for a complete one. So two runs that start
together must not make it at the same time, and what a killed run left behind must go.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow.projects import env_type
from mlflow.utils.environment import _PythonEnv
from mlflow.utils.process import ShellCommandException
from mlflow.utils.virtualenv import _get_mlflow_virtualenv_root, _get_virtualenv_name

from mlflow_rlsched.filelock import FileLock

_PROGRAMS = {"virtualenv": "pyenv", "uv": "uv"}
_COMPLAINT = re.compile(r"(error:|cause:|python-build:)", re.IGNORECASE)
_LONGEST = 300


def manager_of(project: Any, given: str | None) -> str:
    """What makes the environment of a project: ``local``, ``virtualenv``, ``uv`` or ``conda``.

    No environment given and no environment file: the submitter's own interpreter.
    """
    if project.docker_env or (given is None and project.env_config_path is None):
        return "local"
    return given or ("conda" if project.env_type == env_type.CONDA else "virtualenv")


@contextmanager
def alone(project: Any, work_dir: Path, manager: str) -> Iterator[None]:
    """While MLflow looks for the environment of a project, or makes it."""
    if manager == "local":
        yield
        return
    root = Path(_get_mlflow_virtualenv_root())
    root.mkdir(parents=True, exist_ok=True)
    name = "conda" if manager == "conda" else _virtualenv_name(project, work_dir)
    lock = FileLock(root / f".{name}.lock")
    unfinished = root / f".{name}.unfinished"
    if not lock.acquire():
        print("Waiting for another run that makes the same environment", flush=True)
        lock.acquire(math.inf)
    try:
        if unfinished.exists():
            shutil.rmtree(root / name, ignore_errors=True)
        if not (root / name).exists():
            unfinished.touch()
        yield
        unfinished.unlink(missing_ok=True)
    finally:
        lock.release()


def _virtualenv_name(project: Any, work_dir: Path) -> str:
    path = project.env_config_path
    if path is None:
        python_env = _PythonEnv()
    elif project.env_type == env_type.CONDA:
        python_env = _PythonEnv.from_conda_yaml(path)
    else:
        python_env = _PythonEnv.from_yaml(path)
    name: str = _get_virtualenv_name(python_env, work_dir)
    return name


def why_not(error: Exception, manager: str, output: Path) -> str:
    """Why an environment could not be prepared, in one sentence.

    Args:
        error: What MLflow raised.
        manager: What made the environment.
        output: The attempt's output: the commands that MLflow runs say there what is wrong.
    """
    program = _PROGRAMS.get(manager)
    if program is not None and shutil.which(program) is None:
        return (
            f"the environment manager {manager} needs the program {program}, which is not "
            "installed; install it or choose another one with --env-manager"
        )
    if isinstance(error, ShellCommandException) and output.exists():
        said = _lines(output.read_text(errors="replace"))
        lines = [line for line in said if _COMPLAINT.match(line)] or said[-1:]
    else:
        lines = _lines(str(error))
    if not lines:
        return type(error).__name__
    return " … ".join(dict.fromkeys([lines[0][:_LONGEST], lines[-1][:_LONGEST]]))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
