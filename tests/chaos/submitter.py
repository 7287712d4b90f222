"""A process that submits a run and waits for it, ready at once: what it needs is loaded."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import mlflow
import mlflow.projects

# Loaded for the submission, of which they would be the longest part:
import mlflow.store.tracking.sqlalchemy_store

import mlflow_rlsched.backend  # noqa: F401
from mlflow_rlsched.daemon import AgentFiles
from tests.chaos import quick_agent

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def load() -> None:
    """Start what submitters are forked from; it keeps the environment of this moment."""
    multiprocessing.forkserver.ensure_running()


def start(
    environ: Mapping[str, str], folder: Path, log: Path, arguments: Mapping[str, Any]
) -> ForkServerProcess:
    """Start a submission.

    Args:
        environ: Environment of the process.
        folder: Its working directory.
        log: Where its output goes.
        arguments: Of ``mlflow.projects.run``.
    """
    process = _CONTEXT.Process(target=_submit, args=(dict(environ), folder, log, dict(arguments)))
    process.start()
    return process


def _submit(environ: dict[str, str], folder: Path, log: Path, arguments: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    AgentFiles.argv = quick_agent.argv  # type: ignore[method-assign]
    mlflow.set_tracking_uri(environ["MLFLOW_TRACKING_URI"])
    mlflow.projects.run(**arguments)
