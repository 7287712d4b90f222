"""Stores that several users of a host share (stdlib only).

A store is shared when the group of its file may write it. An administrator made that file and those
that SQLite keeps beside it, in a folder where nobody else can make or remove any: who could, would
put a link to another user's file in the place of one that SQLite is about to write.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SQLITE = "sqlite:///"
SIDE_FILES = ("-wal", "-shm", ".lock")
"""Ends of the names of the files that a store in use has beside its own."""

HOW_TO = "docs/deploy.md tells how a shared store is made"


def is_shared(store: str) -> bool:
    """Whether several users may write the store at this URL."""
    try:
        return bool(os.stat(store.removeprefix(SQLITE)).st_mode & stat.S_IWGRP)
    except OSError:
        return False


def requests_dir(store: str) -> Path:
    """Where administrators leave their requests, next to a shared store."""
    return Path(store.removeprefix(SQLITE) + "-requests")


def agents_dir(store: str) -> Path:
    """Where each user of a shared store has a folder, which an administrator made, next to it."""
    return Path(store.removeprefix(SQLITE) + "-agents")


def why_unsafe(path: Path, own: Path) -> str | None:
    """Why a shared store cannot be used safely, and what to do; None when it can.

    Args:
        path: Its file.
        own: The folder of this user beside it.
    """
    if os.geteuid() == 0:
        return (
            "it is shared, and root does not open what others write, nor could its users make anew"
            " what SQLite removes for root: use another account (`sudo -H -u NAME rlsched …`)"
        )
    if not _is_private(own):
        return (
            "it is shared, and there is no folder of yours:"
            f" `sudo install -d -m 0700 -o {own.name} {own}` ({HOW_TO})"
        )
    for folder in own.parents:
        status = folder.stat()
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if folder not in (own.parent, path.parent) and status.st_mode & stat.S_ISVTX:
            others_write = 0  # what they do not own in there they cannot move
        if others_write or status.st_uid not in (0, os.geteuid()):
            return (
                f"it is shared, and others can replace files in {folder}: `sudo chown root {folder}"
                f" && sudo chmod go-w {folder}` ({HOW_TO})"
            )
    for file in (path, *(Path(f"{path}{end}") for end in SIDE_FILES)):
        try:
            status = file.lstat()
        except FileNotFoundError:
            return f"it is shared, and {file} is missing: {HOW_TO}"
        if not stat.S_ISREG(status.st_mode) or status.st_mode & stat.S_IWOTH:
            return f"it is shared, and {file} is no file of a group alone: {HOW_TO}"
    return None


def _is_private(folder: Path) -> bool:
    """Whether that is a folder of this user's that nobody else can look into."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_own and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
