"""The MLflow project backend: ``mlflow run --backend rlsched``.

MLflow waits for no plugin on the command line and takes a failed run for a success there; after a
synchronous call from Python it takes a run that was killed for one that failed. So in both cases
we wait inside ``run``, stream the output, and raise when the run did not finish well.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.projects.backend.abstract_backend import AbstractBackend

from mlflow_rlsched.config import ConfigError, RunConfig
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.daemon import AgentFiles, home
from mlflow_rlsched.devices.cpu import CpuSlotsError
from mlflow_rlsched.devices.locks import LockError
from mlflow_rlsched.signals import collecting, handling, postponing
from mlflow_rlsched.store import State, StoreError, Task
from mlflow_rlsched.submission import Request, submit
from mlflow_rlsched.submission.errors import reason
from mlflow_rlsched.trust import TrustError
from mlflow_rlsched.waiting import RlschedSubmittedRun, call_agent

_logger = logging.getLogger("mlflow.rlsched")  # below MLflow's own, so that it is shown


class RlschedBackend(AbstractBackend):
    """The plugin that MLflow finds under the name ``rlsched``."""

    def run(
        self,
        project_uri: str,
        entry_point: str,
        params: dict[str, Any] | None,
        version: str | None,
        backend_config: dict[str, Any],
        tracking_uri: str,
        experiment_id: str,
    ) -> RlschedSubmittedRun:
        """Queue a project run; on the command line and in a synchronous call, wait for it.

        Raises:
            ExecutionException: The request is wrong (nothing was queued), or it was waited for
                and the run did not finish well.
        """
        command_line = _command_line()
        request = Request(
            project_uri=project_uri,
            entry_point=entry_point,
            params=params or {},
            version=version,
            backend_config=backend_config,
            tracking_uri=tracking_uri,
            experiment_id=experiment_id,
            run_name=command_line.params.get("run_name") if command_line else None,
        )
        signals: list[int] = []
        # Until something is made, SIGTERM is an interrupt: what was begun is cleaned up.
        with (
            handling({signal.SIGTERM: signal.default_int_handler}),
            contextlib.ExitStack() as shield,
        ):
            task, config = queue_task(request, signals, shield)
            with _in_sentences(request):
                run = RlschedSubmittedRun(task, config)
            wait = config.wait
            if wait is None:
                wait = command_line is not None or bool(backend_config.get("SYNCHRONOUS"))
            state = run.follow(signals) if wait or signals else None
        if signals and command_line is None:
            run.cancel()
            signal.raise_signal(signals[0])
        if state is None:
            return run
        if state is not State.FINISHED:
            why = f": {run.message}" if run.message else ""
            raise ExecutionException(f"Run (ID '{run.run_id}') {state.value}{why}")
        _logger.info("=== Run (ID '%s') succeeded ===", run.run_id)
        if command_line is not None and not run.tracked:
            # MLflow would set a tag now, and go on trying for minutes.
            command_line.exit()
        return run


def queue_task(
    request: Request, signals: list[int], shield: contextlib.ExitStack
) -> tuple[Task, RunConfig]:
    """Queue a run and see to it that there is an agent.

    Args:
        request: What was asked for.
        signals: Where interrupts are collected as soon as there is something to cancel.
        shield: Keeps collecting them until the caller closes it.

    Raises:
        ExecutionException: The request is wrong, or something that it needs cannot be used;
            nothing was queued.
    """
    # A hang-up ends this process, but not the run.
    with contextlib.ExitStack() as queueing, _in_sentences(request):

        def hold_signals_back() -> None:
            shield.enter_context(collecting(signals))
            queueing.enter_context(postponing(signal.SIGHUP))

        task, config = submit(request, hold_signals_back)
        agent = AgentFiles(config.store)
        agent.held.unlink(missing_ok=True)
        call_agent(agent)
        _logger.info("=== Run '%s' is queued ===", task.run_id)
    return task, config


@contextlib.contextmanager
def _in_sentences(request: Request) -> Iterator[None]:
    """Let whatever is wrong end in a sentence."""
    try:
        yield
    except ExecutionException:
        raise
    except (ConfigError, CpuSlotsError, StoreError, LockError, TrustError) as error:
        raise ExecutionException(str(error)) from error
    except MlflowException as error:
        raise ExecutionException(
            f"The tracking server {redacted(request.tracking_uri)} refuses the run: {reason(error)}"
        ) from error
    except OSError as error:
        raise ExecutionException(
            f"{error.filename or home()}: {reason(error)}: make room and let it be written to,"
            " or set RLSCHED_HOME to another folder"
        ) from error


def _command_line() -> click.Context | None:
    """The context of ``mlflow run``, None in any other program.

    It has the run's name too, which MLflow does not pass on and sets only after a success.
    """
    context = click.get_current_context(silent=True)
    cli = sys.modules.get("mlflow.cli")
    return context if context is not None and cli and context.command is cli.run else None
