"""``warnings.json`` of a run directory: what a person should know, although the run goes on.

Only the agent writes it, once for each attempt and subject.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol

NAME = "warnings.json"


def add(run_dir: Path, attempt: int, about: str, text: str) -> bool:
    """Add a warning.

    Args:
        run_dir: The run directory.
        attempt: The attempt that it is about.
        about: What of it: an attempt is warned of that once.
        text: One sentence for people.

    Returns:
        Whether it is new.

    Raises:
        OSError: It cannot be written.
    """
    known = read(run_dir)
    if any((item["attempt"], item["about"]) == (attempt, about) for item in known):
        return False
    item = {"time": time.time(), "attempt": attempt, "about": about, "text": text}
    protocol.write_json(run_dir / NAME, {"warnings": [*known, item]})
    return True


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All warnings (``time``, ``attempt``, ``about``, ``text``), the oldest first."""
    found = (protocol.read_json(run_dir / NAME) or {}).get("warnings")
    wanted = {"time", "attempt", "about", "text"}
    return [
        item
        for item in (found if isinstance(found, list) else [])
        if isinstance(item, dict) and wanted <= item.keys()
    ]
