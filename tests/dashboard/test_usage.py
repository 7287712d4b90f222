"""What runs took, what that cost, and what tuning saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.store import DeviceShare, Ending, State, Store, open_store
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.scheduler import Scheduler
from rlsched_dashboard.sources.tracking import Tracking
from rlsched_dashboard.sources.usage import Meter, Usage
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


def decision(time: float, progress: float, after: int) -> dict[str, object]:
    terms = {"progress": progress, "duration_s": 10.0, "scales": {"total_s": 1000.0}}
    before = {"gpus": 1, "batch_size": 8, "lr_scale": 1.0}
    return {
        "number": 1,
        "time": time,
        "terms": terms,
        "before": before,
        "setting": before | {"batch_size": after},
    }


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


def test_what_tuning_saved_is_progress_against_time(store: Store, url: str, tmp_path: Path) -> None:
    ran(store, "tuned", tmp_path, MIDNIGHT, MIDNIGHT + 60)
    ran(store, "left-alone", tmp_path, MIDNIGHT + 60, MIDNIGHT + 120)
    decision_log.append(tmp_path / "tuned", decision(MIDNIGHT + 10, 0.05, 16))
    decision_log.append(tmp_path / "tuned", decision(MIDNIGHT + 20, 0.002, 16))
    decision_log.append(tmp_path / "left-alone", decision(MIDNIGHT + 70, 0.05, 8))
    usage = measured(url)
    assert usage.saved_s == pytest.approx((50 - 10) + (2 - 10))
    assert usage.tuned == 1
