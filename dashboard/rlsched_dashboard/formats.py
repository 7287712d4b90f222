"""How numbers and times are written for people."""

from __future__ import annotations

import math
from datetime import datetime
from zoneinfo import ZoneInfo

MISSING = "—"

FIRST_S, LAST_S = -62_000_000_000.0, 253_000_000_000.0
"""Points in time that calendars have, in every zone: the years 5 to 9987."""


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; a dash where there is none."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.{max(0, digits - 2)}e}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(fraction: float | None) -> str:
    """A fraction in whole percent."""
    return MISSING if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.0f} %"


def hours(device_s: float) -> str:
    """Device-seconds as hours; as minutes below one."""
    if abs(device_s) < 3600:
        return f"{round(device_s / 60, 1) + 0.0:g} min"
    return f"{device_s / 3600:,.1f} h"


def size(count: float | None) -> str:
    """Bytes in a readable unit."""
    if count is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def when(seconds: float | None, zone: str) -> str:
    """A point in time, given in seconds since the epoch, on the clocks of a time zone."""
    if seconds is None:
        return MISSING
    return _clock(seconds, place(zone)).strftime("%Y-%m-%d %H:%M:%S")


def place(zone: str) -> ZoneInfo:
    """A time zone by its name; UTC where this host does not know it."""
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")


def zoned(seconds: list[float], zone: str) -> list[str]:
    """Points of a time axis: Plotly takes what a clock of the zone shows."""
    there = place(zone)
    return [
        _clock(each, there).isoformat(sep=" ", timespec="milliseconds")[:23] for each in seconds
    ]


def _clock(seconds: float, there: ZoneInfo) -> datetime:
    # Times are what people logged, in milliseconds or in what they took for it.
    return datetime.fromtimestamp(min(max(FIRST_S, seconds), LAST_S), there)
