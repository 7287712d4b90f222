"""Policy versions of a user: files that never change, and which of them is the champion.

``$RLSCHED_HOME/policies/`` holds a file ``<name>.safetensors`` for each version, and
``champion.json``: all promotions and rollbacks so far, replaced atomically and only after the file
that it names is complete. So whoever dies at whatever moment, the champion is the old one or the
new one. A version that cannot be used makes place for the one before it, at last for the one that
comes with the package.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.daemon import home
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.policy import checkpoint
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version

SHIPPED = Path(checkpoint.__file__).with_name("shipped.safetensors")
"""The version that comes with the package."""

SUFFIX = ".safetensors"
MIN_PREFIX = 4
LOCK_WAIT_S = 5.0

_FORMAT = 1
_NAME = re.compile(r"[0-9a-f]{12}")


class VersionNotFoundError(LookupError):
    """There is no such version, and why, in a sentence."""


@dataclass(frozen=True)
class Change:
    """A promotion or a rollback.

    Attributes:
        time: When, seconds since the epoch.
        champion: Name of the champion since then; None for the shipped version.
        rollback: Whether it took back the promotion before.
        reason: Why, in words.
        figures: What it rests on, by name. JSON values.
    """

    time: float
    champion: str | None
    rollback: bool = False
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Champion:
    """The version in use.

    Attributes:
        version: The version.
        path: Its file.
        trouble: Why it is not the one that was promoted last, in sentences; empty when it is.
    """

    version: Version
    path: Path
    trouble: str = ""


class Versions:
    """The versions in a folder. Each is read once by an object, and kept.

    Args:
        folder: The folder; it need not exist. By default that of the user.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or home() / "policies"
        self.pointer = self.folder / "champion.json"
        self._known: dict[Path, Version] = {}
        self._seen: tuple[int, ...] | None = None
        self._champion: Champion | PolicyFileError | None = None

    def path(self, name: str) -> Path:
        """The file of a version."""
        return self.folder / (name + SUFFIX)

    def names(self) -> list[str]:
        """Names of the versions in the folder, the newest file first."""
        found = [path for path in self.folder.glob("*" + SUFFIX) if _NAME.fullmatch(path.stem)]
        return [path.stem for path in sorted(found, key=_written_at, reverse=True)]

    def read(self, name: str) -> Version:
        """A version of the folder.

        Raises:
            PolicyFileError: Its file is not there, is damaged or is another version's.
        """
        path = self.path(name)
        if path not in self._known:
            version = Version.read(path)
            if version.name != name:
                raise PolicyFileError(f"{path} holds another version, {version.name}")
            self._known[path] = version
        return self._known[path]

    def find(self, text: str) -> Version:
        """The version in a file, of a name or of the beginning of one.

        Raises:
            VersionNotFoundError: There is none, or several.
            PolicyFileError: It cannot be used.
        """
        if "/" in text or text.endswith(SUFFIX):
            if not Path(text).exists():
                raise VersionNotFoundError(f"there is no file {text}")
            return Version.read(Path(text))
        if text == "shipped":
            return self._shipped()
        fitting = [name for name in self.names() if name.startswith(text)]
        if len(text) < MIN_PREFIX or not fitting:
            raise VersionNotFoundError(
                f"no version {text!r}: give the path of a file, shipped, or at least {MIN_PREFIX}"
                " characters of a name that `rlsched policy list` shows"
            )
        if len(fitting) > 1:
            raise VersionNotFoundError(
                f"version {text!r} is not unique ({', '.join(sorted(fitting)[:3])}, …): give more"
                " characters"
            )
        return self.read(fitting[0])

    def add(self, version: Version) -> Path:
        """Keep a version; returns its file. One that is there and whole is left as it is.

        Raises:
            OSError: The folder cannot be written, or stays locked.
        """
        with self._locked():
            self._keep(version)
        return self.path(version.name)

    # The champion

    def champion(self) -> Champion:
        """The champion as it is now: a ``stat``, and files are read only when that has changed.

        Raises:
            PolicyFileError: There is none that can be used, not even the shipped one.
        """
        seen = _signature(self.pointer)  # taken first: what changes meanwhile is seen next time
        if self._champion is None or seen != self._seen:
            try:
                self._champion = self._first_usable()
            except PolicyFileError as error:
                self._champion = error
            self._seen = seen
        if isinstance(self._champion, PolicyFileError):
            raise self._champion
        return self._champion

    def changes(self) -> list[Change]:
        """All promotions and rollbacks, oldest first.

        Raises:
            PolicyFileError: The record of them is damaged.
        """
        try:
            told = json.loads(self.pointer.read_bytes())
            version = told["format"]
            changes = [_change(value) for value in told["changes"]] if version == _FORMAT else []
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
            raise PolicyFileError(
                f"{self.pointer} cannot be read ({error!r}); remove it, which makes the shipped"
                " policy the champion, and promote anew"
            ) from error
        if version != _FORMAT:
            raise PolicyFileError(
                f"{self.pointer} has format {version!r}, this version reads {_FORMAT}; use the"
                " version of rlsched that wrote it"
            )
        return changes

    def promote(
        self, version: Version, reason: str = "", figures: Mapping[str, Any] | None = None
    ) -> bool:
        """Make a version the champion; False, and no change, when it is already.

        Args:
            version: The version; its file is added where it is not there.
            reason: Why, in words.
            figures: What that rests on, by name. JSON values.

        Raises:
            PolicyFileError: The version cannot be used, or the record of the changes is damaged;
                the champion stays.
            OSError: The folder cannot be written, or stays locked; the champion stays.
        """
        with self._locked():
            changes = self.changes()
            was_whole = self._keep(version)
            if was_whole and champions(changes)[-1:] == [version.name]:
                return False
            change = Change(time.time(), version.name, False, reason, figures or {})
            self._write([*changes, change])
            return True

    def rollback(self, reason: str = "", of: str | None = None) -> bool:
        """Make the champion before the champion again.

        Args:
            reason: Why, in words.
            of: The champion that was judged; nothing happens when there is another by now.

        Returns:
            Whether anything changed.

        Raises:
            VersionNotFoundError: The champion is the shipped version, with none before it.
            PolicyFileError: The record of the changes is damaged; the champion stays.
            OSError: The folder cannot be written, or stays locked; the champion stays.
        """
        with self._locked():
            changes = self.changes()
            names = champions(changes)
            if of is not None and names[-1:] != [of]:
                return False
            if not names:
                raise VersionNotFoundError(
                    "the champion is the shipped policy: there is none before it"
                )
            before = names[-2] if len(names) > 1 else None
            self._write([*changes, Change(time.time(), before, True, reason)])
            return True

    def _first_usable(self) -> Champion:
        troubles: list[str] = []
        names: list[str] = []
        try:
            names = champions(self.changes())[::-1]
        except PolicyFileError as error:
            troubles.append(str(error))
        for name in dict.fromkeys(names):
            try:
                return Champion(self.read(name), self.path(name), "; ".join(troubles))
            except PolicyFileError as error:
                troubles.append(str(error))
        try:
            return Champion(self._shipped(), SHIPPED, "; ".join(troubles))
        except PolicyFileError as error:
            raise PolicyFileError("; ".join([*troubles, str(error)])) from error

    def _shipped(self) -> Version:
        if not SHIPPED.exists():
            raise PolicyFileError(
                "there is no trained policy yet: write the policy rules or goodput, or train one by"
                " `rlsched policy train` and make it the champion by `rlsched policy promote`"
            )
        if SHIPPED not in self._known:
            self._known[SHIPPED] = Version.read(SHIPPED)
        return self._known[SHIPPED]

    # Writing; the lock is held

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(self.folder / "lock")
        if not lock.acquire(LOCK_WAIT_S):
            raise TimeoutError(
                f"{self.folder} has been locked for {LOCK_WAIT_S:g} s by another process that"
                " changes it; try again"
            )
        try:
            for left_behind in self.folder.glob(".*.tmp"):  # by one that was killed
                left_behind.unlink()
            yield
        finally:
            lock.release()

    def _keep(self, version: Version) -> bool:
        """See to it that the file of a version is whole; whether it was."""
        path = self.path(version.name)
        try:
            if Version.read(path).name == version.name:
                return True
        except PolicyFileError:
            pass  # absent or damaged
        version.save(path)
        self._sync()
        return False

    def _write(self, changes: Sequence[Change]) -> None:
        told = {"format": _FORMAT, "changes": [asdict(change) for change in changes]}
        protocol.write_json(self.pointer, told)
        self._sync()

    def _sync(self) -> None:
        """Have the folder's entries on disk, in this order too."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def champions(changes: Sequence[Change]) -> list[str]:
    """The champion and those that would follow it by rollbacks, the champion last."""
    names: list[str] = []
    for change in changes:
        if change.rollback:
            names = names[:-1]
        elif change.champion is not None:
            names.append(change.champion)
    return names


def _change(value: Mapping[str, Any]) -> Change:
    change = Change(**value)
    if change.champion is not None and not _NAME.fullmatch(change.champion):
        raise ValueError(f"{change.champion!r} is the name of no version")
    return change


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _signature(path: Path) -> tuple[int, ...]:
    """What differs whenever the file was replaced: its size alone grows with every change."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_size, found.st_ino, found.st_mtime_ns
