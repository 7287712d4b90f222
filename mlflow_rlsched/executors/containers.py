"""Docker containers of attempts: they outlive the client that started them (stdlib only)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mlflow_rlsched import protocol

REMOVAL_S = 60.0
"""How long a removal may take: an engine that hangs must not hold up the end of an attempt."""


def begin_removal(container: str, run_dir: Path) -> subprocess.Popen[bytes] | None:
    """Start to remove a container, be it running, created or gone.

    Args:
        container: Its name.
        run_dir: Run directory: the submitter's environment says which engine it is on.

    Returns:
        The process that removes it, or None when there is no ``docker`` command.
    """
    environment = protocol.read_json(run_dir / "environment.json") or {}
    try:
        return subprocess.Popen(
            ["docker", "rm", "--force", container],
            env={**os.environ, **{k: str(v) for k, v in environment.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
