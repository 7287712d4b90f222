from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mlflow_rlsched import attach
from mlflow_rlsched.training import attempt as attempt_module
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory


class Untouchable:
    """A loss on a busy GPU: whoever looks at its value waits."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("is_cpu", "__class__"):  # what kind of loss it is, the GPU need not say
            return {"is_cpu": False, "__class__": Untouchable}[name]
        raise AssertionError(f"the loss was asked for its {name}")


def test_nothing_is_written_outside_a_scheduled_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hook = sys.excepthook
    with attach(batch_size=64, learning_rate=0.1) as session:
        assert session.load() is None
        assert not session.step(loss=1.0, samples=64)
        session.report(val_loss=0.5)
        assert not session.save({"step": 1})
        assert not session.should_stop
        assert not session.should_save
    assert (session.knobs.batch_size, session.knobs.learning_rate) == (64, 0.1)
    assert (session.steps, session.samples) == (1, 64)
    assert sys.excepthook is hook
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"batch_size": 0}, "attach(batch_size=0): a whole number of samples, at least 1"),
        ({"batch_size": 64.0}, "attach(batch_size=64.0): a whole number"),
        ({"learning_rate": -1}, "attach(learning_rate=-1): a positive number"),
        ({"learning_rate": math.nan}, "attach(learning_rate=nan): a positive number"),
    ],
)
def test_values_that_no_training_can_use_are_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        attach(**given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("wrong", [{"RLSCHED_ATTEMPT": "x"}, {"RLSCHED_ATTEMPT_DIR": "/no/such"}])
def test_variables_of_no_living_attempt_leave_the_training_alone(
    run: RunDirectory,
    wrong: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, text in wrong.items():
        monkeypatch.setenv(name, text)
    session = attach(batch_size=64)
    session.step(loss=1.0)
    assert "the training goes on as if it was not scheduled" in caplog.text
    assert not (run.attempt(1) / "report.jsonl").exists()


def test_a_training_that_loads_first_can_resume(run: RunDirectory) -> None:
    session = attach(batch_size=64, learning_rate=0.1)
    assert not (run.attempt(1) / "report.jsonl").exists()
    assert session.load() is None
    session.step(loss=1.0)
    hello, first = run.reports()
    assert hello.event == "hello"
    assert hello.can == {"batch_size", "learning_rate", "resume"}
    assert first.event is None


@pytest.mark.parametrize(
    ("given", "can"),
    [
        ({}, set()),
        ({"batch_size": 64}, {"batch_size"}),
        ({"learning_rate": 0.1}, {"learning_rate"}),
    ],
)
def test_nothing_is_promised_that_the_training_did_not_offer(
    run: RunDirectory, given: Any, can: set[str]
) -> None:
    run.direct(1, seq=1, batch_size=32, lr_scale=0.5)
    session = attach(**given)
    session.report(val_loss=1.0)
    assert run.reports()[0].can == can
    assert session.knobs.batch_size == (32 if "batch_size" in can else None)
    assert session.knobs.lr_scale == (0.5 if "learning_rate" in can else 1.0)


def test_an_attempt_starts_with_the_values_of_its_directive(run: RunDirectory) -> None:
    run.direct(1, seq=0, batch_size=32, lr_scale=0.5)
    session = attach(batch_size=64, learning_rate=0.1)
    assert session.knobs.batch_size == 32
    assert session.knobs.learning_rate == pytest.approx(0.05)
    session.step()
    assert session.samples == 32
    assert run.reports()[-1].numbers["applied_seq"] == 0


def test_a_directive_changes_the_knobs_at_a_step(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64, learning_rate=0.1)
    knobs = session.knobs
    assert not session.step()
    run.direct(1, seq=1, batch_size=80, lr_scale=1.25)
    clock.now += 0.1
    assert not session.step()
    clock.now += 0.2
    assert session.step()
    assert (knobs.batch_size, knobs.learning_rate) == (80, pytest.approx(0.125))
    clock.now += 0.3
    assert not session.step()
    run.direct(1, seq=2, batch_size=None, lr_scale=1.0)
    clock.now += 0.3
    assert session.step()
    assert (knobs.batch_size, knobs.learning_rate) == (64, 0.1)


def test_a_directive_for_another_attempt_is_not_obeyed(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64)
    run.direct(1, seq=1, batch_size=32)
    text = (run.attempt(1) / "directive.json").read_text()
    for wild in (text.replace('"attempt":1', '"attempt":2'), text[:20], "[]", "\0" * 50):
        (run.attempt(1) / "directive.json").write_text(wild)
        clock.now += 1
        assert not session.step()
    assert session.knobs.batch_size == 64


def test_a_step_between_two_looks_costs_no_system_call_and_no_look_at_the_loss(
    run: RunDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = attach(batch_size=64, learning_rate=0.1)
    session.step(loss=1.0)

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a system call")

    with monkeypatch.context() as patch:
        for name in ("stat", "open", "listdir", "write"):
            patch.setattr(os, name, forbidden)
        for _ in range(1000):
            session.step(loss=Untouchable(), samples=64)
        clock.now += 0.3
        with pytest.raises(AssertionError, match="a system call"):
            session.step(loss=Untouchable(), samples=64)


def test_a_directive_that_was_not_replaced_is_not_read_again(
    run: RunDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.direct(1, seq=0, batch_size=32)
    session = attach(batch_size=64)
    monkeypatch.setattr(attempt_module, "Directive", None)
    for _ in range(5):
        clock.now += 0.3
        session.step()


def test_reports_come_about_once_a_second(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64, learning_rate=0.1)
    for step in range(1000):
        session.step(loss=1000.0 - step, samples=64)
        session.report(val_loss=step, progress=step / 1000)
        clock.now += 0.01
    hello, *reports = run.reports()
    assert hello.event == "hello"
    assert 10 <= len(reports) <= 11
    last = reports[-1].numbers
    assert last["samples"] == last["step"] * 64
    before = reports[-2].numbers["step"]
    assert last["loss"] == pytest.approx(
        1000.5 - (before + last["step"]) / 2
    )  # of the steps between
    assert reports[-1].metrics["val_loss"] == last["step"] - 2
    assert reports[-1].numbers["progress"] == (last["step"] - 2) / 1000


def test_what_was_told_last_is_written_at_the_end(run: RunDirectory, clock: Clock) -> None:
    with attach(batch_size=64) as session:
        session.step(loss=1.0)
        session.report(val_loss=0.5, epoch=3)
    done = run.reports()[-1]
    assert done.event == "done"
    assert done.metrics == {"val_loss": 0.5}
    assert done.numbers["epoch"] == 3
    assert run.events() == ["hello", "done"]


def test_what_was_told_last_is_written_without_done_too(run: RunDirectory) -> None:
    script = (
        "from mlflow_rlsched import attach; session = attach(batch_size=64); "
        "session.step(); session.report(val_loss=0.5)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert run.reports()[-1].metrics == {"val_loss": 0.5}
    assert run.events() == ["hello"]


def test_nan_and_infinity_are_reported_as_such(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64, learning_rate=0.1)
    for loss in (0.5, math.nan, torch.tensor(math.inf), 10**400):
        session.step(loss=loss)
        session.report(val_loss=loss)
        clock.now += 1
    _, finite, *wild = run.reports()
    assert finite.numbers["loss"] == 0.5
    first, *others = (report.nonfinite for report in wild)
    assert first == {"loss"}
    assert others == [{"loss", "val_loss"}] * 2
    assert all("loss" not in report.numbers for report in wild)


def test_two_wild_losses_among_others_are_counted_and_spoil_no_mean(
    run: RunDirectory, clock: Clock
) -> None:
    """The loss of step 7 is NaN, that of step 8 infinite."""
    session = attach(batch_size=64, learning_rate=0.1)
    for step in range(1, 21):
        wild = {7: math.nan, 8: math.inf}.get(step, 2.0)
        session.step(loss=torch.tensor(wild))
        clock.now += 0.25
    reports = run.reports()
    assert sum(report.numbers.get("nonfinite_losses", 0) for report in reports) == 2
    assert {report.numbers["loss"] for report in reports if "loss" in report.numbers} == {2.0}
    assert all(report.nonfinite == set() for report in reports)


def test_progress_counts_samples_where_the_whole_is_known(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64)
    session.describe(dataset_size=100, drop_last=False, total_samples=400)
    for samples in (100, 100, 300):
        session.step(samples=samples)
        clock.now += 1
    assert [report.numbers.get("progress") for report in run.reports()[1:]] == [0.25, 0.5, 1.0]
    session.report(progress=0.75)
    assert run.reports()[-1].numbers["progress"] == 0.75


def test_wild_values_are_skipped_with_one_warning(
    run: RunDirectory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    session = attach(batch_size=64)
    wild: list[Any] = ["0.5", None, [1], {}, object(), torch.zeros(2), b"1"]
    for value in wild:
        for _ in range(3):
            session.step(loss=value if value is not None else "none")
            session.report(val_loss=value, accuracy=0.9)
            clock.now += 1
    assert run.reports()[-1].metrics == {"accuracy": 0.9}
    sentence = "session.report(val_loss=…) is skipped: expected a number or a tensor of one element"
    assert caplog.text.count(f"{sentence}, got str") == 1
    assert caplog.text.count("session.step(loss=…) is skipped: expected a number") == len(
        {type(value) for value in wild if value is not None}
    )


def test_tensors_are_numbers_too(run: RunDirectory, recwarn: pytest.WarningsRecorder) -> None:
    session = attach(batch_size=64)
    session.step(loss=(torch.ones(1, requires_grad=True) * 2).sum())
    assert run.reports()[-1].numbers["loss"] == 2
    session.report(accuracy=torch.tensor([0.5]), count=torch.tensor(3))
    session.done()
    assert run.reports()[-1].metrics == {"accuracy": 0.5, "count": 3}
    assert not recwarn.list


def test_a_requested_checkpoint_is_saved_once(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64)
    session.load()
    session.step()
    assert not session.should_save
    run.direct(1, seq=1, action="checkpoint")
    clock.now += 1
    assert not session.step()
    assert session.should_save
    assert not session.should_stop
    assert session.save({"step": 2})
    assert not session.should_save
    clock.now += 1
    session.step()
    assert not session.should_save
    assert run.events() == ["hello", "checkpointed"]


def test_a_training_that_breaks_off_when_asked_is_stopped_not_done(
    run: RunDirectory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        with attach(batch_size=64) as session:
            session.load()
            session.step()
            run.direct(1, seq=1, action="stop", reason="make room for run 7")
            while not session.should_stop:
                session.step()
                clock.now += 0.1
            assert session.should_save
            session.save({"step": session.steps})

    with pytest.raises(SystemExit) as caught:
        train()
    assert caught.value.code == 75
    assert run.events() == ["hello", "checkpointed", "stopped"]
    assert caplog.text.count("asked to stop: make room for run 7") == 1


def test_a_training_that_never_saw_the_stop_is_done(run: RunDirectory, clock: Clock) -> None:
    with attach(batch_size=64) as session:
        session.step()
        run.direct(1, seq=1, action="stop")
        clock.now += 1
        session.step()
    assert run.events() == ["hello", "done"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3), KeyboardInterrupt()])
def test_a_training_that_fails_is_not_done(run: RunDirectory, error: BaseException) -> None:
    def train() -> None:
        with attach(batch_size=64) as session:
            session.step()
            raise error

    with pytest.raises(type(error)):
        train()
    assert run.events() == ["hello"]


def test_an_exit_with_code_0_is_done(run: RunDirectory) -> None:
    with pytest.raises(SystemExit), attach(batch_size=64):
        sys.exit(0)
    assert run.events() == ["hello", "done"]


@pytest.mark.parametrize("sign", ["void", "later attempt"])
def test_a_superseded_attempt_saves_nothing_and_ends_itself(
    run: RunDirectory, clock: Clock, sign: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that was paused wakes up after its attempt was given to another."""

    def train() -> None:
        with attach(batch_size=64) as session:
            session.load()
            session.step()
            assert session.save({"step": 1})
            if sign == "void":
                (run.attempt(1) / "void").touch()
            else:
                run.start_attempt(3)
            assert not session.save({"step": 2})
            assert session.should_stop

    with pytest.raises(SystemExit) as caught:
        train()
    assert caught.value.code == 75
    assert "another attempt has taken over" in caplog.text
    assert [path.name for path in run.checkpoints.iterdir()] == ["000001-000001"]


def test_a_superseded_attempt_is_told_at_its_next_step(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=64)
    session.step()
    run.start_attempt(2)
    clock.now += 1
    assert not session.step()
    assert session.should_stop


def test_a_report_that_cannot_be_written_is_lost_and_no_error(
    run: RunDirectory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (run.attempt(1) / "report.jsonl").symlink_to("/dev/full")
    with attach(batch_size=64) as session:
        for _ in range(3):
            session.step(loss=1.0)
            clock.now += 1
    assert caplog.text.count("No space left on device") == 1


def test_a_report_above_the_limit_of_a_line_is_left_out(
    run: RunDirectory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    session = attach(batch_size=64)
    session.step()
    clock.now += 1
    session.report(**{f"metric_{i}_{'x' * 100}": i for i in range(1000)})
    clock.now += 1
    session.step()
    assert len(run.reports()) == 3
    assert "above the limit of 65536" in caplog.text
