"""Decisions on one attempt: measured, recorded, told; simulated clock, real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.agent import tuning
from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.agent.tuning import Tuning, resumed_setting
from mlflow_rlsched.config import find_knobs, resolve
from mlflow_rlsched.devices.interface import Device, Reading
from mlflow_rlsched.policy.action import GPU_DELTAS, Setting
from mlflow_rlsched.protocol import Directive, Report, attempt_dir, parse_report
from mlflow_rlsched.store import State, Task
from mlflow_rlsched.versions import Versions
from tests.policy.trained import trained
from tests.task_specs import make_spec

CAN = ["batch_size", "learning_rate", "resume"]


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    value = Clock()
    monkeypatch.setattr(tuning, "time", value)
    return value


class Run:
    """A run directory with one attempt, and a training that does what it is told."""

    def __init__(self, root: Path, clock: Clock, **settings: Any) -> None:
        self.root, self.clock = root, clock
        self.config = find_knobs(
            resolve({"policy": "rules", **settings}, None, {}),
            {"batch_size": "64", "lr": "0.1"},
            {},
        )
        self.samples = 0
        self.policies = Policies(Versions(), 1)
        self.start(1)

    def start(self, number: int, setting: Setting | None = None, gpus: int = 1) -> None:
        self.number, self.gpus = number, gpus
        self.folder = attempt_dir(self.root, number)
        self.folder.mkdir(parents=True)
        setting = setting or Setting(gpus)
        Directive(number, 0, setting.batch_size, setting.lr_scale, setting.gpus).write(self.folder)
        self.tuning = self.watch()

    def watch(self) -> Tuning:
        devices = [Device(f"cpu-{n}", "cpu", n, "") for n in range(self.gpus)]
        return Tuning(
            self.folder, self.number, self.config, devices, self.gpus, 2**34, self.policies
        )

    @property
    def directive(self) -> Directive:
        found = Directive.read(self.folder, self.number)
        assert found is not None
        return found

    def say(self, **line: Any) -> None:
        directive = self.directive
        batch = directive.batch_size or 64
        self.samples += batch
        whole = {
            "time": self.clock.now,
            "step": self.samples // 64,
            "samples": self.samples,
            "batch_size": batch,
            "learning_rate": 0.1 * directive.lr_scale,
            "applied_seq": directive.seq,
            **line,
        }
        report = parse_report(json.dumps(whole).encode())
        assert report is not None
        self.tuning.observe(report)

    def train(self, seconds: int, loss: float = 1.0) -> None:
        """Report once a second."""
        for _ in range(seconds):
            self.clock.now += 1.0
            self.say(loss=loss)

    def oscillate(self, seconds: int, low: float, high: float) -> None:
        for second in range(seconds):
            self.clock.now += 1.0
            self.say(loss=high if second % 2 else low)


@pytest.fixture
def run(tmp_path: Path, clock: Clock) -> Run:
    return Run(tmp_path, clock)


def test_nothing_is_due_before_the_training_speaks_nor_too_soon_after(run: Run) -> None:
    run.clock.now += 100
    assert not run.tuning.is_due()
    run.say(event="hello", can=CAN)
    assert not run.tuning.is_due()
    run.train(5)
    assert run.tuning.is_due()
    run.tuning.decide(0.0)
    run.train(4)
    assert not run.tuning.is_due()


def test_a_decision_is_on_record_before_the_training_is_told(run: Run) -> None:
    run.say(event="hello", can=CAN, optimizer="sgd", dataset_size=1000, drop_last=0)
    while run.directive.seq == 0:
        if run.samples < 64 * 20:
            run.train(6)
        else:
            run.oscillate(6, 1.0, 80.0)
        outcome = run.tuning.decide(0.0)
    record = decision_log.last(run.root)
    assert record is not None
    assert outcome.changed
    assert record["setting"]["lr_scale"] == run.directive.lr_scale != 1
    assert (record["attempt"], record["seq"]) == (1, 1)
    assert run.directive.reason == record["reason"]
    assert record["training"] == {
        "batch_size": 64,
        "learning_rate": 0.1,
        "optimizer": "sgd",
        "dataset_size": 1000,
        "drop_last": 0,
        "can": sorted(CAN),
    }


def test_no_decision_while_the_last_one_is_not_applied(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(5)
    Directive(1, 7, 32).write(run.folder)
    run.tuning = run.watch()
    run.clock.now += 6
    run.say(loss=1.0, applied_seq=0)
    assert not run.tuning.is_due()
    run.clock.now += tuning.ACKNOWLEDGED_WITHIN_S
    assert run.tuning.is_due()


def test_a_directive_that_a_dead_agent_did_not_write_is_written(
    tmp_path: Path, clock: Clock
) -> None:
    run = Run(tmp_path, clock, policy="fixed")
    run.say(event="hello", can=CAN)
    run.train(5)
    run.tuning.decide(0.0)
    record = decision_log.last(run.root)
    assert record is not None
    decided = {**record["setting"], "batch_size": 48, "lr_scale": 0.5, "lr_factor": 0.5}
    decision_log.append(run.root, {**record, "seq": 1, "setting": decided, "reason": "why"})
    adopted = run.watch()
    assert adopted.setting.batch_size == 48
    assert (run.directive.seq, run.directive.batch_size, run.directive.lr_scale) == (1, 48, 0.5)
    assert run.directive.reason == "why"


def test_a_new_agent_goes_on_where_the_last_one_was(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(6)
    run.tuning.decide(0.0)
    run.train(3, loss=0.5)
    reports = list(run.tuning._reports)
    again = run.watch()
    hello = parse_report(json.dumps({"event": "hello", "can": CAN, "time": 1.0}).encode())
    old = parse_report(json.dumps({"time": 1003.0, "loss": 9.0}).encode())
    assert hello is not None
    assert old is not None
    for report in (hello, old, *reports):
        again.observe(report)
    again.caught_up()
    run.clock.now += 5
    outcome = again.decide(0.0)
    assert outcome.decision.number == 2
    assert outcome.reported["loss"] == 0.5
    assert outcome.transition is not None
    assert outcome.transition.decision == 1
    assert outcome.transition.run_id == run.root.name
    assert outcome.transition.data["elapsed_s"] == outcome.record["elapsed_s"]


def test_a_clock_that_jumps_back_hides_no_reports(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(5)
    run.tuning.decide(0.0)
    run.clock.now += 60
    run.say(loss=2.0, time=run.clock.now - 3600)
    assert run.tuning.is_due()
    assert run.tuning.decide(0.0).reported["loss"] == 2.0


def test_the_end_is_recorded_with_what_was_not_yet_decided_on(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(2, loss=0.25)
    outcome = run.tuning.close("finished", "done")
    assert outcome is not None
    assert outcome.reported["loss"] == 0.25
    assert outcome.record["terms"]["ending"] == "done"
    assert not outcome.changed
    assert run.tuning.close("finished", "done") is None


def test_after_running_out_of_memory_the_next_attempt_starts_smaller(run: Run) -> None:
    run.say(event="hello", can=CAN, optimizer="sgd")
    run.train(2)
    outcome = run.tuning.close("out of memory at batch size 64", "oom", 54)
    assert outcome is not None
    task = Task(make_spec("r", run_dir=str(run.root)), State.QUEUED, 0, 0.0, 1, attempt=1)
    setting = resumed_setting(task, run.config)
    assert setting.batch_size == 54
    assert setting.lr_scale == pytest.approx(54 / 64)


@pytest.mark.parametrize("ending", ["oom", None])
def test_the_time_between_two_attempts_counts_in_no_speed(run: Run, ending: str | None) -> None:
    run.say(event="hello", can=CAN)
    run.train(6)
    outcome = run.tuning.close("it ended", ending, 64)
    assert outcome is not None
    assert outcome.decision.history.samples_at is not None or ending == "oom"
    run.clock.now += 1000.0
    run.start(2, outcome.decision.setting)
    run.say(event="hello", can=CAN)
    run.train(6)
    history = run.tuning.decide(0.0).decision.history
    assert history.throughput == pytest.approx(64.0)


@pytest.mark.parametrize("reason", ["oom", "killed"])
def test_a_batch_that_was_decided_without_a_record_counts_only_after_out_of_memory(
    run: Run, reason: str
) -> None:
    run.say(event="hello", can=CAN)
    run.train(5)
    run.tuning.decide(0.0)
    task = Task(
        make_spec("r", run_dir=str(run.root)),
        *(State.QUEUED, 0, 0.0, 1),
        attempt=1,
        batch_size=54,
        exit_reason=reason,
    )
    assert resumed_setting(task, run.config).batch_size == (54 if reason == "oom" else 64)


def test_without_a_record_the_task_says_the_batch(tmp_path: Path, run: Run) -> None:
    spec = make_spec("r", run_dir=str(tmp_path / "new"))
    task = Task(spec, State.QUEUED, 0, 0.0, 1, attempt=2, batch_size=54, exit_reason="killed")
    assert resumed_setting(task, run.config) == Setting(1, 54)


def test_the_use_of_slots_and_devices_is_taken_over_the_interval(run: Run) -> None:
    run.say(event="hello", can=CAN)
    for cores, memory in ((0.2, 2**30), (0.6, 2**31)):
        run.tuning.sample(Sample({}, (Reading(),), cores, memory, 0))
    run.train(5)
    state = run.tuning.decide(0.5).decision.state.values
    assert state["gpu_utilisation"] == pytest.approx(0.4)
    assert state["memory_used"] == pytest.approx(2**31 / 2**34)
    assert state["pressure"] == 0.5


def test_a_training_that_can_do_nothing_is_watched_not_tuned(run: Run) -> None:
    run.say(event="hello", can=[])
    for _ in range(4):
        run.oscillate(6, 1.0, 80.0)
        assert not run.tuning.decide(0.0).changed
    assert not any(r["vetoes"] for r in decision_log.read(run.root))


def test_torn_and_wild_records_are_skipped(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(5)
    run.tuning.decide(0.0)
    with open(run.root / decision_log.NAME, "a") as file:
        file.write('[1]\n{"number": "x"}\n{"number": 2, "torn')
    assert decision_log.last(run.root)["number"] == 1  # type: ignore[index]
    run.train(5)
    run.tuning.decide(0.0)
    assert [r["number"] for r in decision_log.read(run.root)] == [1, 2]


def test_a_later_agent_keeps_the_base_rate(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(5)
    run.tuning.decide(0.0)
    record = decision_log.last(run.root)
    assert record is not None
    decided = {**record["setting"], "lr_scale": 1.2, "lr_factor": 1.2}
    decision_log.append(run.root, {**record, "seq": 1, "setting": decided})
    run.tuning = run.watch()
    hello = parse_report(
        json.dumps({"event": "hello", "can": CAN, "time": 1.0, "learning_rate": 0.1}).encode()
    )
    assert hello is not None
    run.tuning.observe(hello)
    run.tuning.caught_up()
    run.train(6)
    assert run.tuning.decide(0.0).record["training"]["learning_rate"] == pytest.approx(0.1)


def test_an_end_right_after_a_decision_is_on_record_once(run: Run) -> None:
    run.say(event="hello", can=CAN)
    run.train(5)
    run.tuning.decide(0.0)
    outcome = run.tuning.close("out of memory", "oom", 54)
    assert outcome is not None
    assert outcome.decision.vetoes == ()
    assert outcome.record["history"]["action"]["batch_factor"] == pytest.approx(54 / 64)
    assert outcome.record["setting"]["batch_size"] == 54
    assert run.watch().close("out of memory", "oom", 54) is None


def test_a_script_that_takes_no_rate_keeps_it_after_running_out_of_memory(run: Run) -> None:
    outcome = run.tuning.close("out of memory at batch size 64", "oom", 54)
    assert outcome is not None
    assert outcome.changed
    assert outcome.record["setting"]["lr_scale"] == 1.0
    assert outcome.record["policy"] == "rules"


# Another number of devices


def wanting(delta: int) -> Policies:
    """A champion that always changes the number of devices by so many."""
    version = trained(1.0)
    version.arrays["actor.body.4.bias"][GPU_DELTAS.index(delta)] = 9.0
    Versions().promote(version)
    return Policies(Versions(), 1)


@pytest.fixture
def elastic(tmp_path: Path, clock: Clock) -> Run:
    """A run on one of two devices, near its beginning, whose policy wants the other one."""
    run = Run(tmp_path, clock, policy="ddpg", gpus={"initial": 1, "max": 2})
    run.policies = wanting(1)
    run.tuning = run.watch()
    run.say(event="hello", can=CAN)
    for _ in range(10):
        run.clock.now += 1.0
        run.say(loss=1.0, progress=0.001)
    return run


def test_another_number_of_devices_is_a_stop_on_record(elastic: Run) -> None:
    assert elastic.tuning.is_elastic
    outcome = elastic.tuning.decide(0.0, 1)
    assert (outcome.record["before"]["gpus"], outcome.record["setting"]["gpus"]) == (1, 2)
    assert (elastic.directive.action, elastic.directive.gpus) == ("stop", 2)
    assert elastic.tuning.leaves == "resized"
    elastic.clock.now += 7.0
    assert elastic.tuning.leaves_s() == 7.0
    elastic.train(10)
    assert not elastic.tuning.is_due(), "a training that is to stop is asked nothing more"


def test_an_agent_that_died_before_the_stop_was_asked_for_asks_again(elastic: Run) -> None:
    before = elastic.directive
    elastic.tuning.decide(0.0, 1)
    before.write(elastic.folder)
    adopted = elastic.watch()
    assert adopted.leaves == "resized"
    assert elastic.directive.action == "stop"


@pytest.mark.parametrize(
    ("free", "can", "nested"), [(0, CAN, False), (1, CAN[:2], False), (1, CAN, True)]
)
def test_devices_stay_where_no_more_can_be_had_or_used(
    tmp_path: Path, clock: Clock, free: int, can: list[str], nested: bool
) -> None:
    run = Run(tmp_path, clock, policy="ddpg", gpus={"initial": 1, "max": 2})
    run.policies = wanting(1)
    run.gpus = 0 if nested else 1
    run.tuning = run.watch()
    run.say(event="hello", can=can)
    for _ in range(10):
        run.clock.now += 1.0
        run.say(loss=1.0, progress=0.001)
    outcome = run.tuning.decide(0.0, free if run.tuning.is_elastic else None)
    assert outcome.record["setting"]["gpus"] == outcome.record["before"]["gpus"]
    assert run.directive.action == "continue"


def test_the_pause_is_measured_and_charged_to_the_decision(elastic: Run) -> None:
    resized = elastic.tuning.decide(0.0, 1)
    elastic.clock.now += 20.0
    elastic.start(2, resized.decision.setting, gpus=2)
    elastic.clock.now += 1.0
    assert not elastic.tuning.is_due()
    elastic.say(event="hello", can=CAN)
    elastic.train(5)
    assert elastic.tuning.leaves is None
    outcome = elastic.tuning.decide(0.0, 0)
    assert outcome.record["training"]["restart_s"] == 21.0
    assert outcome.record["terms"]["duration_s"] == 26.0
    assert outcome.record["elapsed_s"] == resized.record["elapsed_s"] + 26.0
    assert outcome.record["before"]["gpus"] == 2
    assert outcome.transition is not None
    assert outcome.transition.decision == resized.decision.number
    assert elastic.tuning._limits().restart_cost_s == 21.0
    elastic.train(5)
    assert elastic.tuning.decide(0.0, 0).record["terms"]["duration_s"] == 5.0


def test_what_a_training_logs_before_it_speaks_again_is_no_reason_to_decide(elastic: Run) -> None:
    resized = elastic.tuning.decide(0.0, 1)
    elastic.start(2, resized.decision.setting, gpus=2)
    elastic.clock.now += 100.0
    elastic.tuning.observe(Report(numbers={"time": elastic.clock.now, "loss": 1.0}))
    elastic.clock.now += 100.0
    assert not elastic.tuning.is_due()


def test_a_training_that_makes_way_goes_on_as_it_is(elastic: Run) -> None:
    seq = elastic.directive.seq
    elastic.tuning.ask_to_stop("somebody else is to run")
    told = elastic.directive
    assert (told.action, told.seq, told.gpus, told.batch_size) == ("stop", seq + 1, 1, 64)
    assert told.reason == "somebody else is to run"
    elastic.clock.now += 3.0
    for tuning_ in (elastic.tuning, elastic.watch()):
        assert tuning_.leaves == "preempted"
    assert elastic.tuning.leaves_s() == 3.0
