"""The agent as a process: its lock, its signals, and how it starts, rests and ends."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

from mlflow_rlsched import __version__
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import StoreError, StoreGone

if TYPE_CHECKING:
    from mlflow_rlsched.agent.loop import Agent

_logger = logging.getLogger(__name__)

TICK_S = 1.0
UNTOLD_S = 3600.0
"""How long an idle agent goes on for tracking servers that do not answer; what is left to tell
stays in the outbox, and the next agent tells it."""


def run_agent(store: str, idle_timeout_s: float | None) -> int:
    """Be the agent of a store, unless there is one.

    Args:
        store: Absolute URL of the store.
        idle_timeout_s: End after so many seconds with nothing to do; None never ends.

    Returns:
        Exit code: 0, also when another agent serves the store already.

    Raises:
        StoreError: The store cannot be opened.
    """
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    files = AgentFiles(store)
    files.create()
    if not files.lock.acquire():
        _logger.info("another agent serves %s already", store)
        return 0
    files.introduce(__version__)
    _logger.info("agent %s serves %s", __version__, store)
    # Slow to load: of many agents that are started at once, all but one have ended above.
    from mlflow_rlsched.agent.loop import Agent

    Service(files, Agent(files), idle_timeout_s).run()
    return 0


class Service:
    """Keeps an agent at work until it is told to stop, has nothing to do or lost its store.

    Args:
        files: The agent's folder; its lock is held by this process.
        agent: What does the work.
        idle_timeout_s: End after so many seconds with nothing to do; None never ends.
    """

    def __init__(self, files: AgentFiles, agent: Agent, idle_timeout_s: float | None) -> None:
        self._files = files
        self._agent = agent
        self._idle_timeout_s = idle_timeout_s
        self._stopping = False
        self._complaint = ""

    def run(self) -> None:
        """Work until the end; running attempts go on after it."""
        wake = [self._files.open_wake(), self._stop_on_signals()]
        busy_at = time.monotonic()
        woken = True
        while not self._stopping:
            try:
                if self._agent.tick(woken):
                    busy_at = time.monotonic()
                elif self._is_over(busy_at) and self._leave():
                    break
                self._complaint = ""
            except StoreGone as error:
                _logger.error("%s: ending", error)
                # No shim shall start an agent, which would make the store anew.
                with contextlib.suppress(OSError):
                    self._files.held.write_text("its store was deleted or replaced")
                break
            except (StoreError, OSError) as error:
                self._complain(error)
            woken = _wait(wake, self._agent.pause_s(TICK_S))
        if self._stopping:
            with contextlib.suppress(StoreError):
                self._agent.sign_off()
        self._agent.close()

    def _is_over(self, busy_at: float) -> bool:
        """Whether an agent that has been idle since then may end now."""
        limit = self._idle_timeout_s
        idle = time.monotonic() - busy_at
        return (
            limit is not None
            and idle > limit
            and (idle > limit + UNTOLD_S or self._agent.has_told_all())
        )

    def _complain(self, error: Exception) -> None:
        if str(error) != self._complaint:
            _logger.error("%s", error)
        self._complaint = str(error)

    def _stop_on_signals(self) -> int:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def stop(*_: object) -> None:
            self._stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reader

    def _leave(self) -> bool:
        """Give the lock back when there is nothing to do; False when there is again."""
        self._agent.sign_off()
        self._files.lock.release()
        # A submission that saw the lock still held relies on this second look.
        try:
            work = self._agent.has_work()
        except StoreError as error:
            self._complain(error)
            work = True
        if work and self._files.lock.acquire():
            self._files.wake()
            return False
        if self._agent.has_told_all():
            _logger.info("nothing to do: ending")
        else:
            _logger.warning(
                "ending, although a tracking server was not told all: the rest stays on disk, and "
                "the next agent tells it (next submission or `rlsched agent start`)"
            )
        return True


def _wait(descriptors: list[int], seconds: float) -> bool:
    """Sleep until one of the descriptors is readable; False when the time was over first."""
    ready, _, _ = select.select(descriptors, [], [], seconds)
    for descriptor in ready:
        os.read(descriptor, 65536)
    return bool(ready)
