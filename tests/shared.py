"""A store that users share, for tests of one process, which stands for all of them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_rlsched.daemon import user_name
from mlflow_rlsched.sharing import SIDE_FILES, SQLITE

NOBODY = 65534


@contextlib.contextmanager
def shared_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a new shared store; meanwhile this process is not root's, who opens none."""
    root = Path(tempfile.mkdtemp())
    user, mask = os.geteuid(), os.umask(0o022)
    monkeypatch.setenv("RLSCHED_HOME", str(root / "home"))
    monkeypatch.setenv("RLSCHED_POOL_FILE", str(root / "pool.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / "config"))  # this user reads no other one
    if user == 0:
        os.chown(root, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        (root / "pool" / "pool.db-requests").mkdir(parents=True)
        (root / "pool" / "pool.db-agents").mkdir()
        for name in {user_name(), pwd.getpwuid(os.geteuid()).pw_name}:
            (root / "pool" / "pool.db-agents" / name).mkdir(0o700)
        for end in ("", *SIDE_FILES):
            file = root / "pool" / f"pool.db{end}"
            file.touch()
            file.chmod(0o660)
        yield f"{SQLITE}{root}/pool/pool.db"
    finally:
        os.seteuid(user)
        os.umask(mask)
        shutil.rmtree(root)
