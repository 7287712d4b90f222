from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.history import History, Memory
from mlflow_rlsched.policy.interval import DeviceUse, Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.measuring import observe
from mlflow_rlsched.policy.memory import after_oom, bytes_per_sample, memory_limit, sparing
from mlflow_rlsched.policy.proposal import Proposal
from tests.policy.builders import interval, report

GB = 1e9


def test_two_batch_sizes_give_the_slope() -> None:
    history = History(memory=(Memory(64, 6 * GB), Memory(80, 7 * GB)), memory_base=5 * GB)
    assert bytes_per_sample(history) == pytest.approx(GB / 16)


def test_two_sizes_that_are_close_tell_no_more_than_all_of_the_memory() -> None:
    history = History(memory=(Memory(27, 40 * GB), Memory(26, 13 * GB)), memory_base=5 * GB)
    assert bytes_per_sample(history) == pytest.approx(GB / 2)


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


# 15 of 16 GB for 64 samples, 0.2 GB each.
FULL = History(
    memory=(Memory(32, 8.6 * GB), Memory(64, 15 * GB)), memory_total=16 * GB, memory_last=15 * GB
)


@pytest.mark.parametrize(
    ("noise", "batch"),
    [
        (None, 1.0),
        (0.03, 1.0),  # up to 15.9 GB
        (0.04, 0.84375),  # up to 16.2 GB: 5 x 4 % over 15 GB are 2 GB too much, 10 samples
        (0.5, 0.8),  # as far as a step goes
    ],
)
def test_a_batch_is_made_smaller_where_memory_varies_and_may_run_out(
    noise: float | None, batch: float
) -> None:
    asked = Proposal(Action(lr_factor=1.2), "because")
    found = sparing(asked, interval(), replace(FULL, memory_noise=noise), Limits())
    assert found.action == Action(batch_factor=pytest.approx(batch), lr_factor=1.2)
    assert ("memory varies" in found.reason) == (batch < 1)
    assert found.reason.endswith("because")


def test_a_batch_that_cannot_change_is_left_alone() -> None:
    asked = Proposal(Action(), "because")
    full = replace(FULL, memory_noise=0.5)
    assert sparing(asked, interval(can=frozenset()), full, Limits()) == asked


def test_memory_varies_by_what_lies_between_intervals_of_the_same_batch() -> None:
    history = History()
    for batch, peak in ((64, 10.0), (64, 11.0), (32, 5.0), (64, 12.0), (64, 12.0)):
        told = interval(setting=Setting(1, batch), reports=[report(memory_bytes=peak * GB)])
        history = observe(history, told, Limits())
    assert history.memory_noise == pytest.approx(0.8 * 0.1)
    assert history.memory[-1].peak == 12 * GB
