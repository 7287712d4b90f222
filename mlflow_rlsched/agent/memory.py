"""Whether a run keeps within its memory, and whether that grows without bound (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import memory_cap
from mlflow_rlsched.devices.interface import Device

SAMPLES_ABOVE = 2
"""Samples in a row above the cap that end an attempt: one alone may be freed again at once."""

WINDOW_S = 1200.0
POINTS = 60
"""Readings in the window over which growth is judged."""

LEAST_GROWTH = 0.01
"""Part of the limit by which memory has to grow over the window to count as growing."""

HORIZON_S = 86400.0
"""How far growth is followed into the future of a run whose end is not known."""

HOST = "the host"
_GIGA = 1e9


@dataclass(frozen=True)
class Place:
    """Where a run's memory is.

    Attributes:
        name: For people.
        cap: Most that the run may use there, bytes, or None.
        size: What there is, bytes, or None when unknown.
        is_own: Whether nobody else uses it, so that all that is used of it is the run's.
    """

    name: str
    cap: float | None
    size: float | None
    is_own: bool = False

    @property
    def limit(self) -> float | None:
        """What the run can have there at most, bytes; None when unknown."""
        return min((x for x in (self.cap, self.size) if x is not None), default=None)


def tree_cap(config: RunConfig, gpus: int) -> float | None:
    """Most memory of the processes of a run without accelerators, all together, bytes."""
    cap = memory_cap(config, None)
    return None if cap is None else cap * max(1, gpus)


def places(
    config: RunConfig, devices: Sequence[Device], gpus: int, host_memory: int
) -> list[Place]:
    """Where a run's memory is: on its accelerators, or on the host when it has none.

    Args:
        config: The run's configuration.
        devices: What it holds.
        gpus: How many of its ``gpus`` that is.
        host_memory: Memory of the host, bytes.
    """
    whole = config.gpu_fraction == 1
    found = [
        Place(f"device {device.id}", memory_cap(config, device), device.memory_bytes, whole)
        for device in devices
        if device.kind != "cpu"
    ]
    return found or [Place(HOST, tree_cap(config, gpus), host_memory)]


class MemoryWatch:
    """Follows the memory of one attempt.

    Args:
        places: Where its memory is.

    Attributes:
        host_cap: Most memory of the host that its processes may use, bytes, or None.
        exceeded: How it went above its cap, as one sentence; None while it keeps within it.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._on_host = places[0].name == HOST
        self.host_cap = places[0].cap if self._on_host else None
        self.exceeded: str | None = None
        self._places = places
        self._above = [0] * len(places)
        self._growths = [Growth() for _ in places]
        self._batch_size: int | None = None

    def observe(
        self, sample: Sample, batch_size: int | None, left_s: float, now: float
    ) -> tuple[str, str] | None:
        """Take in a sample.

        Args:
            sample: The sample.
            batch_size: Batch size in use, or None when unknown.
            left_s: Seconds that the run is expected to go on; infinite when unknown.
            now: Time of the sample, seconds of a clock that only runs forward.

        Returns:
            Name of a place that its memory would fill before its end, and a sentence on it.
        """
        if batch_size != self._batch_size:
            self._batch_size = batch_size
            self._growths = [Growth() for _ in self._places]
        own = (sample.memory_bytes,) if self._on_host else sample.device_bytes
        warning = None
        for index, (place, used) in enumerate(zip(self._places, own, strict=True)):
            if used is not None:
                self._keep_to_cap(index, place, used)
            elif place.is_own:
                used = sample.readings[index].memory_used_bytes
            if used is None:
                continue
            growth = self._growths[index]
            if growth.add(now, used):
                warning = warning or _leak(place, growth, used, batch_size, left_s)
        return warning

    def _keep_to_cap(self, index: int, place: Place, used: float) -> None:
        is_above = place.cap is not None and used > place.cap
        self._above[index] = self._above[index] + 1 if is_above else 0
        if place.cap is not None and self._above[index] >= SAMPLES_ABOVE:
            self.exceeded = (
                f"its processes used {used / _GIGA:.2f} GB of {place.name}, above its cap of"
                f" {place.cap / _GIGA:.2f} GB"
            )


def _leak(
    place: Place, growth: Growth, used: float, batch_size: int | None, left_s: float
) -> tuple[str, str] | None:
    rate, limit = growth.per_s(), place.limit
    if rate is None or limit is None or rate * WINDOW_S < LEAST_GROWTH * limit:
        return None
    full_s = max(0.0, limit - used) / rate
    if full_s > min(left_s, HORIZON_S):
        return None
    size = "" if batch_size is None else f" at an unchanged batch size of {batch_size}"
    text = (
        f"memory of {place.name} grows by {60 * rate / 1e6:.3g} MB a minute{size}:"
        f" {used / _GIGA:.2f} GB of {limit / _GIGA:.2f} GB are used, and in about"
        f" {full_s / 3600:.1f} h it would be full, before the run is expected to end; look for what"
        " the training keeps and does not need (losses with their graph, lists that only grow)"
    )
    return place.name, text


class Growth:
    """Memory over a window of time."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)

    def add(self, now: float, used: float) -> bool:
        """Take in a reading, unless the last that was taken in is too fresh; whether it was."""
        if self._points and now - self._points[-1][0] < WINDOW_S / POINTS:
            return False
        self._points.append((now, used))
        return True

    def per_s(self) -> float | None:
        """Bytes a second by which memory grows in both halves of the window; None until it is full.

        The smaller of the two halves' Theil-Sen slopes (Sen, JASA 63, 1968), so that neither a
        step, nor what levels off, nor a few outliers count as growth.
        """
        if len(self._points) < POINTS:
            return None
        points = list(self._points)
        return min(theil_sen(points[: POINTS // 2]), theil_sen(points[POINTS // 2 :]))


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """Median of the slopes between all pairs of points with different abscissas."""
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))
