"""What tuning saved, on decisions whose figures are known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlflow_rlsched.analysis.savings import Amount, saving, total
from tests.analysis.records import START, decision

SMALL, LARGE = {"batch_size": 8}, {"batch_size": 32}


def tuned(*after: float, gpus: int = 1) -> list[dict[str, Any]]:
    """A run that warms up and goes on at 1 % in ten seconds, twice, and then at another setting."""
    first = SMALL | {"gpus": gpus}
    records = [
        decision(1, 10, first, progress=0.002),
        decision(2, 20, first, progress=0.009),
        decision(3, 30, first, LARGE, progress=0.011),
    ]
    later = LARGE | {"gpus": gpus}
    return records + [
        decision(4 + place, 40 + 10 * place, later, progress=each)
        for place, each in enumerate(after)
    ]


def test_what_was_done_later_is_worth_what_it_would_have_taken_before() -> None:
    found = saving(tuned(0.03, 0.03))
    assert found is not None
    assert found.seconds.value == pytest.approx(60 - 20)
    assert found.device_s.value == pytest.approx(60 - 20)
    assert found.intervals == 2


def test_a_worse_setting_saves_less_than_nothing() -> None:
    found = saving(tuned(0.005, 0.005))
    assert found is not None
    assert found.seconds.value == pytest.approx(10 - 20)


def test_devices_count_at_both_settings() -> None:
    records = tuned(0.015, 0.015, gpus=4)
    for record in records[3:]:
        record["before"]["gpus"] = record["setting"]["gpus"] = 1
    found = saving(records)
    assert found is not None
    assert found.seconds.value == pytest.approx(30 - 20)
    assert found.device_s.value == pytest.approx(4 * 30 - 20)
    assert found.device_s.error == pytest.approx(4 * found.seconds.error)


def test_the_interval_is_from_the_scatter_at_one_setting() -> None:
    found = saving(tuned(0.03, 0.03))
    assert found is not None
    # Pairs at one setting: 0.002 and 0.009, 0.009 and 0.011, 0.03 twice.
    squares = [2 * (0.007 / 0.011) ** 2, 2 * (0.002 / 0.020) ** 2, 0.0]
    scatter = math.sqrt(sum(squares) / 3)
    student = 3.182  # of three degrees of freedom, 95 %
    half = student * 60 * scatter / math.sqrt(2)
    assert found.seconds.high - found.seconds.value == pytest.approx(half, rel=1e-3)


def test_a_learning_rate_shows_on_the_way_to_a_target_alone() -> None:
    slower = {"lr_scale": 0.8}
    records = [decision(n, 10 * n, progress=0.01) for n in (1, 2)]
    records.append(decision(3, 30, setting=slower, progress=0.01))
    records += [decision(n, 10 * n, slower, progress=0.03) for n in (4, 5)]
    assert saving(records) is None
    found = saving(records, to_target=True)
    assert found is not None
    assert found.seconds.value == pytest.approx(60 - 20)


def test_only_the_period_counts() -> None:
    found = saving(tuned(0.03, 0.04), START + 45, START + 60)
    assert found is not None
    assert found.seconds.value == pytest.approx(40 - 10)
    assert saving(tuned(0.03), START + 1000) is None


def test_what_cannot_be_told_is_not_told() -> None:
    assert saving([]) is None
    assert saving([decision(1, 10), decision(2, 20)]) is None  # nothing was changed
    silent = [decision(n, 10 * n, LARGE if n > 2 else SMALL, LARGE, progress=0) for n in (1, 2, 3)]
    assert saving(silent) is None
    hasty = [decision(1, 10, SMALL, LARGE), decision(2, 20, LARGE)]
    assert saving(hasty) is None


def test_errors_of_several_runs_add_up_in_squares() -> None:
    assert total([Amount(1, 3), Amount(-5, 4)]) == Amount(-4, 5)
    assert Amount(2, 1).times(-3) == Amount(-6, 3)
