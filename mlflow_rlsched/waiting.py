"""A queued run as its submitter sees it: its status, its output, its end."""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from mlflow.entities import RunStatus
from mlflow.exceptions import ExecutionException
from mlflow.projects.submitted_run import SubmittedRun

from mlflow_rlsched import trust
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.devices.demand import demand
from mlflow_rlsched.output import OutputFollower
from mlflow_rlsched.signals import collecting
from mlflow_rlsched.store import State, StoreError, StoreGone, Task, open_store
from mlflow_rlsched.submission.errors import reason

_logger = logging.getLogger("mlflow.rlsched")  # below MLflow's own, so that it is shown

POLL_S = 0.2
AGENT_CHECK_S = 2.0
AGENT_STARTS = 3
"""Starts of an agent that did not last, after which the waiting command says so."""

SAY_WHY_AFTER_S = 2.0
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

    Attributes:
        message: Why the run ended as it did, once it was waited for.
        tracked: Whether the tracking server knew by then how it ended.
    """

    def __init__(self, task: Task, config: RunConfig) -> None:
        super().__init__()
        self.message = ""
        self.tracked = False
        self._run_id = task.run_id
        self._config = config
        self._store = open_store(config.store)
        self._agent = AgentFiles(config.store)
        self._output = OutputFollower(Path(task.spec.run_dir), after=task.attempt)
        self._first_attempt = task.attempt + 1
        self._echo = Echo()

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

        An interrupt (Ctrl-C) or SIGTERM meanwhile cancels the run and its whole process tree,
        and takes its usual effect then.
        """
        signals: list[int] = []
        with collecting(signals):
            state = self.follow(signals)
        if signals:
            signal.raise_signal(signals[0])
        return state is State.FINISHED

    def cancel(self) -> None:
        """Cancel the run and wait until nothing of it is left."""
        self._request_cancel()
        with collecting([]):
            self.follow([])

    def follow(self, signals: list[int]) -> State:
        """Stream the output until the run is over.

        Args:
            signals: Signals that arrived, which the caller goes on collecting: one of them
                cancels the run.

        Raises:
            ExecutionException: The store cannot be used any more.
        """
        ended_at: float | None = None
        cancelled = False
        keeper = Keeper(self._agent)
        why_at = time.monotonic() + SAY_WHY_AFTER_S
        while True:
            task = self._task()
            more = self._stream()
            now = time.monotonic()
            if signals and not cancelled:
                cancelled = True
                _logger.info("=== Cancelling run '%s' ===", self._run_id)
                self._request_cancel()
            if task.state.final:
                ended_at = ended_at or now
                if task.tracked and not more:
                    break
                if now > ended_at + TRACKED_WITHIN_S:
                    _logger.warning(
                        "The tracking server does not answer; the run's status follows later"
                    )
                    break
            elif task.state is State.QUEUED and now > why_at:
                why_at = float("inf")
                with contextlib.suppress(StoreError):
                    self._say_why_it_waits(task)
            keeper.look(now)
            if not more:
                time.sleep(POLL_S)
        self.message, self.tracked = task.message, task.tracked
        return task.state

    def _task(self) -> Task:
        try:
            task = self._store.get(self._run_id)
        except StoreError as error:
            goes_on = "" if isinstance(error, StoreGone) else "; the run goes on"
            raise ExecutionException(f"{error}{goes_on}") from error
        if task is None:
            raise ExecutionException(f"Run {self._run_id} is not in the store any more")
        return task

    def _request_cancel(self) -> None:
        task, me = self._task(), user_name()
        try:
            proof = trust.prove_request(self._config.store, task, trust.CANCEL, me)
            self._store.request_cancel(task.run_id, me, proof)
        except (StoreError, OSError) as error:
            raise ExecutionException(f"The run cannot be cancelled: {error}") from error
        self._agent.held.unlink(missing_ok=True)
        self._agent.wake()

    def _stream(self) -> bool:
        """Pass new output on; False when there was none."""
        before = self._output.attempt
        data = self._output.read()
        number = self._output.attempt
        if number > max(before, self._first_attempt):
            with contextlib.suppress(StoreError):
                self._say_why_again(number)
        self._echo.write(data)
        return bool(data)

    def _say_why_again(self, number: int) -> None:
        before = [a for a in self._store.attempts(self._run_id) if a.number < number]
        why = (before[-1].message or before[-1].reason) if before else ""
        _logger.info("=== Attempt %d starts: %s ===", number, why)

    def _say_why_it_waits(self, task: Task) -> None:
        """Say once what a run that does not start at once is waiting for."""
        inventory = open_inventory()
        nested = task.spec.parent_attempt_dir is not None
        wants = demand(self._config, nested, inventory.kind, task.gpus)
        inventory.close()
        others = self._store.tasks([State.QUEUED, State.RUNNING], task.spec.host)
        running = sum(t.state is State.RUNNING for t in others)
        queued = [t.run_id for t in others if t.state is State.QUEUED]
        before = queued.index(task.run_id) if task.run_id in queued else 0
        if not wants.devices or not (running or before):
            return
        kind = "CPU slot" if inventory.kind == "cpu" else "GPU"
        _logger.info(
            "=== Run '%s' waits for %s: %s before it, %d running ===",
            self._run_id,
            _counted(wants.devices, kind),
            _counted(before, "run"),
            running,
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


class Echo:
    """Passes the output of a run on to our own, byte by byte where that takes bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._listened_to = True

    def write(self, data: bytes) -> None:
        """Write and flush; when nobody listens any more the run goes on, its output is kept."""
        if not data or not self._listened_to:
            return
        try:
            binary = getattr(sys.stdout, "buffer", None)
            if binary is None:
                sys.stdout.write(self._decoder.decode(data))
            else:
                sys.stdout.flush()
                binary.write(data)
            sys.stdout.flush()
        except (OSError, ValueError):
            self._listened_to = False
            # What is left in the buffers must not fail again when the interpreter ends.
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())
                os.close(nowhere)


def call_agent(agent: AgentFiles) -> None:
    """Wake the store's agent, or start one; inside a scheduled run its shim does that."""
    try:
        if "RLSCHED_ATTEMPT_DIR" not in os.environ:
            agent.start()
        agent.wake()
    except OSError as error:
        _logger.warning("=== No agent can be started: %s ===", reason(error))


class Keeper:
    """Keeps an agent alive while somebody waits.

    Args:
        agent: Its files.
    """

    def __init__(self, agent: AgentFiles) -> None:
        self._agent = agent
        self._starts = 0
        self._next = time.monotonic() + AGENT_CHECK_S

    def look(self, now: float) -> None:
        """See to it that it lives, every two seconds of the monotonic clock."""
        if now < self._next or "RLSCHED_ATTEMPT_DIR" in os.environ:
            return
        self._next = now + AGENT_CHECK_S
        if self._agent.alive():
            self._starts = 0
            return
        call_agent(self._agent)
        self._starts += 1
        if self._starts == AGENT_STARTS:
            _logger.warning(
                "=== No agent runs: %s ===",
                "it was stopped; `rlsched agent start` starts it again"
                if self._agent.held.exists()
                else f"it ends as soon as it is started; {self._agent.log} says why",
            )
