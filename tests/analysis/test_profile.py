"""``rlsched profile``: real runs, and records by hand for each finding."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from mlflow_rlsched.analysis.findings import Finding, findings, unknown
from mlflow_rlsched.analysis.profile import Profile, profile, to_json
from mlflow_rlsched.analysis.profile_text import markdown
from mlflow_rlsched.analysis.readings import Readings, read
from mlflow_rlsched.analysis.recorded import Launch, RunRecord
from mlflow_rlsched.store import DeviceShare
from tests.analysis.conftest import Lived, Rlsched, document
from tests.analysis.records import START, decision, launch, run, told
from tests.learning.experiments import tracking


def made(record: RunRecord, **readings: float) -> Profile:
    return profile(record, Readings(**readings), None, None)


def titles(found: Profile) -> list[str]:
    return [each.what for each in findings(found)]


def test_a_run_that_was_killed_and_went_on(lived: Lived, rlsched: Rlsched) -> None:
    found: Any = document(rlsched("profile", lived.recovered, "--json"))
    parts = found["parts_s"]
    assert sum(parts.values()) == pytest.approx(found["wall_s"])
    assert sum(found["device_parts_s"].values()) == pytest.approx(found["device_s"])
    assert (found["attempts"], found["restarts"]) == (2, 1)
    assert all(parts[part] > 0 for part in ("queue", "start", "restart", "repeated", "compute"))
    assert parts["silent"] == parts["over"] == 0
    # 150 steps and more were made of 40 each to a checkpoint: at most 60 are made again.
    assert parts["repeated"] < parts["compute"]
    text = rlsched("profile", lived.recovered).stdout
    assert "work done twice, after a crash" in text
    assert "waiting for input is not told" in text


def test_the_page_stands_alone_and_is_kept_in_mlflow(
    lived: Lived, rlsched: Rlsched, tmp_path: Path
) -> None:
    page, text = tmp_path / "profile.html", tmp_path / "profile.md"
    result = rlsched(
        *("profile", lived.recovered, "--html", str(page), "--markdown", str(text), "--log")
    )
    assert result.exit_code == 0, result.output
    html = page.read_text()
    assert "<script src" not in html
    assert "plotly" in html
    assert "Where its time went" in text.read_text()
    client = MlflowClient(lived.world.tracking_uri)
    kept = client.download_artifacts(lived.recovered, "rlsched/profile.html", str(tmp_path))
    assert "Where its time went" in Path(kept).read_text()


def test_without_plotly_only_the_page_is_refused(
    lived: Lived, rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = rlsched("profile", lived.recovered, "--html", str(tmp_path / "page.html"))
    assert refused.exit_code == 1
    assert "pip install 'mlflow-rlsched[analysis]'" in refused.stderr
    assert rlsched("profile", lived.recovered, "--json").exit_code == 0


def test_runs_that_ended_badly_or_told_nothing(lived: Lived, rlsched: Rlsched) -> None:
    assert "it failed (user_error)" in rlsched("profile", lived.crashed).stdout
    assert "it never started" in rlsched("profile", lived.waited).stdout
    silent = rlsched("profile", lived.silent).stdout
    assert "the training told nothing" in silent
    assert "no step times were told" in silent


def test_runs_that_are_not_ours(lived: Lived, rlsched: Rlsched) -> None:
    wrong = rlsched("profile", "feedbeef")
    assert wrong.exit_code == 2
    assert "no run 'feedbeef' in this store" in wrong.stderr
    local = rlsched("profile", lived.local)
    assert local.exit_code == 2
    assert "was started by MLflow's backend local" in local.stderr


def test_a_run_that_was_deleted(lived: Lived, rlsched: Rlsched) -> None:
    client = lived.world.client
    client.delete_run(lived.local)
    refused = rlsched("profile", lived.local)
    client.restore_run(lived.local)
    assert refused.exit_code == 2
    assert f"mlflow runs restore --run-id {lived.local}" in refused.stderr
    # What is in the store and the folder is still there.
    client.delete_run(lived.crashed)
    found = rlsched("profile", lived.crashed)
    client.restore_run(lived.crashed)
    assert found.exit_code == 0


def test_what_waits_long_starts_long_and_ends_long() -> None:
    record = run(launch(1, 40, 100, told((60, 0), (80, 100))), ended=100)
    assert titles(made(record))[:3] == [
        "much of its time it waited for devices",
        "starting took long",
        "it went on long after the training's last word",
    ]


def test_restarts_name_their_reasons() -> None:
    first = launch(1, 0, 40, told((0, 0), (40, 400)), reason="oom")
    second = launch(2, 50, 100, told((70, 400), (100, 800)))
    (finding,) = findings(made(run(first, second, ended=100)))
    assert finding == Finding(
        "restarts took much of its time",
        "restarting: 30 s, 30% of its time: 1 after oom",
        "a smaller `batch_size.max`, or the batch size that it went on with",
    )


def test_idle_devices_with_room_can_take_a_larger_batch() -> None:
    decisions = [
        decision(1, 10, gpu_utilisation=0.2, memory_used=0.3, duration=30.0),
        decision(2, 20, gpu_utilisation=0.6, memory_used=0.4, duration=10.0),
        decision(3, 20, duration=10.0),
    ]
    on_slot = launch(1, 0, 50, told((0, 0), (50, 100)))
    gpu = replace(on_slot.attempt, devices=[DeviceShare("GPU-1")])
    found = made(run(Launch(gpu, on_slot.told, 1), ended=50, decisions=decisions))
    assert found.utilisation == pytest.approx(0.3)
    (finding,) = findings(found)
    assert finding.evidence == "mean utilisation 30%"
    assert "memory is at most 40%" in finding.setting
    (finding,) = findings(made(run(on_slot, ended=50, decisions=decisions)))
    assert "slots are counted, not pinned" in finding.setting


def test_full_memory_throttling_and_energy() -> None:
    found = made(
        run(launch(1, 0, 50, told((0, 0), (50, 100))), ended=50),
        **{"memory": 0.95, "throttled": 0.1, "celsius": 88.0, "utilisation": 0.9},
        energy_j=7.2e6,
    )
    assert titles(found) == ["memory is nearly full", "something held the devices' clocks down"]
    assert found.energy_kwh == pytest.approx(2.0)
    assert not any("energy" in sentence for sentence in unknown(found))


def test_devices_that_pay_little() -> None:
    first = launch(1, 0, 40, told((0, 0), (40, 400)), reason="resized")
    second = launch(2, 40, 80, told((40, 400), (80, 800 + 80)), devices=2)
    found = made(run(first, second, ended=80))
    assert [each.efficiency for each in found.scaling] == pytest.approx([1.0, 0.6])
    (finding,) = findings(found)
    assert finding.setting.startswith("`gpus.max` 1")


def test_unknown_is_said_and_not_guessed() -> None:
    found = made(run(launch(1, 0, 50, told((0, 0), (50, 100)), devices=2), ended=50))
    sentences = " ".join(unknown(found))
    for what in ("input", "communication", "utilisation", "memory", "energy", "cost"):
        assert what in sentences
    told_ = to_json(found, findings(found), unknown(found))
    assert json.loads(json.dumps(told_))["utilisation"] is None


def test_names_of_people_are_no_markdown() -> None:
    record = run(launch(1, 0, 5), ended=5)
    object.__setattr__(record.task.spec, "label", "<b>|run")
    assert "&lt;b>\\|run" in markdown(made(record), [], [])


def test_readings_count_only_while_devices_are_held(tmp_path: Path) -> None:
    client = tracking(tmp_path)
    run_id = client.create_run("0").info.run_id
    seconds = [0.0, 10.0, 20.0, 100.0, 110.0, 500.0]
    series = {
        "system/gpu_0_energy_joules": [100.0, 600.0, 1100.0, 9000.0, 9500.0, 99_000.0],
        "system/gpu_1_power_usage_watts": [50.0, 50.0, 70.0, 70.0, 70.0, 700.0],
        "system/gpu_0_utilization_percentage": [50.0, 50.0, 50.0, 100.0, 100.0, 0.0],
        "system/gpu_0_throttled": [0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        "system/gpu_0_memory_usage_percentage": [10.0, 20.0, 30.0, 30.0, 30.0, 99.0],
    }
    points = [
        Metric(name, value, int(1000 * (START + at)), step)
        for name, values in series.items()
        for step, (at, value) in enumerate(zip(seconds, values, strict=True))
    ]
    client.log_batch(run_id, metrics=points)
    found = read(client, run_id, [(START, START + 30), (START + 90, START + 120)])
    assert found.energy_j == pytest.approx(1000 + 500 + (500 + 600) + 700)
    assert found.utilisation == pytest.approx(0.7)
    assert found.throttled == pytest.approx(0.2)
    assert found.memory == pytest.approx(0.3)


def test_records_that_are_spoilt_or_gone_are_said_to_be(
    lived: Lived, rlsched: Rlsched, tmp_path: Path
) -> None:
    run_dir = Path(lived.world.task(lived.recovered).spec.run_dir)
    kept = tmp_path / "kept"
    shutil.copytree(run_dir, kept)
    reports = run_dir / "attempts" / "1" / "report.jsonl"
    later = [{"time": 1e300, "step": 1, "samples": 1e308}, {"time": 0, "step": 2, "batch_size": -1}]
    with open(reports, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in later) + '{"ti\n')
    log = run_dir / "decisions.jsonl"
    log.write_text(log.read_text().replace('"terms"', '"termz"', 1) + '{"number"\n')
    page = tmp_path / "page.html"
    found = rlsched("profile", lived.recovered, "--html", str(page))
    assert found.exit_code == 0, found.output
    assert "3 of the reports of attempt 1 are torn, or not of its time" in found.stdout
    assert "2 lines of decisions.jsonl cannot be read" in found.stdout
    report: Any = document(rlsched("report", "--json"))
    assert "of 1 runs some decisions cannot be read, and are left out" in report["unknown"]
    shutil.rmtree(run_dir)
    found = rlsched("profile", lived.recovered)
    assert f"its directory {run_dir} is gone" in found.stdout
    assert "attach()" not in found.stdout.split("not known")[0]
    assert "its directory is gone" in rlsched("replay", lived.recovered).stderr
    shutil.copytree(kept, run_dir)
