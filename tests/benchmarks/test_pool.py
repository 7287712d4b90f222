from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import pool
from benchmarks.pool import Case, compared, unseen
from benchmarks.pool_workloads import ASKED, SHARES, drawn, workload
from mlflow_rlsched.simulator.drawing import applications


def test_drawn_applications_differ_and_a_seed_gives_the_same() -> None:
    first, again, other = (drawn(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.keys() == applications().keys() == SHARES.keys() == ASKED.keys()
    for name, app in first.items():
        batch = app.profile.batches[0]
        times = [apps[name].step_time((2,), batch) for apps in (first, again, other)]
        assert times[0] == times[1] != times[2]
        assert app.profile.epoch_ends[-1] != other[name].profile.epoch_ends[-1]


def test_drawn_jobs_ask_for_what_their_application_can_use() -> None:
    jobs = workload(np.random.default_rng(3), drawn(np.random.default_rng(3)), 200)
    assert len({job.name for job in jobs}) == 200
    assert [job.submitted_s for job in jobs] == sorted(job.submitted_s for job in jobs)
    assert jobs[-1].submitted_s <= 8 * 3600
    for job in jobs:
        assert job.gpus <= job.batch <= job.application.profile.batches[-1]


def results(ours: float, others: float) -> dict[str, dict[str, float]]:
    names = ("flowtime", "goodput", "tiresias", "optimus")
    return {
        name: dict.fromkeys(pool.MEASURES, ours if name == "flowtime" else others) for name in names
    }


def test_the_goals_are_the_published_figures_where_there_are_any() -> None:
    case = Case("workload-1", [], {"avg_jct_s": 2000.0})
    rows = {figure.name: figure for figure in compared(case, results(1900.0, 2500.0))}
    mean = rows["workload-1: mean completion"]
    assert (mean.value, mean.goal, mean.baseline, mean.met) == (1900, 2000, 2500, True)
    assert rows["workload-1: GPU-hours"].goal == 2500
    assert not rows["workload-1: mean completion over tiresias"].met  # 0.76
    assert rows["workload-1: mean completion over Pollux"].value == pytest.approx(0.95)


def test_without_measurements_drawn_workloads_are_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "unseen", lambda seeds, jobs: unseen(seeds[:1], 3))
    result = CliRunner().invoke(pool.main, ["--quick", "--json"])
    assert result.exit_code == 0
    assert "measured workloads are left out" in result.stderr
    figures = json.loads(result.stdout)["figures"]
    assert {figure["name"].partition(":")[0] for figure in figures} == {"drawn 701"}
    assert all(figure["value"] > 0 for figure in figures)


def test_a_folder_without_workloads_is_one_sentence() -> None:
    result = CliRunner().invoke(pool.main, ["--data", "nowhere"])
    assert result.exit_code == 1
    assert "No such file" in result.stderr
