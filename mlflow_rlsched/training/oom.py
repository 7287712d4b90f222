"""Tells the many ways to run out of memory from all other errors."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from types import TracebackType

_TEXTS = ("out of memory", "can't allocate memory", "_STATUS_ALLOC_FAILED", "RESOURCE_EXHAUSTED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error``, or what it was explicitly raised from, is a lack of memory.

    Knows ``MemoryError``, the system's ``ENOMEM``, every class named ``OutOfMemoryError`` (torch,
    CuPy), and the plain ``RuntimeError`` of torch's CPU allocator, of cuBLAS, cuDNN and XLA.
    """
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, MemoryError):
            return True
        if isinstance(link, OSError) and link.errno == errno.ENOMEM:
            return True
        if any(base.__name__ == "OutOfMemoryError" for base in type(link).__mro__):
            return True
        if isinstance(link, RuntimeError) and any(text in str(link) for text in _TEXTS):
            return True
        link = link.__cause__
    return False


def when_uncaught(note: Callable[[BaseException], None]) -> None:
    """Call ``note`` with an error that ends the process, after its traceback was printed."""
    previous = sys.excepthook

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        previous(kind, error, trace)
        note(error)

    sys.excepthook = uncaught
