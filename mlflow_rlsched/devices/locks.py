"""Host-wide locks on devices: held by the shim of an attempt, probed by every agent.

Each device has one file in a folder that all stores and users of a host share. Bytes 0 to 99
are the hundredths of the device. Byte 100 keeps a GPU and its MIG slices apart: a lease of the
whole device holds it alone, a lease of a part or of a slice (in the file of its parent) shares
it. The locks belong to open files, so they end with the process that holds them, however it
dies (stdlib only: the shim runs from here).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow_rlsched import filelock
from mlflow_rlsched.devices.interface import Device

DEFAULT_FOLDER = Path("/tmp/rlsched-devices")
WHOLE = 100

_PARENT_BYTE = 100
_FILE_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]+")
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC
_YEAR_2100 = 4_102_444_800


class LockError(OSError):
    """The device locks cannot be used; the text says why and what to do."""


@dataclass(frozen=True)
class LockRequest:
    """What to lock.

    Attributes:
        device: UUID, or ``cpu-<i>``.
        amount: Hundredths of the device, 1 to 100.
        parent: UUID of the GPU when the device is a MIG slice, or None.
    """

    device: str
    amount: int = WHOLE
    parent: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.amount <= WHOLE:
            raise ValueError(f"amount of {self.device} is {self.amount}: must be 1 to {WHOLE}")


def request_for(device: Device, amount: int = WHOLE) -> LockRequest:
    """The lock that a lease of ``amount`` hundredths of ``device`` needs."""
    return LockRequest(device.id, amount, device.parent)


def lock_dir() -> Path:
    """The folder of the lock files, made if absent: ``$RLSCHED_LOCK_DIR`` or the default.

    Raises:
        LockError: The folder cannot be made, or others could take its files away.
    """
    folder = Path(os.environ.get("RLSCHED_LOCK_DIR") or DEFAULT_FOLDER)
    if not folder.is_absolute():
        raise LockError(f"RLSCHED_LOCK_DIR is {str(folder)!r}: give an absolute path")
    try:
        try:
            folder.mkdir()
        except FileExistsError:
            pass
        else:
            folder.chmod(0o1777)
        status = folder.lstat()
    except OSError as error:
        raise LockError(
            f"the device lock folder {folder} cannot be made: {error.strerror}; "
            "set RLSCHED_LOCK_DIR to a folder that all users of this host can write to"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise LockError(f"the device lock folder {folder} is a link or a file: remove it")
    ours = status.st_uid in (0, os.getuid()) and not status.st_mode & 0o022
    if not (ours or status.st_mode & stat.S_ISVTX):
        raise LockError(
            f"others can remove files from the device lock folder {folder}: "
            f"let its owner run `chmod 1777 {folder}`"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LockError(
            f"you may not write to the device lock folder {folder}: "
            f"let its owner run `chmod 1777 {folder}`"
        )
    return folder


class DeviceLocks:
    """Locks on devices, held until ``release`` or the death of the process.

    Args:
        folder: Where the lock files are (``lock_dir()``).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = ExitStack()

    def acquire(self, requests: Sequence[LockRequest]) -> str | None:
        """Lock all of the requests, or none of them.

        Returns:
            None when all are locked, else the id of a device that is busy.

        Raises:
            LockError: A lock file cannot be opened.
            ValueError: A device's id cannot be the name of a file.
        """
        with ExitStack() as taken:
            # One order for everybody: of two that want the same devices, one gets them all.
            for request in sorted(requests, key=lambda request: request.device):
                if not self._take(request, taken):
                    return request.device
            self._held.push(taken.pop_all())
        return None

    def release(self) -> None:
        """Give all locks back; the files stay."""
        self._held.close()

    def _take(self, request: LockRequest, taken: ExitStack) -> bool:
        own = _open_or_create(_path(self._folder, request.device))
        taken.callback(os.close, own)
        if not _take_hundredths(own, request.amount):
            return False
        if request.parent is None:
            return True
        parent = _open_or_create(_path(self._folder, request.parent))
        taken.callback(os.close, parent)
        return filelock.acquire(parent, _PARENT_BYTE, 1, shared=True)


def free_amount(folder: Path, device: str, parent: str | None = None) -> int:
    """Hundredths of a device that nobody has locked, 0 to 100; takes no lock.

    Args:
        folder: Where the lock files are.
        device: Id of the device.
        parent: UUID of its GPU when the device is a MIG slice: when that is leased as a whole,
            nothing of the slice is free. Nothing of a GPU is free when a slice of it is leased.

    Raises:
        LockError: A lock file cannot be opened.
        ValueError: An id cannot be the name of a file.
    """
    if parent is not None:
        with _opened(_path(folder, parent)) as file:
            if file is not None and filelock.first_held(file, _PARENT_BYTE, 1, shared=True):
                return 0
    with _opened(_path(folder, device)) as file:
        if file is None:
            return WHOLE
        free = _free(file, 0, WHOLE)
        if free == WHOLE and filelock.first_held(file, _PARENT_BYTE, 1):
            return 0
        return free


def _path(folder: Path, device: str) -> Path:
    if not _FILE_NAME.fullmatch(device):
        raise ValueError(f"device id {device!r}: only letters, digits and . _ - are allowed")
    return folder / device


def _open_or_create(path: Path) -> int:
    try:
        while True:
            # Where fs.protected_regular is set, O_CREAT on another user's file is refused.
            try:
                return os.open(path, os.O_RDWR | _OPEN)
            except FileNotFoundError:
                pass
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666)
            except FileExistsError:
                continue
            os.fchmod(file, 0o666)
            # What cleans /tmp removes old files, and a file made anew would be locked twice.
            os.utime(file, (_YEAR_2100, _YEAR_2100))
            return file
    except OSError as error:
        raise _unusable(path, error) from error


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        file = os.open(path, os.O_RDONLY | _OPEN)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        yield file
    finally:
        os.close(file)


def _unusable(path: Path, error: OSError) -> LockError:
    return LockError(
        f"the device lock {path} cannot be opened ({error.strerror}): "
        "it must be a plain file of mode 0666, else let its owner remove it"
    )


def _take_hundredths(file: int, amount: int) -> bool:
    if amount == WHOLE:
        return filelock.acquire(file, 0, _PARENT_BYTE + 1)
    # Byte by byte, so that parts which fit together all succeed when taken at the same time.
    missing = amount
    for byte in range(WHOLE):
        if filelock.acquire(file, byte, 1):
            missing -= 1
            if missing == 0:
                return filelock.acquire(file, _PARENT_BYTE, 1, shared=True)
    return False


def _free(file: int, start: int, end: int) -> int:
    """How many bytes of [start, end) nobody has locked."""
    if start >= end:
        return 0
    held = filelock.first_held(file, start, end - start)
    if held is None:
        return end - start
    first, length = held
    after = first + length if length else end  # a length of 0 reaches to the end of the file
    return _free(file, start, first) + _free(file, after, end)
