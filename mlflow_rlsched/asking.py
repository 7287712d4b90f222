"""Asking a tracking server, which may be silent or absent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

SERVER_WAIT_S = 20.0


def ask_server(action: Callable[[], object]) -> str | None:
    """Ask something of a tracking server, which may be silent.

    Returns:
        What went wrong, None when the action ended well within ``SERVER_WAIT_S``.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    outcome: list[str | None] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # any failure is a finding
            lines = str(error).strip().splitlines() or [type(error).__name__]
            outcome.append(lines[0][:300])
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SERVER_WAIT_S)
    return outcome[0] if outcome else f"no answer within {SERVER_WAIT_S:g} s"


def tracking_store_is_there(uri: str) -> bool:
    """False where asking would make a tracking database."""
    file = uri.removeprefix("sqlite:///")
    return file == uri or Path(file).exists()
