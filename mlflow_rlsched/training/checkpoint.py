"""Checkpoints that are complete or absent.

Layout of a checkpoint folder, newest last::

    <attempt>-<serial>/
        state.pt | state.json    what the training gave to ``session.save``
        manifest.json            its size and checksum, and where the training stood

A checkpoint is written beside its final name, flushed to the disk and then renamed. The manifest
is there for what a rename cannot promise: disks that lose what they said was written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pickle
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mlflow_rlsched import protocol

log = logging.getLogger("mlflow_rlsched.training")

KEPT = 2
_NAME = re.compile(r"(\d{6,})-(\d{6,})")
_MANIFEST = "manifest.json"
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Position:
    """Where a training stood when it saved.

    Attributes:
        step: Optimizer steps, over all attempts.
        samples: Samples seen, over all attempts.
        epoch: The epoch that the training last reported, or None.
        batch_size: Batch size in use, or None when the training has none.
        learning_rate: Base learning rate times ``lr_scale``, or None when it has none.
        lr_scale: Factor on the user's own schedule.
    """

    step: int
    samples: int
    epoch: float | None
    batch_size: int | None
    learning_rate: float | None
    lr_scale: float


class Checkpoints:
    """The checkpoint folder of a run, as one attempt uses it."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt

    def save(self, state: Any, position: Position, superseded: Callable[[], bool]) -> bool:
        """Add a checkpoint and delete those that it makes superfluous.

        Args:
            state: With torch loaded, what ``torch.load(weights_only=True)`` reads back; without
                torch, JSON: dicts with text keys, lists, text, numbers, booleans and None.
            position: Where the training stands.
            superseded: Whether another attempt has taken over; asked last of all.

        Returns:
            False when another attempt has taken over.

        Raises:
            TypeError: ``state`` holds something else; the sentence says what.
            OSError: It cannot be written; the older checkpoints are untouched.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for unfinished in self._folder.glob(".*.tmp"):
            shutil.rmtree(unfinished, ignore_errors=True)
        temporary = self._folder / f".{self._attempt:06d}-{os.getpid()}.tmp"
        temporary.mkdir(mode=0o700)
        try:
            manifest = _write_state(temporary, state) | {"position": asdict(position)}
            protocol.write_json(temporary / _MANIFEST, manifest)
            _sync(temporary)
            if superseded():
                return False
            temporary.rename(self._folder / f"{self._attempt:06d}-{self._next_serial():06d}")
            _sync(self._folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._rotate()
        return True

    def load(self) -> tuple[Any, Position] | None:
        """State and position of the newest complete checkpoint; None when there is none."""
        for folder in self._newest_first():
            try:
                with _pinned(folder):
                    path, position = _verify(folder)
                    return _read_state(path), position
            except (OSError, ValueError) as error:
                log.warning(
                    "mlflow-rlsched: checkpoint %s is not complete (%s); "
                    "the one before it is used, if any",
                    folder,
                    error,
                )
        return None

    def _newest_first(self) -> list[Path]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        found = sorted((_key(name), name) for name in names if _NAME.fullmatch(name))
        return [self._folder / name for _, name in reversed(found)]

    def _next_serial(self) -> int:
        keys = [_key(folder.name) for folder in self._newest_first()]
        return max((serial for attempt, serial in keys if attempt == self._attempt), default=0) + 1

    def _rotate(self) -> None:
        complete = 0
        for folder in self._newest_first():
            if complete < KEPT:
                complete += _looks_complete(folder)
            elif not _is_pinned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _key(name: str) -> tuple[int, int]:
    attempt, serial = name.split("-")
    return int(attempt), int(serial)


@contextmanager
def _pinned(folder: Path) -> Iterator[None]:
    """Keep ``folder`` from being rotated away by any process."""
    with open(folder / _MANIFEST, "rb") as manifest:
        fcntl.flock(manifest, fcntl.LOCK_SH)
        yield


def _is_pinned(folder: Path) -> bool:
    try:
        with open(folder / _MANIFEST, "r+b") as manifest:
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _looks_complete(folder: Path) -> bool:
    """Whether size and manifest are right: without the checksum, for it reads everything."""
    manifest = protocol.read_json(folder / _MANIFEST)
    if manifest is None:
        return False
    try:
        return (folder / str(manifest["file"])).stat().st_size == int(manifest["bytes"])
    except (KeyError, TypeError, ValueError, OSError):
        return False


def _verify(folder: Path) -> tuple[Path, Position]:
    """The file with the state, and the position, of a complete checkpoint.

    Raises:
        ValueError: It is not complete.
        OSError: A file is missing or cannot be read.
    """
    manifest = protocol.read_json(folder / _MANIFEST)
    try:
        if manifest is None or manifest["file"] not in ("state.pt", "state.json"):
            raise ValueError("its manifest is damaged")
        position = Position(**manifest["position"])
        path, size, checksum = folder / manifest["file"], manifest["bytes"], manifest["crc32"]
    except (KeyError, TypeError):
        raise ValueError("its manifest is damaged") from None
    if path.stat().st_size != size:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of {size}")
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    if found != checksum:
        raise ValueError(f"{path.name} has a wrong checksum")
    return path, position


class _Checked:
    """A file for ``torch.save`` that keeps size, checksum and the first error of its writes.

    An exception out of a write would have to cross torch's C++ writer; it is raised afterwards.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None
        self._bytes = 0
        self._crc32 = 0

    def write(self, data: bytes) -> int:
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        self._bytes += len(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        return len(data)

    def flush(self) -> None:
        pass  # once, in ``finish``

    def finish(self) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._bytes, "crc32": self._crc32}


def _write_state(folder: Path, state: Any) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    path = folder / ("state.json" if torch is None else "state.pt")
    with open(path, "wb", buffering=_CHUNK) as raw:
        file = _Checked(raw)
        if torch is None:
            _require_json(state, "state")
            file.write(json.dumps(state).encode())
        else:
            try:
                torch.save(state, file)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise _unsafe(error) from None
        written = file.finish()
    if torch is not None:
        _require_safe(path)
    return {"file": path.name, **written}


def _read_state(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


def _require_safe(path: Path) -> None:
    """Refuse now what could not be loaded at the restart (tensors are mapped, not read)."""
    torch = sys.modules["torch"]
    try:
        torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except pickle.UnpicklingError as error:
        raise _unsafe(error) from None


def _unsafe(error: Exception) -> TypeError:
    found = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error))
    what = f"it holds {found[1]}" if found else str(error)
    return TypeError(
        f"session.save() takes what torch.load(weights_only=True) can read: tensors, numbers, "
        f"text, and dicts and lists of them (state_dict() of a model or an optimizer); {what}"
    )


def _require_json(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"session.save() without torch takes text as keys; {where} has the "
                                f"key {key!r}")  # fmt: skip
            _require_json(item, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_json(item, f"{where}[{index}]")
    elif value is not None and not isinstance(value, str | int | float):
        raise TypeError(
            "session.save() without torch takes JSON: dicts, lists, text, numbers, booleans and "
            f"None; {where} is a {type(value).__name__}"
        )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
