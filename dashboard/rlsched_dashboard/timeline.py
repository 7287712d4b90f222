"""The time axis that all charts of a run share: clock or elapsed time, and what is zoomed to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from rlsched_dashboard import formats
from rlsched_dashboard.sampling import MOST, Numbers, min_max
from rlsched_dashboard.sources.histories import History

_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"))


@dataclass(frozen=True)
class Timeline:
    """How times of a run are placed on an axis.

    Attributes:
        start: Seconds since the epoch that count as 0.
        length_s: Seconds from there to the newest point.
        zone: Time zone of the clock.
        elapsed: Whether the axis counts from ``start`` instead of showing a clock.
        zoom: What is zoomed to, seconds since the epoch, or None.
    """

    start: float
    length_s: float
    zone: str
    elapsed: bool = False
    zoom: tuple[float, float] | None = None

    @property
    def unit(self) -> tuple[float, str]:
        """Seconds of the axis' unit, and its name."""
        for above, seconds, name in _UNITS:
            if self.length_s > above:
                return seconds, name
        return 1.0, "seconds"

    def places(self, times: Iterable[float]) -> list[Any]:
        """Places of points in time on the axis."""
        if not self.elapsed:
            return list(formats.zoned(list(times), self.zone))
        unit, _ = self.unit
        return [round((time - self.start) / unit, 4) for time in times]

    def time(self, place: Any) -> float:
        """The point in time at a place of the axis."""
        if self.elapsed:
            return self.start + float(place) * self.unit[0]
        text = str(place).replace("T", " ")[:23]
        return datetime.fromisoformat(text).replace(tzinfo=formats.place(self.zone)).timestamp()

    def whole(self) -> list[Any]:
        """Where the whole run begins and ends on the axis."""
        return self.places((self.start, self.start + self.length_s))

    def axis(self) -> dict[str, Any]:
        """The axis, as Plotly has it: all charts show the same, whatever their points cover."""
        title = {"title": {"text": f"{self.unit[1]} since the start"}} if self.elapsed else {}
        return {
            "type": "linear" if self.elapsed else "date",
            "autorange": False,
            "range": self.whole() if self.zoom is None else self.places(self.zoom),
            "uirevision": str(self.zoom),  # one zoom for all, not what each was dragged to
            **title,
        }

    def thinned(self, history: History, most: int = MOST) -> tuple[Numbers, Numbers, Numbers]:
        """Points of a history to draw: times, values and steps, those that are zoomed to.

        One point on each side of the zoom is kept, so that lines reach the edges.
        """
        first, last = 0, len(history)
        if self.zoom is not None:
            low, high = np.searchsorted(history.times, self.zoom)
            first, last = max(0, int(low) - 1), min(last, int(high) + 1)
        times, values = history.times[first:last], history.values[first:last]
        kept = min_max(times, values, most)
        return times[kept], values[kept], history.steps[first:last][kept]
