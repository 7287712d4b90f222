"""The files of a run that end up with its artifacts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

MAX_OUTPUT_BYTES = 32 * 1024 * 1024
"""Size of an attempt's output in the artifact; the run directory keeps all of it."""


def upload(client: Any, run_id: str, run_dir: Path) -> None:
    """Upload what the run printed and the decisions on it, under ``rlsched/``.

    Args:
        client: An ``MlflowClient`` of the run's tracking server.
        run_id: The run.
        run_dir: Its directory.

    Raises:
        Exception: What the artifact store raises, of any kind, or an OSError.
    """
    _collect_output(run_dir)
    for name in ("output.log", "decisions.jsonl"):
        if (run_dir / name).exists():
            client.log_artifact(run_id, str(run_dir / name), "rlsched")


def _collect_output(run_dir: Path) -> None:
    """Put the output of all attempts into one file, the middle left out when it is huge."""
    attempts = sorted(
        (run_dir / "attempts").glob("*/output.log"), key=lambda path: int(path.parent.name)
    )
    with open(run_dir / "output.log", "wb") as whole:
        for path in attempts:
            if len(attempts) > 1:
                whole.write(f"=== attempt {path.parent.name} ===\n".encode())
            with open(path, "rb") as part:
                size = part.seek(0, os.SEEK_END)
                part.seek(0)
                if size > MAX_OUTPUT_BYTES:
                    whole.write(part.read(MAX_OUTPUT_BYTES // 2))
                    whole.write(b"\n[... left out; the whole is in the run directory ...]\n")
                    part.seek(-MAX_OUTPUT_BYTES // 2, os.SEEK_END)
                shutil.copyfileobj(part, whole)
