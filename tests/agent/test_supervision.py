"""What the agent makes of an attempt's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import protocol
from mlflow_rlsched.agent import supervision
from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.config import find_knobs, resolve
from mlflow_rlsched.protocol import Exit
from mlflow_rlsched.store import Ending, State, Task
from mlflow_rlsched.versions import Versions
from tests.task_specs import make_spec


class Clock:
    """Stands in for both clocks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An attempt's directory."""
    made = protocol.attempt_dir(tmp_path, 1)
    made.mkdir(parents=True)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    value = Clock()
    monkeypatch.setattr(supervision, "time", value)
    return value


def supervised(folder: Path, ran_before_s: float = 0.0, **settings: Any) -> Supervised:
    task = Task(make_spec("r"), State.RUNNING, 0, 0.0, 1, attempt=1)
    config = find_knobs(resolve(settings, None, {}), {"batch_size": "64", "lr": "0.1"}, {})
    policies = Policies(Versions(), 1)
    return Supervised(task, config, folder, [], 1, 2**34, policies, ran_before_s, 0.0)


def say(folder: Path, *lines: Any) -> None:
    with open(folder / "report.jsonl", "a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def test_values_that_are_not_finite_are_counted_and_kept_out(folder: Path) -> None:
    attempt = supervised(folder)
    for step, loss in enumerate([1.0, float("nan"), float("inf"), 3.0]):
        say(folder, {"step": step, "loss": loss})
    attempt.observe()
    assert attempt.nonfinite == 2
    outcome = attempt.tuning.decide(0.0)
    assert outcome.reported["loss"] == 2.0


def test_wild_lines_are_counted_and_skipped(folder: Path) -> None:
    attempt = supervised(folder)
    say(folder, "{torn", "[1]", '{"event": "explode"}', {"loss": "big", "samples": True}, "7")
    attempt.observe()
    assert attempt.skipped == 4
    assert attempt.tuning.decide(0.0).reported == {}


def test_heartbeat_counts_only_after_hello_and_while_nothing_is_used(
    folder: Path, clock: Clock
) -> None:
    attempt = supervised(folder, heartbeat_s=60)
    clock.now += 1000
    assert attempt.must_end() is None
    say(folder, {"event": "hello", "can": []})
    attempt.observe()
    clock.now += 59
    assert attempt.must_end() is None
    attempt.take(Sample({"system/cpu_utilization_percentage": 50.0}))
    clock.now += 59
    assert attempt.must_end() is None
    attempt.take(Sample({"system/gpu_0_utilization_percentage": 0.0}))
    clock.now += 2
    assert attempt.must_end() == "lost_heartbeat"


def test_run_time_includes_earlier_attempts(folder: Path, clock: Clock) -> None:
    attempt = supervised(folder, ran_before_s=70, timeout_s=100)
    clock.now += 29
    assert attempt.must_end() is None
    clock.now += 2
    assert attempt.must_end() == "timeout"


def test_an_attempt_above_its_cap_must_end(folder: Path, clock: Clock) -> None:
    attempt = supervised(folder, memory_cap_gb=1)
    attempt.take(Sample({}, memory_bytes=2 * 10**9))
    assert attempt.must_end() is None
    attempt.take(Sample({}, memory_bytes=2 * 10**9))
    assert attempt.must_end() == "oom"
    attempt.take(Sample({}, memory_bytes=2 * 10**9, lost="it does not answer"))
    assert attempt.must_end() == "device_fault"


@pytest.mark.parametrize(("settings", "leaks"), [({}, True), ({"timeout_s": 3000}, False)])
def test_growth_is_followed_to_the_end_of_the_run(
    folder: Path, clock: Clock, settings: dict[str, Any], leaks: bool
) -> None:
    """4 MB a second fill what the host has, 17 GB, in 4300 s."""
    attempt = supervised(folder, **settings)
    warnings = []
    for second in range(0, 2000, 5):
        clock.now += 5
        warnings.append(attempt.take(Sample({}, memory_bytes=4_000_000 * second)))
    assert any(warnings) == leaks


def test_batch_size_is_the_reported_one_if_the_training_can_change_it(folder: Path) -> None:
    attempt = supervised(folder)
    assert attempt.batch_size() == 64
    say(folder, {"event": "hello", "can": ["batch_size"]}, {"batch_size": 48})
    attempt.observe()
    assert attempt.batch_size() == 48


def test_evidence_gathers_what_was_said_last(folder: Path) -> None:
    attempt = supervised(folder)
    (folder / "output.log").write_bytes(b"x" * 100_000 + b"\nlast line\xff\n")
    say(folder, {"event": "oom", "message": "at batch 64"}, {"event": "done"})
    evidence = attempt.evidence(Exit(1, 1))
    assert (evidence.oom, evidence.done) == ("at batch 64", True)
    assert "last line" in evidence.output
    assert len(evidence.output) <= supervision.OUTPUT_TAIL_BYTES


def test_what_was_reported_while_no_agent_lived_is_read(folder: Path) -> None:
    line = {"time": 1.0, "samples": 5, "loss": 9.0, "metrics": {"padding": 1.0, "x" * 900: 1.0}}
    say(folder, {"event": "hello", "can": ["batch_size"]}, *[line] * 3000)
    assert (folder / "report.jsonl").stat().st_size > 2 * protocol.MAX_READ_BYTES
    attempt = supervised(folder)
    attempt.catch_up()
    assert attempt.can == {"batch_size"}
    assert attempt.tuning.decide(0.0).reported["loss"] == 9.0


def test_what_a_training_logs_by_itself_is_watched_once(folder: Path) -> None:
    attempt = supervised(folder, objective={"metric": "error"})
    attempt.watch({})
    assert attempt.close(Ending(State.FAILED, "user_error", "it exited with code 1")) is None
    attempt.watch({"loss": 3.0, "error": 0.5})
    outcome = attempt.close(Ending(State.FAILED, "user_error", "it exited with code 1"))
    assert outcome is not None
    assert outcome.reported["loss"] == 0.5
    assert outcome.record["terms"]["ending"] == "failed"
    attempt.watch({"loss": 3.0, "error": 0.5})
    assert attempt.close(Ending(State.FAILED, "user_error", "it exited with code 1")) is None


def test_success_at_the_end_of_a_long_backlog_is_found(folder: Path) -> None:
    """The shim died with the agent, hours after an agent last read the reports."""
    say(folder, *[{"loss": 1.0, "metrics": {"x" * 900: 1.0}}] * 3500, {"event": "done"})
    assert (folder / "report.jsonl").stat().st_size > 3 * protocol.MAX_READ_BYTES
    assert supervised(folder).evidence(Exit(1, None, "lost")).done
