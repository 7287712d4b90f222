"""What every store promises of attempts, leases and endings, call by call."""

from __future__ import annotations

from dataclasses import replace

from mlflow_rlsched.store import DeviceShare, Ending, State, Store
from tests.contract.steps import AGAIN, DONE, FAILED, GPU, HALF, read, submit

# Claiming


def test_a_claim_starts_an_attempt_and_leases_its_devices(store: Store) -> None:
    submit(store, "a")
    attempt = store.claim("a", "here", [GPU, DeviceShare("GPU-2", 30)], now=5.0)
    assert attempt is not None
    assert (attempt.number, attempt.host, attempt.started_at) == (1, "here", 5.0)
    assert attempt.ended_at is None
    assert store.attempts("a") == [attempt]
    task = read(store, "a")
    assert (task.state, task.attempt, task.started_at) == (State.RUNNING, 1, 5.0)
    leases = {lease.share: (lease.host, lease.run_id, lease.attempt) for lease in store.leases()}
    assert leases == dict.fromkeys(attempt.devices, ("here", "a", 1))


def test_only_a_queued_task_is_claimed(store: Store) -> None:
    submit(store, "a")
    assert store.claim("nobody", "here", [GPU], now=1.0) is None
    assert store.claim("a", "here", [GPU], now=1.0)
    assert store.claim("a", "here", [DeviceShare("GPU-2")], now=1.0) is None
    store.end_attempt("a", 1, DONE, now=2.0)
    store.release("a", 1)
    assert store.claim("a", "here", [GPU], now=3.0) is None
    assert store.leases() == []
    assert len(store.attempts("a")) == 1


def test_a_cancelled_task_is_not_claimed(store: Store) -> None:
    submit(store, "a")
    store.request_cancel("a", "ada")
    assert store.claim("a", "here", [GPU], now=1.0) is None
    assert store.leases() == []


def test_a_task_is_not_claimed_before_its_time(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [GPU], now=1.0)
    store.end_attempt("a", 1, replace(AGAIN, not_before=60.0), now=2.0)
    store.release("a", 1)
    assert store.claim("a", "here", [GPU], now=59.9) is None
    assert store.claim("a", "here", [GPU], now=60.0)


def test_a_task_pinned_to_another_host_is_not_claimed(store: Store) -> None:
    submit(store, "a", host="there")
    assert store.claim("a", "here", [GPU], now=1.0) is None
    assert store.claim("a", "there", [GPU], now=1.0)


def test_no_device_is_leased_beyond_its_whole(store: Store) -> None:
    submit(store, "a", "b", "c", "d", host=None)
    assert store.claim("a", "here", [DeviceShare("GPU-1", 60)], now=1.0)
    assert (
        store.claim("b", "here", [DeviceShare("GPU-2"), DeviceShare("GPU-1", 41)], now=1.0) is None
    )
    assert [lease.share.device for lease in store.leases()] == ["GPU-1"]
    assert store.claim("b", "here", [DeviceShare("GPU-1", 40)], now=1.0)
    assert store.claim("c", "here", [DeviceShare("GPU-1", 1)], now=1.0) is None
    assert store.claim("d", "there", [GPU], now=1.0), "the same name on another host is free"
    task = read(store, "c")
    assert (task.state, task.attempt) == (State.QUEUED, 0)


def test_shares_of_the_same_device_add_up(store: Store) -> None:
    submit(store, "a", "b")
    assert store.claim("a", "here", [HALF, DeviceShare("GPU-1", 51)], now=1.0) is None
    assert store.claim("b", "here", [HALF, HALF], now=1.0)
    assert sum(lease.share.amount for lease in store.leases()) == 100


def test_a_task_without_devices_takes_no_lease(store: Store) -> None:
    submit(store, "a")
    assert store.claim("a", "here", [], now=1.0)
    assert store.leases() == []


# Endings, fences, release


def test_an_ending_is_recorded_with_task_and_attempt(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [GPU], now=1.0)
    assert store.end_attempt("a", 1, FAILED, now=9.0)
    task, (attempt,) = read(store, "a"), store.attempts("a")
    assert (task.state, task.exit_reason, task.message) == (
        State.FAILED,
        "user_error",
        "exit code 3",
    )
    assert (task.ended_at, task.tracked) == (9.0, False)
    assert (attempt.ended_at, attempt.exit_code, attempt.reason) == (9.0, 3, "user_error")


