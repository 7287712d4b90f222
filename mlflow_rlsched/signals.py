"""Signals that end a command, handled in another way for a while (stdlib only)."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def handling(handlers: Mapping[int, Callable[[int, Any], Any]]) -> Iterator[None]:
    """Handle these signals so, meanwhile.

    Those that the process ignores stay ignored (``nohup``, a job in the background of a script).
    Outside the main thread, where Python handles no signals, nothing changes.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def collecting(arrived: list[int]) -> Iterator[None]:
    """Collect the interrupts (SIGINT) and terminations (SIGTERM) that arrive meanwhile."""

    def collect(number: int, _: Any) -> None:
        arrived.append(number)

    with handling({signal.SIGINT: collect, signal.SIGTERM: collect}):
        yield


@contextlib.contextmanager
def postponing(number: int) -> Iterator[None]:
    """Let a signal take effect only afterwards."""
    arrived: list[int] = []
    with handling({number: lambda n, _: arrived.append(n)}):
        yield
    if arrived:
        signal.raise_signal(number)
