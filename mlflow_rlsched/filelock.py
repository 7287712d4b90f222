"""Byte-range locks that belong to an open file and vanish with it (stdlib only, Linux).

Open-file-description locks: unlike POSIX record locks they are not lost when another descriptor
of the same file is closed, and unlike ``flock`` they can be looked at without being taken.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux
_LOOK_S = 0.02  # between two looks at a lock that is waited for: a kernel's wait has no time-out


def acquire(descriptor: int, start: int, length: int, shared: bool = False) -> bool:
    """Lock ``length`` bytes from ``start``; False when a conflicting lock is held."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    request = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except BlockingIOError:
        return False
    return True


def release(descriptor: int, start: int, length: int) -> None:
    """Unlock ``length`` bytes from ``start``."""
    request = struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)


def first_held(
    descriptor: int, start: int, length: int, shared: bool = False
) -> tuple[int, int] | None:
    """Start and length of the first lock in the way of ``acquire``; None when there is none."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    request = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request))
    return None if answer[0] == fcntl.F_UNLCK else (answer[2], answer[3])


class FileLock:
    """An exclusive lock on a whole file, held until ``release`` or the death of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, wait_s: float = 0.0) -> bool:
        """Take the lock, making the file if absent; False when it is held elsewhere for so long."""
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def _try(self) -> bool:
        # Kept at once, so that ``release`` finds it when an interrupt comes now.
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if acquire(self._descriptor, 0, 1):
            return True
        self.release()
        return False

    def release(self) -> None:
        """Give the lock back; the file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def held(self) -> bool:
        """Whether anybody (this object too) holds the lock now."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return first_held(descriptor, 0, 1) is not None
        finally:
            os.close(descriptor)
