"""The MLflow project backend: ``mlflow run --backend rlsched``.

MLflow waits for no plugin on the command line and takes a failed run for a success there. So
there we wait inside ``run``, stream the output, and raise when the run failed. From the Python
API ``run`` returns at once and MLflow calls ``wait`` if it was asked to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mlflow.entities import RunStatus
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.projects.backend.abstract_backend import AbstractBackend
from mlflow.projects.submitted_run import SubmittedRun

from mlflow_rlsched.config import ConfigError, RunConfig
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.devices.locks import LockError
from mlflow_rlsched.output import OutputFollower
from mlflow_rlsched.store import State, StoreError, Task, open_store
from mlflow_rlsched.submission import Request, start_agent, submit

_logger = logging.getLogger("mlflow.rlsched")  # below MLflow's own, so that it is shown

POLL_S = 0.2
AGENT_CHECK_S = 2.0
TRACKED_WITHIN_S = 30.0
"""How long ``wait`` waits, after a run's end, for its status to reach the tracking server."""

_STATUS = {
    State.QUEUED: RunStatus.SCHEDULED,
    State.RUNNING: RunStatus.RUNNING,
    State.FINISHED: RunStatus.FINISHED,
    State.FAILED: RunStatus.FAILED,
    State.KILLED: RunStatus.KILLED,
}


class RlschedSubmittedRun(SubmittedRun):
    """A queued run; it lives on when this process ends.

    Args:
        task: The task as submitted.
        config: Its configuration.
    """

    def __init__(self, task: Task, config: RunConfig) -> None:
        super().__init__()
        self._run_id = task.run_id
        self._config = config
        self._store = open_store(config.store)
        self._agent = AgentFiles(config.store)
        self._output = OutputFollower(Path(task.spec.run_dir))
        self.message = ""

    @property
    def run_id(self) -> str:
        """The MLflow run."""
        return self._run_id

    def get_status(self) -> str:
        """Status of the run, in MLflow's words."""
        status: str = RunStatus.to_string(_STATUS[self._task().state])
        return status

    def wait(self) -> bool:
        """Stream the output until the run is over; True when it finished well.

        An interrupt (Ctrl-C) or SIGTERM meanwhile cancels the run and its whole process tree.
        """
        signals: list[int] = []
        with _held_back(signals):
            return self._wait(signals) is State.FINISHED

    def cancel(self) -> None:
        """Cancel the run and wait until nothing of it is left."""
        self._request_cancel()
        with _held_back([]):
            self._wait([])

    def _task(self) -> Task:
        task = self._store.get(self._run_id)
        if task is None:
            raise ExecutionException(f"Run {self._run_id} is not in the store any more")
        return task

    def _request_cancel(self) -> None:
        self._store.request_cancel(self._run_id, user_name())
        self._agent.held.unlink(missing_ok=True)
        self._agent.wake()

    def _wait(self, signals: list[int]) -> State:
        asked = False
        ended_at: float | None = None
        agent_check = time.monotonic() + AGENT_CHECK_S
        while True:
            task = self._task()
            more = self._stream()
            if signals and not asked:
                asked = True
                _logger.info("=== Cancelling run '%s' ===", self._run_id)
                self._request_cancel()
            now = time.monotonic()
            if task.state.final:
                ended_at = ended_at or now
                if task.tracked and not more:
                    break
                if now > ended_at + TRACKED_WITHIN_S:
                    _logger.warning(
                        "The tracking server does not answer; the run's status follows later"
                    )
                    break
            if now > agent_check and not self._agent.alive():
                agent_check = now + AGENT_CHECK_S
                if "RLSCHED_ATTEMPT_DIR" not in os.environ:
                    self._agent.start()
            time.sleep(0 if more else POLL_S)
        self.message = task.message
        return task.state

    def _stream(self) -> bool:
        """Pass new output on; False when there was none."""
        data = self._output.read()
        if data:
            try:
                sys.stdout.write(data.decode(errors="replace"))
                sys.stdout.flush()
            except (BrokenPipeError, ValueError):
                # Nobody listens any more; the run goes on and its output is kept.
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return bool(data)


@contextlib.contextmanager
def _held_back(arrived: list[int]) -> Iterator[None]:
    """Collect SIGINT and SIGTERM that arrive meanwhile, in place of their usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda n, _: arrived.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        """Queue a project run; on the command line, wait for it.

        Raises:
            ExecutionException: The request is wrong (nothing was queued), or it was waited for
                and the run did not finish well.
        """
        on_command_line = click.get_current_context(silent=True) is not None
        request = Request(
            project_uri=project_uri,
            entry_point=entry_point,
            params=params or {},
            version=version,
            backend_config=backend_config,
            tracking_uri=tracking_uri,
            experiment_id=experiment_id,
            run_name=_run_name(),
        )
        signals: list[int] = []
        with contextlib.ExitStack() as shield:
            try:
                task, config = submit(request, lambda: shield.enter_context(_held_back(signals)))
                run = RlschedSubmittedRun(task, config)
                start_agent(config)
            except ExecutionException:
                raise
            except (ConfigError, StoreError, LockError, MlflowException, OSError) as error:
                raise ExecutionException(str(error)) from error
            _logger.info("=== Run '%s' is queued ===", task.run_id)
            wait = on_command_line if config.wait is None else config.wait
            if not wait and not signals:
                return run
            state = run._wait(signals)
        if state is not State.FINISHED:
            reason = f": {run.message}" if run.message else ""
            raise ExecutionException(f"Run (ID '{run.run_id}') {state.value}{reason}")
        _logger.info("=== Run (ID '%s') succeeded ===", run.run_id)
        return run


def _run_name() -> str | None:
    """``--run-name``: MLflow does not pass it on, and sets it only after a success."""
    context = click.get_current_context(silent=True)
    name = context.params.get("run_name") if context is not None else None
    return str(name) if name is not None else None
