"""How runs and lengths of time are written for people (stdlib only)."""

from __future__ import annotations

ID_WIDTH = 8


def short(run_id: str) -> str:
    """The beginning of a run id, as people tell runs apart."""
    return run_id[:ID_WIDTH]


def duration(seconds: float) -> str:
    """A length of time in one or two units."""
    rest = max(0, round(seconds))
    parts: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or "0 s"
