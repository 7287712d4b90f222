from __future__ import annotations

import json

import pytest

from mlflow_rlsched.policy.history import History, Memory
from mlflow_rlsched.policy.interval import DeviceUse, Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.measuring import observe
from mlflow_rlsched.policy.memory import after_oom, bytes_per_sample, memory_limit
from tests.policy.builders import interval

GB = 1e9


def test_two_batch_sizes_give_the_slope() -> None:
    history = History(memory=(Memory(64, 6 * GB), Memory(80, 7 * GB)), memory_base=5 * GB)
    assert bytes_per_sample(history) == pytest.approx(GB / 16)


def test_one_batch_size_gives_what_came_above_the_base() -> None:
    history = History(memory=(Memory(64, 6 * GB),), memory_base=2.8 * GB)
    assert bytes_per_sample(history) == pytest.approx(0.05 * GB)


def test_a_slope_that_is_not_positive_falls_back_to_the_base() -> None:
    history = History(memory=(Memory(80, 7 * GB), Memory(64, 7 * GB)), memory_base=3.8 * GB)
    assert bytes_per_sample(history) == pytest.approx(0.05 * GB)


def test_nothing_measured_is_nothing_known() -> None:
    assert bytes_per_sample(History()) is None
    flat = History(memory=(Memory(64, 6 * GB),), memory_base=6 * GB)
    assert bytes_per_sample(flat) is None


def devices(*totals: float | None) -> Interval:
    return interval(devices=[DeviceUse(memory_total=total) for total in totals])


def test_the_limit_is_the_smallest_device_or_the_cap() -> None:
    used = observe(History(), devices(16 * GB, 24 * GB), Limits())
    assert memory_limit(used, Limits()) == 16 * GB
    assert memory_limit(used, Limits(memory_cap_bytes=8 * GB)) == 8 * GB
    broken = observe(History(), devices(0.0, float("nan")), Limits())
    assert memory_limit(broken, Limits()) is None
    assert memory_limit(broken, Limits(memory_cap_bytes=8 * GB)) == 8 * GB


@pytest.mark.parametrize(
    ("totals", "limit"),
    [
        ((), 16),
        ((None, None), 16),
        ((None, 24 * GB), 16),  # the smaller device was not read
        ((None, 12 * GB), 12),
        ((24 * GB, 40 * GB), 24),  # on other devices
    ],
)
def test_the_limit_is_kept_where_a_device_was_not_read(
    totals: tuple[float | None, ...], limit: int
) -> None:
    history = observe(History(), devices(16 * GB, 24 * GB), Limits())
    stored = History.from_json(json.loads(json.dumps(history.to_json())))
    assert memory_limit(observe(stored, devices(*totals), Limits()), Limits()) == limit * GB


@pytest.mark.parametrize(
    ("batch", "ooms", "each", "base", "limit", "floor", "size"),
    [
        (100, 1, 0.1 * GB, GB, 4 * GB, 1, 85),  # the first time: 15 % less, whatever is measured
        (100, 2, 0.1 * GB, GB, 4 * GB, 1, 26),  # (0.92 x 4 - 1) / 0.1
        (100, 2, 0.01 * GB, GB, 4 * GB, 1, 85),  # the prediction is not smaller
        (100, 2, None, GB, 4 * GB, 1, 85),
        (100, 2, 0.1 * GB, None, 4 * GB, 1, 85),
        (100, 2, 0.1 * GB, GB, None, 1, 85),
        (100, 2, 0.1 * GB, GB, 4 * GB, 32, 32),
        (2, 1, None, None, None, 1, 1),
        (32, 5, None, None, None, 32, None),
    ],
)
def test_the_size_after_running_out_of_memory(
    batch: int,
    ooms: int,
    each: float | None,
    base: float | None,
    limit: float | None,
    floor: int,
    size: int | None,
) -> None:
    found, sentence = after_oom(batch, ooms, each, base, limit, floor)
    assert found == size
    assert str(batch) in sentence
    if size is None:
        assert "smallest batch size allowed" in sentence


def test_it_shrinks_to_the_floor_and_then_ends() -> None:
    batch: int | None = 64
    sizes = []
    while batch is not None:
        sizes.append(batch)
        batch, _ = after_oom(batch, len(sizes), None, None, None, 16)
    assert sizes == [64, 54, 45, 38, 32, 27, 22, 18, 16]
