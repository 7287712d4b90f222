from __future__ import annotations

import pytest

from mlflow_rlsched.policy.pacing import interval_length


@pytest.mark.parametrize(
    ("fixed", "elapsed", "progress", "steps", "seconds"),
    [
        (7.0, 100, 0.5, 1000, 7),  # as configured
        (None, 5, None, None, 5),  # the first
        (None, 5, 0.0, None, 5),
        (None, 100, 0.1, 1000, 10),  # 1 % of 1,000 s
        (None, 10, 0.5, 1000, 1),  # a short run: no less than a second
        (None, 3600, 0.01, 1000, 60),  # a long one: no more than a minute
        (None, 100, 0.1, 0.5, 40),  # slow steps: enough of them to measure
        (None, 5, None, 0.1, 60),
        (None, 1000, None, 1000, 20),  # of unknown length: as long again
    ],
)
def test_the_interval_has_enough_steps_and_is_about_a_hundredth_of_the_run(
    fixed: float | None, elapsed: float, progress: float | None, steps: float | None, seconds: float
) -> None:
    assert interval_length(fixed, elapsed, progress, steps) == pytest.approx(seconds)
