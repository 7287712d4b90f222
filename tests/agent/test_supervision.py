"""What the agent makes of an attempt's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import protocol
from mlflow_rlsched.agent import supervision
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.config import find_knobs, resolve
from mlflow_rlsched.protocol import Exit
from mlflow_rlsched.store import State, Task
from tests.task_specs import make_spec


class Clock:
    """Stands in for time.monotonic; the wall clock plays no part."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    value = Clock()
    monkeypatch.setattr(supervision, "time", value)
    return value


def supervised(folder: Path, ran_before_s: float = 0.0, **settings: Any) -> Supervised:
    task = Task(make_spec("r"), State.RUNNING, 0, 0.0, 1, attempt=1)
    config = find_knobs(resolve(settings, None, {}), {"batch_size": "64", "lr": "0.1"}, {})
    return Supervised(task, config, folder, [], ran_before_s)


def say(folder: Path, *lines: Any) -> None:
    with open(folder / "report.jsonl", "a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def test_progress_is_read_as_it_grows(tmp_path: Path, clock: Clock) -> None:
    attempt = supervised(tmp_path)
    say(tmp_path, {"event": "hello", "can": ["batch_size"]}, {"time": 10, "samples": 0, "loss": 4})
    attempt.observe()
    assert attempt.can == {"batch_size"}
    assert attempt.progress.sample() == {"loss": 4.0}
    say(tmp_path, {"time": 11, "samples": 500, "loss": 3}, {"time": 12, "samples": 1000, "loss": 2})
    attempt.observe()
    assert attempt.progress.sample() == {"loss": 2.5, "throughput": 500.0}
    assert attempt.progress.sample() == {}


def test_values_that_are_not_finite_are_counted_and_kept_out(tmp_path: Path) -> None:
    attempt = supervised(tmp_path)
    for step, loss in enumerate([1.0, float("nan"), float("inf"), 3.0]):
        say(tmp_path, {"step": step, "loss": loss})
    attempt.observe()
    assert attempt.progress.nonfinite == 2
    assert attempt.progress.sample()["loss"] == 2.0


def test_wild_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    attempt = supervised(tmp_path)
    say(tmp_path, "{torn", "[1]", '{"event": "explode"}', {"loss": "big", "samples": True}, "7")
    attempt.observe()
    assert attempt.skipped == 4
    assert attempt.progress.sample() == {}


def test_heartbeat_counts_only_after_hello_and_while_nothing_is_used(
    tmp_path: Path, clock: Clock
) -> None:
    attempt = supervised(tmp_path, heartbeat_s=60)
    clock.now += 1000
    assert attempt.overdue() is None
    say(tmp_path, {"event": "hello", "can": []})
    attempt.observe()
    clock.now += 59
    assert attempt.overdue() is None
    attempt.show_life({"system/cpu_utilization_percentage": 50.0})
    clock.now += 59
    assert attempt.overdue() is None
    attempt.show_life({"system/gpu_0_utilization_percentage": 0.0})
    clock.now += 2
    assert attempt.overdue() == "lost_heartbeat"


def test_run_time_includes_earlier_attempts(tmp_path: Path, clock: Clock) -> None:
    attempt = supervised(tmp_path, ran_before_s=70, timeout_s=100)
    clock.now += 29
    assert attempt.overdue() is None
    clock.now += 2
    assert attempt.overdue() == "timeout"


def test_batch_size_is_the_reported_one_if_the_training_can_change_it(tmp_path: Path) -> None:
    attempt = supervised(tmp_path)
    assert attempt.batch_size() == 64
    say(tmp_path, {"event": "hello", "can": ["batch_size"]}, {"batch_size": 48})
    attempt.observe()
    assert attempt.batch_size() == 48


def test_evidence_gathers_what_was_said_last(tmp_path: Path) -> None:
    attempt = supervised(tmp_path)
    (tmp_path / "output.log").write_bytes(b"x" * 100_000 + b"\nlast line\xff\n")
    say(tmp_path, {"event": "oom", "message": "at batch 64"}, {"event": "done"})
    evidence = attempt.evidence(Exit(1, 1))
    assert (evidence.oom, evidence.done) == ("at batch 64", True)
    assert "last line" in evidence.output
    assert len(evidence.output) <= supervision.OUTPUT_TAIL_BYTES


def test_what_was_reported_while_no_agent_lived_is_read_but_is_no_news(tmp_path: Path) -> None:
    line = {"time": 1.0, "samples": 5, "loss": 9.0, "metrics": {"padding": 1.0, "x" * 900: 1.0}}
    say(tmp_path, {"event": "hello", "can": ["batch_size"]}, *[line] * 3000)
    assert (tmp_path / "report.jsonl").stat().st_size > 2 * protocol.MAX_READ_BYTES
    attempt = supervised(tmp_path)
    attempt.catch_up()
    assert attempt.can == {"batch_size"}
    assert "loss" not in attempt.progress.sample()
    say(tmp_path, {"time": 2.0, "samples": 15, "loss": 1.0})
    attempt.observe()
    assert attempt.progress.sample() == {"loss": 1.0, "throughput": 10.0}


def test_success_at_the_end_of_a_long_backlog_is_found(tmp_path: Path) -> None:
    """The shim died with the agent, hours after an agent last read the reports."""
    say(tmp_path, *[{"loss": 1.0, "metrics": {"x" * 900: 1.0}}] * 3500, {"event": "done"})
    assert (tmp_path / "report.jsonl").stat().st_size > 3 * protocol.MAX_READ_BYTES
    assert supervised(tmp_path).evidence(Exit(1, None, "lost")).done
