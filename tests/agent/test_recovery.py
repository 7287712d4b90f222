"""Why attempts end and what becomes of their tasks."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_rlsched.agent.recovery import Evidence, classify, decide
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.protocol import Exit
from mlflow_rlsched.store import State, Task
from tests.task_specs import make_spec

NOW = 1000.0


def ended(code: int | None, reason: str | None = None, **more: Any) -> Evidence:
    return Evidence(exit=Exit(1, code, reason), **more)


def task(**changes: Any) -> Task:
    fields = {"state": State.RUNNING, "priority": 0, "submitted_at": 0.0, "order": 1, "attempt": 1}
    return Task(make_spec("r"), **{**fields, **changes})


def config(**changes: Any) -> RunConfig:
    return RunConfig.model_validate(changes)


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (ended(0), "finished"),
        (ended(0, done=True), "finished"),
        # `done` without the shim's word is a success; a silent one that was lost is not.
        (ended(None, "lost", done=True), "finished"),
        (ended(None, "lost"), "lost"),
        # Libraries abort in their destructors, long after the work was done.
        (ended(134, done=True), "finished"),
        (ended(137, done=True), "finished"),
        (ended(3, done=True), "user_error"),
        (ended(143, "cancelled", done=True), "cancelled"),
        # A training that was done when the cancellation arrived has succeeded.
        (ended(0, "cancelled", done=True), "finished"),
        (ended(0, "cancelled"), "cancelled"),
        (ended(143, "cancelled"), "cancelled"),
        # Code 0 after a stop request without `done` is not a finished run.
        (ended(0, "preempted"), "preempted"),
        (ended(75, "preempted"), "preempted"),
        (ended(75), "stopped"),
        # torchrun has a code of its own, whatever its ranks ended with.
        (ended(1, stopped=True), "stopped"),
        (ended(75, leaves="resized"), "resized"),
        (ended(1, stopped=True, leaves="resized"), "resized"),
        (ended(0, leaves="resized"), "resized"),
        (ended(143, "resized", leaves="resized"), "resized"),
        (ended(0, done=True, leaves="resized"), "finished"),
        (ended(1, leaves="resized"), "user_error"),
        (ended(75, leaves="preempted"), "preempted"),
        (ended(75, leaves="quantum_over"), "quantum_over"),
        (ended(1), "user_error"),
        (ended(139), "user_error"),
        (ended(137), "killed"),
        (ended(143), "killed"),
        (ended(1, oom="at batch 512"), "oom"),
        (ended(1, output="torch.OutOfMemoryError: CUDA out of memory. Tried"), "oom"),
        (ended(1, output="RuntimeError: DefaultCPUAllocator: can't allocate memory"), "oom"),
        (ended(1, output="Traceback\n...\nMemoryError"), "oom"),
        (ended(1, output="numpy: Unable to allocate 3 GiB for an array"), "oom"),
        (ended(134, output="what():  std::bad_alloc"), "oom"),
        (ended(1, output="OSError: [Errno 12] Cannot allocate memory"), "oom"),
        (ended(137, "oom", output="step 3"), "oom"),
        # Words on memory in the output of a success mean nothing.
        (ended(0, output="MemoryError"), "finished"),
        (ended(1, output="RuntimeError: CUDA error: unspecified launch failure"), "device_fault"),
        (ended(1, output="CUDA error: uncorrectable ECC error encountered"), "device_fault"),
        (ended(1, output="CUDA error: device-side assert triggered"), "user_error"),
        (ended(1, device_lost="GPU-1 does not answer"), "device_fault"),
        (ended(78, environment="could not find uv"), "environment_failure"),
        (ended(78, environment="pip: Connection reset by peer"), "unreachable"),
        (ended(78, environment="No package", output="... Connection refused"), "unreachable"),
        (ended(137, "device_fault", device_lost="GPU-1 does not answer"), "device_fault"),
        (ended(None, "device_busy"), "device_busy"),
        (ended(None, "not_started"), "not_started"),
        (ended(None, "start_failed"), "start_failed"),
        (ended(137, "lost_heartbeat"), "lost_heartbeat"),
        (ended(137, "timeout"), "timeout"),
    ],
)
def test_class_of_an_ending(evidence: Evidence, reason: str) -> None:
    assert classify(evidence)[0] == reason


@pytest.mark.parametrize(
    ("evidence", "state", "counts"),
    [
        (ended(0), State.FINISHED, False),
        (ended(1), State.FAILED, False),
        (ended(137, "timeout"), State.FAILED, False),
        (ended(None, "start_failed"), State.FAILED, False),
        (ended(78, environment="no uv"), State.FAILED, False),
        (ended(143, "cancelled"), State.KILLED, False),
        (ended(143, "parent_ended"), State.KILLED, False),
        (ended(137), State.QUEUED, True),
        (ended(None, "lost"), State.QUEUED, True),
        (ended(137, "lost_heartbeat"), State.QUEUED, True),
        (ended(1, device_lost="gone"), State.QUEUED, True),
        (ended(75), State.QUEUED, True),
        (ended(75, "preempted"), State.QUEUED, False),
        (ended(75, "quantum_over"), State.QUEUED, False),
        (ended(75, leaves="resized"), State.QUEUED, False),
        (ended(None, "device_busy"), State.QUEUED, False),
        (ended(None, "not_started"), State.QUEUED, False),
    ],
)
def test_only_what_can_succeed_is_tried_again(
    evidence: Evidence, state: State, counts: bool
) -> None:
    ending = decide(task(), config(), evidence, NOW, jitter=1.0)
    assert (ending.state, ending.counts) == (state, counts)


def test_who_was_ended_above_its_cap_goes_on_with_a_smaller_batch() -> None:
    evidence = Evidence(Exit(1, 137, "oom", "above its cap"), done=True, batch_size=64)
    ending = decide(task(), config(), evidence, NOW)
    assert (ending.state, ending.reason, ending.batch_size) == (State.QUEUED, "oom", 54)
    assert (ending.oom, ending.counts) == (True, False)
    assert ending.message.endswith("going on with 54, 15 % less; above its cap")
    nothing_to_change = Evidence(Exit(1, 137, "oom", "above its cap"))
    ending = decide(task(), config(), nothing_to_change, NOW)
    assert ending.state is State.FAILED
    assert ending.message.startswith("above its cap; it has no batch size")


@pytest.mark.parametrize("evidence", [ended(75, leaves="resized", gpus=3), ended(137, gpus=3)])
def test_it_goes_on_with_as_many_devices_as_were_decided_on(evidence: Evidence) -> None:
    assert decide(task(), config(), evidence, NOW).gpus == 3


def test_delays_grow_and_then_the_tries_are_used_up() -> None:
    delays = []
    for retries in range(3):
        ending = decide(task(retries=retries), config(), ended(137), NOW, jitter=1.0)
        delays.append(ending.not_before - NOW)
    assert delays == [10, 30, 60]
    last = decide(task(retries=3), config(), ended(137), NOW)
    assert last.state is State.FAILED
    assert last.message == "it was ended by SIGKILL from outside (tried 4 times)"


def test_delays_are_jittered() -> None:
    delays = {decide(task(), config(), ended(137), NOW).not_before - NOW for _ in range(50)}
    assert len(delays) > 10
    assert all(8 <= delay <= 12 for delay in delays)


def test_out_of_memory_shrinks_by_15_percent_down_to_the_floor_and_then_says_so() -> None:
    settings = config(batch_size={"param": "batch_size", "min": 50})
    sizes, batch = [], 100
    while True:
        ending = decide(task(ooms=len(sizes)), settings, ended(1, oom="no", batch_size=batch), NOW)
        if ending.state is State.FAILED:
            break
        assert (ending.oom, ending.counts, ending.not_before) == (True, False, 0.0)
        assert ending.batch_size is not None
        batch = ending.batch_size
        sizes.append(batch)
    assert sizes == [85, 72, 61, 51, 50]
    assert ending.message == "out of memory even at the smallest batch size allowed, 50"


def test_out_of_memory_always_makes_progress_to_one_sample() -> None:
    batch, steps = 7, 0
    while True:
        ending = decide(task(), config(), ended(1, oom="no", batch_size=batch), NOW)
        if ending.batch_size is None:
            break
        assert ending.batch_size < batch
        batch, steps = ending.batch_size, steps + 1
    assert batch == 1
    assert steps <= 6


def test_out_of_memory_without_a_batch_size_fails_with_the_reason() -> None:
    ending = decide(task(), config(), ended(1, oom="no room for 3 GB"), NOW)
    assert ending.state is State.FAILED
    assert ending.message == ("no room for 3 GB; it has no batch size that could be made smaller")


def test_user_error_tells_the_last_line_of_the_output() -> None:
    _, message = classify(ended(3, output="Traceback\n  …\nValueError: no such column\n\n"))
    assert message == "it exited with code 3: ValueError: no such column"
    _, message = classify(ended(3, output="x" * 1000))
    assert message == f"it exited with code 3: {'x' * 299}…"


def test_message_of_a_task_holds_printable_text_only() -> None:
    ending = decide(task(), config(), ended(3, output="ValueError: \x00\x1b[31mno\udcff"), NOW)
    assert ending.message == "it exited with code 3: ValueError:   [31mno "


def test_crash_by_a_signal_is_named() -> None:
    assert classify(ended(139, output="Loading data\n"))[1] == "it crashed with SIGSEGV"


def test_cancellation_tells_by_whom() -> None:
    ending = decide(task(cancel_by="ada"), config(), ended(143, "cancelled"), NOW)
    assert ending.message == "cancelled by ada"
