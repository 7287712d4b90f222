from __future__ import annotations

from benchmarks.pool_real import RUNS, _compared, mixed


def test_the_runs_differ_and_their_lengths_too() -> None:
    runs = mixed(RUNS, 30)
    assert len({tuple(run.items()) for run in runs}) == RUNS == 24
    assert {run["epochs"] for run in runs} == {"45", "60", "90"}


def test_the_metrics_have_to_be_the_same() -> None:
    ratio, same = _compared(30.0, 60.0, [(0.9, 0.9), (0.8, 0.8)])
    assert (ratio.value, ratio.met, ratio.baseline) == (0.5, True, 60.0)
    assert same.met
    assert not _compared(30.0, 60.0, [(0.9, 0.9), (0.8, 0.7)])[1].met
