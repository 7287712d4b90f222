"""Runs beside each other: the axes, the table, and what an address may ask for."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_rlsched.store import Attempt, DeviceShare
from rlsched_dashboard.app import context_of
from rlsched_dashboard.compare_table import rows
from rlsched_dashboard.context import Context
from rlsched_dashboard.pages.compare import Asked
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.comparison import device_hours, way_of
from rlsched_dashboard.sources.run import RunData
from rlsched_dashboard.sources.tracking import TrackedRun


@pytest.fixture
def context(tmp_path: object) -> Context:
    return context_of(
        Settings(f"sqlite:///{tmp_path}/rlsched.db", f"sqlite:///{tmp_path}/mlflow.db")
    )


def attempt(number: int, start: float, end: float, devices: int = 1) -> Attempt:
    held = [DeviceShare(f"gpu-{i}") for i in range(devices)]
    return Attempt("run", number, "here", held, start, start, end, 0, "finished")


def run(name: str = "run", **more: object) -> RunData:
    known = {"params": {"lr": "0.1"}, "metrics": {"val_loss": 0.5}, **more}
    tracked = TrackedRun(name, "1", "all", name, "ada", "FINISHED", 100.0, 200.0, {}, **known)  # type: ignore[arg-type]
    return RunData(name, tracked, None, metrics=frozenset(tracked.metrics))


def test_device_hours_count_each_attempt_and_nothing_between_them(context: Context) -> None:
    tried = [attempt(1, 100.0, 1900.0), attempt(2, 5500.0, 7300.0, devices=2)]
    data = RunData("run", None, None, tried)
    assert device_hours(context, data) == pytest.approx(0.5 + 1.0)
    way = way_of(context, data, "hours")
    assert way is not None
    assert way.at(np.array([1000.0, 3000.0, 6400.0])) == pytest.approx([0.25, 0.5, 1.0])


def test_samples_seen_again_after_a_restart_count_once(context: Context) -> None:
    decisions = [{"time": t, "samples": s} for t, s in ((110, 500), (120, None), (130, 300))]
    data = RunData("run", None, None, [attempt(1, 100.0, 140.0)], decisions)
    way = way_of(context, data, "samples")
    assert way is not None
    assert way.at(np.array([100.0, 105.0, 130.0])) == pytest.approx([0, 250, 500])
    assert way_of(context, run(), "samples") is None, "nobody wrote samples down"


def test_only_what_differs(context: Context) -> None:
    one, other = run("one"), run("other", params={"lr": "0.2"}, metrics={"val_loss": 0.5})
    shown = {row["key"]: row for row in rows(context, [one, other], only_different=False)}
    assert shown["Parameters: lr"]["one"] == 0.1
    assert shown["Final metrics: val_loss"]["other"] == 0.5
    different = [row["key"] for row in rows(context, [one, other], only_different=True)]
    assert different == ["Parameters: lr"]


def test_a_metric_that_is_no_number_is_shown_as_such(context: Context) -> None:
    found = rows(context, [run(metrics={"val_loss": float("nan")})], only_different=False)
    assert {row["run"] for row in found if row["what"] == "val_loss"} == {"nan"}


def test_an_address_names_ten_runs_at_most() -> None:
    asked = Asked.of({"runs": ",".join(f"r{i}" for i in range(14)), "baseline": "r3"})
    assert (len(asked.run_ids), asked.left_out, asked.baseline) == (10, 4, "r3")


@pytest.mark.parametrize("zoom", ["[1]", "x", "null", '["a", 2]', "{}"])
def test_a_spoilt_address_is_ignored(zoom: str) -> None:
    asked = Asked.of({"runs": "a,,a,b", "axis": "moon", "baseline": "c", "zoom": zoom})
    assert (list(asked.run_ids), asked.axis, asked.baseline, asked.zoom) == (
        ["a", "b"],
        "time",
        "a",
        None,
    )
