"""Whether a run keeps within its memory, and whether that grows without bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.agent.memory import WINDOW_S, MemoryWatch, Place, places, theil_sen
from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.demand import demand, memory_cap
from mlflow_rlsched.devices.interface import Device, Reading

GB = 10**9
A, B = (Device(f"GPU-{i}", "nvidia", i, "H100", memory_bytes=80 * GB) for i in range(2))
SLOT = Device("cpu-0", "cpu", 0, "CPU slot")


def config(**settings: object) -> RunConfig:
    return RunConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "cap"),
    [
        ({}, None),
        ({"memory_cap_gb": 8}, 8 * GB),
        ({"gpu_fraction": 0.25}, 20 * GB),
        ({"gpu_fraction": 0.25, "memory_cap_gb": 8}, 8 * GB),
        ({"gpu_fraction": 0.25, "memory_cap_gb": 30}, 20 * GB),
    ],
)
def test_a_part_of_a_device_is_as_much_of_its_memory(
    settings: dict[str, object], cap: float | None
) -> None:
    assert memory_cap(config(**settings), A) == cap


def test_a_slot_has_no_memory_of_its_own() -> None:
    assert memory_cap(config(gpu_fraction=0.5), SLOT) is None
    assert memory_cap(config(gpu_fraction=0.5, memory_cap_gb=2), SLOT) == 2 * GB


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=100), st.integers(1, 2**50))
def test_what_is_reserved_on_a_device_never_exceeds_it(fractions: list[float], size: int) -> None:
    """As many of the runs as a device holds by the hundredths that they lease."""
    device = Device("GPU-1", "nvidia", 0, "H100", memory_bytes=size)
    left, reserved = 100, 0.0
    for fraction in fractions:
        asked = config(gpu_fraction=fraction)
        amount = demand(asked, nested=False, kind="nvidia").amount
        if amount <= left:
            left -= amount
            cap = memory_cap(asked, device)
            reserved += size if cap is None else cap
    assert reserved <= size * (1 + 1e-12)


def test_memory_is_on_the_accelerators_or_else_on_the_host() -> None:
    capped = config(memory_cap_gb=8)
    assert places(capped, [A, B], 2, 500 * GB) == [
        Place("device GPU-0", 8 * GB, 80 * GB, is_own=True),
        Place("device GPU-1", 8 * GB, 80 * GB, is_own=True),
    ]
    shared = config(gpu_fraction=0.5)
    assert places(shared, [A], 1, GB) == [Place("device GPU-0", 40 * GB, 80 * GB, is_own=False)]
    slots = [SLOT] * 4
    assert places(capped, slots, 2, 500 * GB) == [Place("the host", 16 * GB, 500 * GB)]
    assert places(config(), [], 0, 500 * GB) == [Place("the host", None, 500 * GB)]


def on_devices(*used: int | None) -> Sample:
    return Sample({}, tuple(Reading() for _ in used), device_bytes=used)


def exceeded(watch: MemoryWatch, samples: Iterable[Sample]) -> list[bool]:
    found = []
    for now, sample in enumerate(samples):
        watch.observe(sample, 64, math.inf, float(now))
        found.append(watch.exceeded is not None)
    return found


def test_two_samples_in_a_row_above_the_cap_end_an_attempt() -> None:
    watch = MemoryWatch(places(config(memory_cap_gb=8), [A, B], 2, GB))
    used = [(9 * GB, 8 * GB), (8 * GB, 9 * GB), (None, None), (1 * GB, 1 * GB), (1 * GB, 9 * GB)]
    assert exceeded(watch, (on_devices(*pair) for pair in used)) == [False] * 5
    assert exceeded(watch, [on_devices(GB, 10 * GB)]) == [True]
    text = "its processes used 10.00 GB of device GPU-1, above its cap of 8.00 GB"
    assert watch.exceeded == text


def test_the_processes_of_a_run_on_slots_share_one_cap() -> None:
    watch = MemoryWatch(places(config(memory_cap_gb=1), [SLOT] * 2, 2, 500 * GB))
    assert exceeded(watch, [Sample({}, memory_bytes=2 * GB)] * 3) == [False] * 3
    assert exceeded(watch, [Sample({}, memory_bytes=2 * GB + 1)] * 2) == [False, True]


def test_without_a_cap_nothing_is_exceeded() -> None:
    watch = MemoryWatch(places(config(), [A], 1, GB))
    assert exceeded(watch, [on_devices(80 * GB)] * 3) == [False] * 3


def warnings(
    used: Callable[[float], float],
    left_s: float = math.inf,
    batch: Callable[[float], int] = lambda now: 64,
    seconds: float = 2 * WINDOW_S,
    size: float | None = 80 * GB,
) -> list[tuple[str, str]]:
    """What is said of memory that is a function of the time, sampled every 5 s."""
    watch = MemoryWatch([Place("device GPU-0", None, size)])
    found = []
    for step in range(int(seconds / 5)):
        now = 5.0 * step
        said = watch.observe(on_devices(int(used(now))), batch(now), left_s, now)
        found += [] if said is None else [said]
    return found


def growing(now: float) -> float:
    """5 MB a second: 80 GB are full after four and a half hours."""
    return 8 * GB + 5e6 * now


def test_memory_that_will_be_full_before_the_end_is_a_leak() -> None:
    noise = random.Random(3)
    found = warnings(lambda now: growing(now) + noise.gauss(0, 3e8), left_s=5 * 3600)
    place, text = found[0]
    assert place == "device GPU-0"
    assert text.startswith("memory of device GPU-0 grows by ")
    assert "at an unchanged batch size of 64" in text
    assert "GB of 80.00 GB are used" in text


@pytest.mark.parametrize("is_own", [True, False])
def test_processes_that_cannot_be_told_apart_count_on_a_device_of_ones_own(is_own: bool) -> None:
    watch = MemoryWatch([Place("device GPU-0", 9 * GB, 80 * GB, is_own)])
    found = []
    for now in range(0, int(2 * WINDOW_S), 5):
        reading = Reading(memory_used_bytes=int(growing(now)))
        sample = Sample({}, (reading,), device_bytes=(None,))
        found.append(watch.observe(sample, 64, math.inf, float(now)))
    assert any(found) == is_own
    assert watch.exceeded is None, "it may be a stranger's"


def test_a_run_that_ends_before_its_memory_is_full_has_no_leak() -> None:
    assert warnings(growing, left_s=3 * 3600) == []
    assert warnings(lambda now: 8 * GB + 5e5 * now) == [], "full in 40 hours"
    assert warnings(growing, size=None) == []


def test_nothing_is_said_before_there_is_a_whole_window() -> None:
    assert warnings(growing, seconds=WINDOW_S - 30) == []
    assert warnings(growing) != []


@pytest.mark.parametrize(
    "used",
    [
        lambda now: 8 * GB + (20 * GB if now > 600 else 0),  # another phase
        lambda now: 40 * GB * (1 - math.exp(-now / 100)),  # caches that fill
        lambda now: 8 * GB + 5e7 * (now % 100),  # freed again and again
        lambda now: 70 * GB if now % 300 < 5 else 8 * GB,  # peaks of an evaluation
        lambda now: 60 * GB - 5e6 * now,
    ],
)
def test_what_does_not_grow_without_bound_is_no_leak(used: Callable[[float], float]) -> None:
    assert warnings(used) == []


def test_another_batch_size_starts_anew() -> None:
    assert warnings(growing, batch=lambda now: 64 + int(now / 600)) == []


def test_the_slope_does_not_follow_outliers() -> None:
    points = [(float(x), 2.0 * x) for x in range(20)]
    points[3], points[17] = (3.0, 1e9), (17.0, -1e9)
    assert theil_sen(points) == pytest.approx(2.0)
