"""The pool over time: who held what, who waited, and simulated workloads."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from pathlib import Path

import pytest

from mlflow_rlsched.store import DeviceShare, Ending, State, open_store
from rlsched_dashboard import pool_charts
from rlsched_dashboard.app import context_of
from rlsched_dashboard.pool_charts import Clock
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.pool import (
    Hold,
    NoSimulationError,
    Pool,
    Wait,
    real_pool,
    simulation,
    simulations,
)
from tests.task_specs import make_spec

POOL = Pool(
    0.0,
    100.0,
    ["a", "b"],
    [
        Hold("1", "one", "ada", "a", 0.0, 60.0),
        Hold("2", "two", "bob", "b", 20.0, 40.0),
        Hold("3", "three", "bob", "a", 60.0, 100.0, 0.5),
    ],
    [Wait("bob", 10.0, 20.0), Wait("bob", 30.0, 60.0), Wait("cy", 90.0, 100.0)],
    {"ada": 2.0},
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of simulated workloads."""
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    (tmp_path / "simulations").mkdir()
    return tmp_path / "simulations"


def test_shares_are_of_what_was_held_beside_those_by_weight() -> None:
    ada, bob, cy = pool_charts.shares(POOL)
    assert (ada.group, ada.share, ada.fair) == ("ada", 0.6, 0.5)
    assert (bob.group, bob.runs, bob.share, bob.fair) == ("bob", 2, 0.4, 0.25)
    assert bob.longest_s == 30.0
    assert (cy.share, cy.waited_s) == (0.0, 10.0)
    assert bob.waited_s == 20.0, "the median of 10 s and 30 s, as the key figure has it"


def test_what_was_held_is_stacked_over_the_same_times() -> None:
    figure = pool_charts.use(POOL, Clock(None))
    held = {trace["name"]: trace["y"] for trace in figure["data"]}
    assert len({tuple(trace["x"]) for trace in figure["data"]}) == 1
    assert held["ada"] == [1, 1, 1, 0, 0]
    assert held["bob"] == [0, 1, 0, 0.5, 0.5]


def test_bars_begin_and_end_where_runs_did() -> None:
    bars = pool_charts.tasks(POOL, Clock("UTC"))["data"]
    bob = next(trace for trace in bars if trace["name"] == "bob")
    assert bob["base"] == ["1970-01-01 00:00:20.000", "1970-01-01 00:01:00.000"]
    assert bob["x"] == [20_000, 40_000]
    assert bob["text"] == ["two", "three"]
    assert bob["customdata"][0] == ["1970-01-01 00:00:40.000", "two", "20 s", "goes on"]


def test_a_store_tells_who_held_and_who_waited(tmp_path: Path) -> None:
    settings = Settings(f"sqlite:///{tmp_path}/rlsched.db", f"sqlite:///{tmp_path}/mlflow.db")
    with closing(open_store(settings.store)) as store:
        for name in ("one", "two"):
            store.submit(make_spec(name), 0, 1000.0)
        store.claim("one", "here", [DeviceShare("gpu-0"), DeviceShare("gpu-1", 50)], 1010.0)
        store.end_attempt("one", 1, Ending(State.FINISHED, "finished", ""), 1050.0)
    pool, trouble = real_pool(context_of(settings), None)
    assert trouble is None
    held = {(hold.device, hold.start, hold.end, hold.devices) for hold in pool.holds}
    assert held == {("gpu-0", 1010.0, 1050.0, 1.0), ("gpu-1", 1010.0, 1050.0, 0.5)}
    assert sorted((wait.start, wait.end) for wait in pool.waits) == [
        (1000.0, 1010.0),
        (1000.0, pool.end),
    ]
    assert {"gpu-0", "gpu-1"} <= set(pool.devices)


def test_simulated_jobs_never_share_a_device(kept: Path) -> None:
    spans = {
        "a": [(0, 60, {"0": 2}), (90, 120, {"0": 1, "1": 1})],
        "b": [(60, 90, {"0": 2})],
        "c": [(60, 150, {"1": 1})],
    }
    jobs = [
        {
            "name": name,
            "application": "toy",
            "submitted_s": 0,
            "finished_s": held[-1][1],
            "spans": [{"start_s": s, "end_s": e, "held": h} for s, e, h in held],
        }
        for name, held in spans.items()
    ]
    figures = dict.fromkeys(("finished", "avg_jct_s", "makespan_s", "gpu_hours", "restarts"), 1)
    about = {"pool": {"nodes": 2, "gpus_per_node": 2}, "workload": "w", "policy": "fixed"}
    (kept / "small.json").write_text(json.dumps({**figures, **about, "jobs": jobs}))
    assert simulations() == ["small"]
    pool = simulation("small").pool
    assert len(pool.devices) == 4
    for one, other in itertools.combinations(pool.holds, 2):
        apart = one.end <= other.start or other.end <= one.start
        assert one.device != other.device or apart
    assert sorted((w.start, w.end) for w in pool.waits) == [(0, 60), (0, 60), (60, 90)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pool": {"nodes": 1}, "jobs": []}'])
def test_what_is_no_simulation_says_how_to_write_one(kept: Path, text: str) -> None:
    (kept / "bad.json").write_text(text)
    with pytest.raises(NoSimulationError, match=r"rlsched simulate … --json > .*bad\.json"):
        simulation("bad")
