"""Markdown of tables and of text that is not ours."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; its first column is text."""
    first = [heading.capitalize() for heading in headings]
    return [
        "| " + " | ".join(first) + " |",
        "|" + " --- |" * len(first),
        *("| " + " | ".join(map(cell, row)) + " |" for row in rows),
    ]


def cell(text: str) -> str:
    """Text that is not taken for Markdown's or HTML's own signs."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
