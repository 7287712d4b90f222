"""Long histories become short, and keep their outline."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlsched_dashboard.sampling import min_max

values = st.lists(
    st.floats(width=32) | st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=400
)


def test_a_short_history_is_kept_whole() -> None:
    y = np.arange(50.0)
    assert min_max(y, y, 50).tolist() == list(range(50))


def test_a_spike_and_a_gap_survive() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 5000)
    y[31_234], y[77_777], y[50_001] = 9.0, -9.0, np.nan
    kept = min_max(x, y)
    assert {31_234, 77_777, 50_001, 0, 99_999} <= set(kept.tolist())
    assert len(kept) <= 1500 + 3


@given(values, st.integers(2, 60))
def test_what_is_kept_is_in_order_and_has_the_extremes(numbers: list[float], most: int) -> None:
    y = np.array(numbers)
    kept = min_max(np.arange(len(y), dtype=float), y, most)
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == len(y) - 1
    assert len(kept) <= max(len(y) if len(y) <= most else 0, 3 * (most // 2) + 2)
    finite = y[np.isfinite(y)]
    if len(finite):
        assert {finite.min(), finite.max()} <= set(y[kept].tolist())
    assert np.isfinite(y).all() == np.isfinite(y[kept]).all()
