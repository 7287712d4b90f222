"""The versions of the policy that learns, and how the champion came about."""

from __future__ import annotations

import os
from typing import Any

from mlflow_rlsched import versions as files
from mlflow_rlsched.policy.checkpoint import PolicyFileError


def overview(versions: files.Versions) -> dict[str, Any]:
    """What ``policy list`` shows.

    Returns:
        ``champion``, its name, or None where none can be used; ``trouble``, why it is not the one
        that was promoted last, or ""; ``versions``, a row for each; ``history``, as below.
    """
    try:
        champion = versions.champion()
        name, trouble = champion.version.name, champion.trouble
    except PolicyFileError as error:
        name, trouble = None, str(error)
    try:
        changes = history(versions)
    except PolicyFileError:  # the champion's trouble says it
        changes = []
    rows = version_rows(versions, name)
    return {"champion": name, "trouble": trouble, "versions": rows, "history": changes}


def version_rows(versions: files.Versions, champion: str | None) -> list[dict[str, Any]]:
    """What is known of each version; one whose file cannot be used has its trouble."""
    rows = []
    for text in [*(["shipped"] if files.SHIPPED.exists() else []), *versions.names()]:
        path = files.SHIPPED if text == "shipped" else versions.path(text)
        row = {"name": text, "path": str(path), "shipped": text == "shipped", "trouble": ""}
        try:
            row["name"] = versions.find(text).name
        except PolicyFileError as error:
            row["trouble"] = str(error)
        rows.append(
            row | {"champion": row["name"] == champion, "written_at": os.path.getmtime(path)}
        )
    return rows


def history(versions: files.Versions) -> list[dict[str, Any]]:
    """All promotions and rollbacks, oldest first.

    Raises:
        PolicyFileError: The record of them is damaged.
    """
    return [
        {
            "time": change.time,
            "change": "rollback" if change.rollback else "promotion",
            "champion": change.champion or "shipped",
            "reason": change.reason,
            "figures": dict(change.figures),
        }
        for change in versions.changes()
    ]
