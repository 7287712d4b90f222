"""Who asked for what, where users share a store that each of them can write.

What a user submits or asks for is signed (HMAC-SHA256) by a key of the user's own, which only the
user and so the user's agent can read. An administrator has no key of other users: the kernel
vouches for what an administrator asks for, by the owner of a file that says the same, in a folder
of the store's. A submission itself must be signed: nobody runs anything as somebody else.

Each statement names the run and the time at which it was queued, so that it is worth nothing for
the next turn of the same run.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import pwd
import secrets
import stat
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched.daemon import agent_folder, user_name
from mlflow_rlsched.sharing import is_shared, requests_dir
from mlflow_rlsched.store import StoreError, Task, TaskSpec

if TYPE_CHECKING:
    from mlflow_rlsched.config import PoolRules

KEY_BYTES = 32
SPEC, QUEUE, PRIORITY, CANCEL = "spec", "queue", "priority", "cancel"
"""What proofs prove: the specification, that it was queued at that time, its priority, its end."""


LONGEST = 4096
"""Bytes of a request, at most."""

DRAFT_S = 3600.0
"""Age at which what is no request is none that is just being written."""


class TrustError(OSError):
    """A key or a folder of requests cannot be used; the text says why and what to do."""


def shared_rules(store: str) -> PoolRules | None:
    """What the administrator says of a store that users share; None for one's own store.

    Raises:
        StoreError: The administrator's file cannot be used.
    """
    from mlflow_rlsched.config import ConfigError, pool_rules

    try:
        return pool_rules() if is_shared(store) else None
    except ConfigError as error:
        raise StoreError(str(error)) from error


def queue_time(before: Task | None) -> float:
    """Now, or the next moment after the task was queued before, if the clock was set back."""
    now = time.time()
    return now if before is None else max(now, math.nextafter(before.submitted_at, math.inf))


def proofs_of_submission(store: str, spec: TaskSpec, priority: int, now: float) -> dict[str, str]:
    """Signatures of a submission to a shared store by its user.

    Args:
        store: URL of the store.
        spec: What is submitted.
        priority: Its priority.
        now: When it is queued.

    Raises:
        OSError: The user's key cannot be read or made.
    """
    signature = sign(store, _specification(spec))
    return {
        SPEC: signature,
        QUEUE: sign(store, statement(QUEUE, spec.run_id, now, signature)),
        PRIORITY: sign(store, statement(PRIORITY, spec.run_id, now, priority)),
    }


def proofs_of_retry(store: str, task: Task, now: float) -> dict[str, str]:
    """What proves that this user may queue a task again.

    Raises:
        OSError: See ``prove``.
    """
    queue = statement(QUEUE, task.run_id, now, task.proofs.get(SPEC, ""))
    priority = statement(PRIORITY, task.run_id, now, task.priority)
    return {QUEUE: prove(store, task, queue), PRIORITY: prove(store, task, priority)}


def statement(what: str, run_id: str, queued_at: float, value: Any) -> str:
    """What a proof is of, as text.

    Args:
        what: ``QUEUE``, ``PRIORITY`` or ``CANCEL``.
        run_id: The run.
        queued_at: When it was queued.
        value: The signature of the specification, the priority, or who asks for the end.
    """
    return json.dumps([what, run_id, float(queued_at), value])


def prove(store: str, task: Task, text: str) -> str:
    """Prove that this user says so: by a signature, or as an administrator by a file.

    In a store of one's own there is nothing to prove, and the key may be missing or spoiled.

    Raises:
        OSError: The key cannot be read or made, or the file not be written.
    """
    if not is_shared(store):
        return ""
    if task.spec.user == user_name():
        return sign(store, text)
    _vouch(requests_dir(store), text)
    return ""


def prove_request(store: str, task: Task, what: str, value: Any) -> str:
    """Prove that this user asks that of a task as it is queued now.

    Args:
        store: URL of the store.
        task: The task.
        what: ``PRIORITY`` or ``CANCEL``.
        value: See ``statement``.

    Raises:
        OSError: See ``prove``.
    """
    return prove(store, task, statement(what, task.run_id, task.submitted_at, value))


def is_signed_submission(store: str, task: Task) -> bool:
    """Whether this user's key signed the specification of a task."""
    return is_signed(store, _specification(task.spec), task.proofs.get(SPEC))


