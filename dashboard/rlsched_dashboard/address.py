"""What an address asks for, read with care: what somebody spoilt there is ignored."""

from __future__ import annotations

import json
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST = 15
"""Digits of a whole number that anybody means."""


def value(text: str | None, otherwise: T) -> T:
    """What is written as JSON, where it is of the kind of ``otherwise``."""
    try:
        found = json.loads(text) if text else otherwise
    except (ValueError, RecursionError):
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


def pair(text: str | None) -> list[Any] | None:
    """The two ends of a zoom, whatever they are."""
    found: list[Any] = value(text, [])
    return found if len(found) == 2 else None


def whole(text: str | None) -> int | None:
    """A whole number that is not below 0."""
    return int(text) if text and text.isdecimal() and len(text) <= LONGEST else None
