"""What runs took, what that cost, and what tuning saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.analysis.savings import saving
from mlflow_rlsched.store import DeviceShare, Ending, State, Store, open_store
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.scheduler import Scheduler
from rlsched_dashboard.sources.tracking import Tracking
from rlsched_dashboard.sources.usage import Meter, Usage
from tests.dashboard.records import decision
from tests.task_specs import make_spec

MIDNIGHT = 86_400.0
DONE = Ending(State.FINISHED, "finished", "")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/rlsched.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        yield opened


def ran(
    store: Store, name: str, folder: Path, start: float, end: float | None, **config: object
) -> None:
    """A run on half of two CPU slots."""
    run_dir = folder / name
    run_dir.mkdir()
    spec = make_spec(name, run_dir=str(run_dir), host=None)
    spec = replace(spec, config=spec.config | config)
    store.submit(spec, 0, 1.0)
    shares = [DeviceShare("cpu-0", 50), DeviceShare("cpu-1", 50)]
    assert store.claim(name, "here", shares, start)
    if end is not None:
        store.end_attempt(name, 1, DONE, end)
        store.release(name, 1)


def decided(time: float, progress: float, before: int, after: int) -> dict[str, Any]:
    made = decision(time=time)
    made["terms"] = made["terms"] | {"progress": progress}
    changes = {
        key: made["before"] | {"batch_size": size}
        for key, size in (("before", before), ("setting", after))
    }
    return made | changes


def measured(url: str) -> Usage:
    meter = Meter(Scheduler(url), Decisions(Tracking("sqlite:////nowhere.db")))
    return meter.since(MIDNIGHT, MIDNIGHT + 7200)


def test_nothing_was_taken_of_a_store_that_is_not_there(url: str) -> None:
    assert measured(url) == Usage()


def test_only_what_is_of_today_counts(store: Store, url: str, tmp_path: Path) -> None:
    ran(store, "yesterday", tmp_path, MIDNIGHT - 7200, MIDNIGHT - 3600)
    ran(store, "over-midnight", tmp_path, MIDNIGHT - 3600, MIDNIGHT + 1800)
    ran(store, "goes-on", tmp_path, MIDNIGHT + 3600, None)
    assert measured(url) == Usage(device_s=1800.0 + 3600.0)


def test_devices_with_a_price_cost(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "2")
    ran(store, "priced", tmp_path, MIDNIGHT, MIDNIGHT + 1800, prices={"cpu slot": 3.0})
    ran(store, "other", tmp_path, MIDNIGHT + 1800, MIDNIGHT + 3600, prices={"H100": 9.0})
    assert measured(url).cost == pytest.approx(1.5)


def test_what_tuning_saved_is_what_a_report_says(store: Store, url: str, tmp_path: Path) -> None:
    ran(store, "tuned", tmp_path, MIDNIGHT, MIDNIGHT + 60)
    ran(store, "left-alone", tmp_path, MIDNIGHT + 60, MIDNIGHT + 120)
    records = [decided(MIDNIGHT + 10 * n, 0.05, 8, 8) for n in (1, 2)]
    records.append(decided(MIDNIGHT + 30, 0.05, 8, 16))
    records.append(decided(MIDNIGHT + 40, 0.15, 16, 16))
    for record in records:
        decision_log.append(tmp_path / "tuned", record)
    decision_log.append(tmp_path / "left-alone", decided(MIDNIGHT + 70, 0.05, 8, 8))
    usage = measured(url)
    known = saving(records)
    assert known is not None
    assert usage.saved_s == known.device_s
    assert known.device_s.value == pytest.approx(30 - 10)
    assert usage.tuned == 1


def test_decisions_of_runs_that_are_over_are_read_once(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched_dashboard.sources.decisions.KEPT_RUNS", 1)
    for number in range(3):
        ran(store, f"run-{number}", tmp_path, MIDNIGHT, MIDNIGHT + 60)
        for n, (before, after) in enumerate(((8, 8), (8, 8), (8, 16), (16, 16))):
            record = decided(MIDNIGHT + 10 * n, 0.05, before, after)
            decision_log.append(tmp_path / f"run-{number}", record)
    meter = Meter(Scheduler(url), Decisions(Tracking("sqlite:////nowhere.db")))
    first = meter.since(MIDNIGHT, MIDNIGHT + 7200)
    for number in range(3):
        (tmp_path / f"run-{number}" / decision_log.NAME).unlink()
    assert meter.since(MIDNIGHT, MIDNIGHT + 7200) == first
    assert first.tuned == 3