def sign(store: str, text: str) -> str:
    """This user's signature of a text.

    Raises:
        OSError: The user's key cannot be read or made.
    """
    return hmac.new(_key(store), text.encode(), hashlib.sha256).hexdigest()


def is_signed(store: str, text: str, signature: object) -> bool:
    """Whether that is this user's signature of the text."""
    return isinstance(signature, str) and hmac.compare_digest(
        sign(store, text).encode(), signature.encode()
    )


def is_vouched(store: str, text: str, users: Collection[str]) -> bool:
    """Whether one of these users says so, by a file that the kernel knows for theirs.

    Others could have written a file that they may write, and put one of these users' own here
    that says something else: so only what its owner alone can write counts, for what it says.
    """
    try:
        status, said = _read(requests_dir(store) / _digest(text))
    except (OSError, ValueError):
        return False
    return (
        not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and status.st_uid in _numbers(users)
        and said == text
    )


def remove_answered(store: str, is_over: Callable[[str, float], bool]) -> None:
    """Remove the requests of administrators that ask for nothing any more.

    Those of a turn that is over, and what cannot be read as a request: where it is not just being
    written. What is of a turn that the store does not know yet is kept: a command first leaves
    its request, and then queues the run.

    Args:
        store: URL of the store.
        is_over: Whether a run waits and runs no more, or again, that was queued at a time.

    Raises:
        OSError: The folder cannot be read, or a file not be removed.
    """
    for path in requests_dir(store).iterdir():
        with contextlib.suppress(FileNotFoundError):  # another agent removes them too
            if _is_answered(path, is_over):
                path.unlink()


def _is_answered(path: Path, is_over: Callable[[str, float], bool]) -> bool:
    try:
        _, run_id, queued_at, _ = json.loads(_read(path)[1])
        return is_over(str(run_id), float(queued_at))
    except (OSError, ValueError, TypeError, RecursionError):
        status = path.lstat()
        return not stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > DRAFT_S


def _read(path: Path) -> tuple[os.stat_result, str]:
    """A file in a folder where others may have put anything, and what it says.

    Raises:
        OSError: It is no file, or cannot be read.
        ValueError: It says what no request says.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no file")
        return status, os.read(file, LONGEST).decode()
    finally:
        os.close(file)


def _specification(spec: TaskSpec) -> str:
    """The one text of a specification, before and after it was in a store."""
    return json.dumps(json.loads(json.dumps(asdict(spec))), sort_keys=True)


def _key(store: str) -> bytes:
    path = agent_folder(store) / "key"
    try:
        return _read_key(path)
    except FileNotFoundError:
        _make_key(path)
        return _read_key(path)


def _read_key(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise TrustError(
                f"{path} signs in your name, and others can read it or it is theirs: remove it,"
                " and the next submission makes another one (what waits must be submitted again)"
            )
        key = os.read(file, KEY_BYTES + 1)
    finally:
        os.close(file)
    if len(key) != KEY_BYTES:
        raise TrustError(f"{path} is no key: remove it, and the next submission makes one")
    return key


def _make_key(path: Path) -> None:
    """Make the key, complete; of several that do so at once, one is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".key.{secrets.token_hex(8)}")
    try:
        _write(draft, secrets.token_bytes(KEY_BYTES), 0o600)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _vouch(folder: Path, text: str) -> None:
    digest = _digest(text)
    draft = folder / f".{digest}.{secrets.token_hex(8)}"
    try:
        _write(draft, text.encode(), 0o644)
        os.replace(draft, folder / digest)
    except OSError as error:
        raise TrustError(
            f"an administrator's requests are files in {folder}, where none can be made:"
            f" {error.strerror}; `sudo install -d -m 0770 -g GROUP {folder}`"
        ) from error


def _write(path: Path, data: bytes, mode: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(file, mode)
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers(users: Collection[str]) -> set[int]:
    found = set()
    for user in users:
        with contextlib.suppress(KeyError):  # whoever left the host
            found.add(pwd.getpwnam(user).pw_uid)
    return found
