"""``rlsched report``: a period of real runs, and one whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.analysis.report import report
from mlflow_rlsched.analysis.report_text import markdown, to_json, unknown
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import DeviceShare, Ending, State, Store, open_store
from tests.analysis.conftest import Lived, Rlsched, document
from tests.analysis.records import START
from tests.analysis.test_savings import tuned
from tests.task_specs import make_spec

DONE = Ending(State.FINISHED, "finished", "")
SLOTS = {"cpu-0": Device("cpu-0", "cpu", 0, "CPU slot")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/rlsched.db")) as opened:
        yield opened


def ran(store: Store, folder: Path, name: str, start: float, end: float, **config: Any) -> Path:
    """A finished run on one slot, seconds after ``START``."""
    run_dir = folder / name
    run_dir.mkdir()
    spec = make_spec(name, run_dir=str(run_dir), host=None)
    store.submit(replace(spec, config={**spec.config, **config}), 0, START + start)
    assert store.claim(name, "here", [DeviceShare("cpu-0")], START + start)
    store.end_attempt(name, 1, DONE, START + end)
    store.release(name, 1)
    return run_dir


def test_what_was_held_saved_and_paid_adds_up(store: Store, tmp_path: Path) -> None:
    run_dir = ran(store, tmp_path, "tuned", 0, 3600, prices={"cpu slot": 3.6})
    for record in tuned(0.03, 0.03):
        decision_log.append(run_dir, record)
    ran(store, tmp_path, "plain", 3600, 7200)
    ran(store, tmp_path, "later", 7200, 7300)
    found = report(store, START + 0, START + 7200, SLOTS, lambda task, attempts: 500.0)
    assert [row.run_id for row in found.rows] == ["tuned", "plain"]
    assert found.device_hours == pytest.approx(2.0)
    assert found.cost == pytest.approx(3.6)
    assert (found.tuned, len(found.estimated)) == (1, 1)
    saved = to_json(found)["saved"]
    assert saved["hours"]["value"] == pytest.approx(40 / 3600)
    assert saved["kwh"]["value"] == pytest.approx(0.5 * 40 / 3600)
    assert saved["cost"]["value"] == pytest.approx(3.6 * 40 / 3600)
    assert saved["cost"]["low"] < saved["cost"]["value"] < saved["cost"]["high"]
    text = markdown(found, "Runs | all")
    assert "# Runs \\| all" in text
    assert "intervals are of 95 %" in text


def test_a_period_of_which_nothing_is_known_says_so(store: Store, tmp_path: Path) -> None:
    ran(store, tmp_path, "plain", 0, 60)
    found = report(store, START, START + 100, {}, lambda task, attempts: None)
    assert found.device_hours_saved is None
    assert [sentence.split(":")[0] for sentence in unknown(found)] == [
        "what was saved is not known",
        "cost is not known",
    ]
    assert json.loads(json.dumps(to_json(found)))["saved"]["hours"] is None


def test_a_tuned_run_that_tells_no_progress_is_counted_apart(store: Store, tmp_path: Path) -> None:
    run_dir = ran(store, tmp_path, "mute", 0, 60)
    for record in tuned(0.03, 0.03):
        record["terms"]["progress"] = 0.0
        decision_log.append(run_dir, record)
    found = report(store, START, START + 100, {}, lambda task, attempts: None)
    assert (found.tuned, len(found.estimated)) == (1, 0)
    assert found.hours_saved is None


def test_the_command_on_real_runs(lived: Lived, rlsched: Rlsched, tmp_path: Path) -> None:
    found: Any = document(rlsched("report", "--json"))
    assert {row["run_id"] for row in found["rows"]} == {
        lived.recovered,
        lived.crashed,
        lived.silent,
    }
    held = sum(row["device_s"] for row in found["rows"])
    assert held == pytest.approx(3600 * found["device_hours"])
    path = tmp_path / "report.md"
    text = rlsched("report", "--experiment", "Default", "--since", "1d", "--markdown", str(path))
    assert "device time" in text.stdout
    assert path.read_text().startswith("# Runs of Default")
    assert document(rlsched("report", "--until", "1h", "--json"))["rows"] == []


def test_wrong_times_and_experiments_are_sentences(lived: Lived, rlsched: Rlsched) -> None:
    for args, why in (
        (("--since", "yesterday"), "neither a length of time"),
        (("--since", "1h", "--until", "2h"), "--since has to be before"),
        (("--experiment", "nothing"), "there is no experiment 'nothing'"),
    ):
        result = rlsched("report", *args)
        assert result.exit_code == 2
        assert why in result.stderr