def test_budgets_are_counted_apart(store: Store) -> None:
    submit(store, "a")
    endings = [
        AGAIN,
        Ending(State.QUEUED, "oom", "out of memory", oom=True, batch_size=54),
        Ending(State.QUEUED, "resized", "stopped on request", exit_code=75, gpus=2),
        Ending(State.QUEUED, "preempted", "stopped on request", exit_code=75),
    ]
    for number, ending in enumerate(endings, start=1):
        assert store.claim("a", "here", [], now=1.0)
        assert store.end_attempt("a", number, ending, now=2.0)
    task = read(store, "a")
    assert (task.retries, task.ooms, task.batch_size, task.gpus) == (1, 1, 54, 2)
    assert task.attempt == 4
    assert task.ended_at is None
    reasons = [attempt.reason for attempt in store.attempts("a")]
    assert reasons == ["killed", "oom", "resized", "preempted"]


def test_the_first_start_is_kept(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    store.end_attempt("a", 1, AGAIN, now=2.0)
    store.claim("a", "here", [], now=3.0)
    task = read(store, "a")
    assert task.started_at == 1.0


def test_a_late_owner_changes_nothing(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    store.end_attempt("a", 1, AGAIN, now=2.0)
    store.claim("a", "here", [GPU], now=3.0)
    before = (store.get("a"), store.attempts("a"), store.leases())
    for number in (0, 1, 3):
        assert store.end_attempt("a", number, DONE, now=4.0) is False
    assert store.end_attempt("nobody", 1, DONE, now=4.0) is False
    assert (store.get("a"), store.attempts("a"), store.leases()) == before


def test_an_attempt_ends_once(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    assert store.end_attempt("a", 1, AGAIN, now=2.0)
    before = (store.get("a"), store.attempts("a"))
    assert store.end_attempt("a", 1, FAILED, now=3.0) is False
    assert (store.get("a"), store.attempts("a")) == before


def test_a_cancelled_task_is_killed_and_not_tried_again(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    assert store.request_cancel("a", "ada")
    assert store.end_attempt("a", 1, AGAIN, now=2.0)
    task = read(store, "a")
    assert (task.state, task.ended_at) == (State.KILLED, 2.0)
    assert "ada" in task.message


def test_a_run_that_finished_before_its_cancellation_stays_finished(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    store.request_cancel("a", "ada")
    store.end_attempt("a", 1, DONE, now=2.0)
    task = read(store, "a")
    assert task.state is State.FINISHED


def test_leases_last_until_release(store: Store) -> None:
    submit(store, "a", "b")
    store.claim("a", "here", [GPU, DeviceShare("GPU-2"), DeviceShare("GPU-3")], now=1.0)
    store.end_attempt("a", 1, DONE, now=2.0)
    assert store.claim("b", "here", [GPU], now=3.0) is None
    store.release("a", 1, ["GPU-1"])
    assert {lease.share.device for lease in store.leases("here")} == {"GPU-2", "GPU-3"}
    store.release("a", 1, [])
    assert len(store.leases()) == 2
    store.release("a", 1)
    store.release("a", 1)
    assert store.leases() == []
    assert store.claim("b", "here", [GPU], now=4.0)


def test_release_touches_its_attempt_only(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [DeviceShare("GPU-1")], now=1.0)
    store.end_attempt("a", 1, AGAIN, now=2.0)
    store.claim("a", "here", [DeviceShare("GPU-2")], now=3.0)
    store.release("a", 1)
    assert [(lease.share.device, lease.attempt) for lease in store.leases()] == [("GPU-2", 2)]


def test_leases_of_a_host(store: Store) -> None:
    submit(store, "a", "b", host=None)
    store.claim("a", "here", [GPU], now=1.0)
    store.claim("b", "there", [GPU], now=1.0)
    assert [lease.run_id for lease in store.leases("there")] == ["b"]


def test_only_a_queued_task_ends_in_the_queue(store: Store) -> None:
    submit(store, "a", "b")
    assert store.end_queued("a", Ending(State.KILLED, "cancelled", "cancelled by ada"), now=5.0)
    task = read(store, "a")
    assert (task.state, task.ended_at, task.exit_reason) == (State.KILLED, 5.0, "cancelled")
    assert store.end_queued("a", FAILED, now=6.0) is False
    store.claim("b", "here", [], now=5.0)
    assert store.end_queued("b", FAILED, now=6.0) is False
    assert store.end_queued("nobody", FAILED, now=6.0) is False


def test_endings_of_what_runs_are_counted_by_their_reason(store: Store) -> None:
    submit(store, "a", "b", "c")
    preempted = Ending(State.QUEUED, "preempted", "")
    for run_id, endings in (("a", [preempted, AGAIN, preempted]), ("b", [AGAIN]), ("c", [])):
        for number, ending in enumerate(endings, start=1):
            store.claim(run_id, "here", [], now=1.0)
            store.end_attempt(run_id, number, ending, now=2.0)
        store.claim(run_id, "here", [], now=3.0)
    assert store.endings("preempted") == {"a": 2}
    assert store.endings(AGAIN.reason) == {"a": 1, "b": 1}
    store.end_attempt("a", 4, DONE, now=4.0)
    assert store.endings("preempted") == {}, "it does not run any more"
