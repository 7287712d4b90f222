"""What every store promises of tasks, requests, agents and transitions, call by call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mlflow_rlsched.store import (
    LEARNING_PRIORITY,
    AgentRecord,
    Quarantine,
    State,
    Store,
    Transition,
    open_store,
    transitions,
)
from tests.contract.steps import AGAIN, DONE, FAILED, GPU, read, run_ids, submit
from tests.task_specs import make_spec

# Submission and reading


def test_a_submitted_task_reads_back_as_it_was_written(store: Store, store_url: str) -> None:
    spec = make_spec(
        "a",
        params={"note": "a b", "lr": "1e-3", "leer": ""},
        config={"gpus": {"max": 2}, "lr": 1e-5},
        device_limit=["0", "GPU-2"],
        command=None,
        label="läuft",
    )
    task = store.submit(spec, 7, now=12.5)
    assert (task.state, task.priority, task.submitted_at) == (State.QUEUED, 7, 12.5)
    assert task.spec == spec
    assert store.get("a") == task
    other = open_store(store_url)
    assert other.get("a") == task
    other.close()


def test_an_unknown_task_is_none(store: Store) -> None:
    assert store.get("nobody") is None
    assert store.attempts("nobody") == []


def test_submitting_an_unfinished_task_again_changes_nothing(store: Store) -> None:
    first = store.submit(make_spec("a"), 1, now=1.0)
    assert store.submit(make_spec("a", label="another"), 9, now=2.0) == first
    store.claim("a", "here", [], now=3.0)
    running = read(store, "a")
    assert store.submit(make_spec("a", label="another"), 9, now=4.0) == running
    assert store.tasks() == [running]


def test_a_final_task_is_resumed_by_submitting_it_again(store: Store, store_url: str) -> None:
    submit(store, "a", "b")
    store.claim("a", "here", [], now=1.0)
    store.heartbeat("here", {"a": 7}, now=1.5)
    store.end_attempt("a", 1, replace(AGAIN, oom=True, batch_size=32), now=2.0)
    store.claim("a", "here", [], now=3.0)
    store.end_attempt("a", 2, FAILED, now=4.0)
    store.mark_tracked("a")
    other = open_store(store_url)
    resumed = other.submit(make_spec("a", params={"epochs": "9"}), 3, now=5.0)
    other.close()
    assert read(store, "a") == resumed, "a specification that was read before is not kept"
    assert resumed.spec.params == {"epochs": "9"}
    assert (resumed.state, resumed.priority, resumed.submitted_at) == (State.QUEUED, 3, 5.0)
    assert resumed.order > read(store, "b").order
    assert (resumed.attempt, resumed.started_at, resumed.samples) == (2, 1.0, 7)
    assert (resumed.retries, resumed.ooms, resumed.batch_size) == (0, 0, None)
    assert (resumed.exit_reason, resumed.ended_at, resumed.tracked) == ("", None, False)
    attempt = store.claim("a", "here", [GPU], now=6.0)
    assert attempt is not None
    assert attempt.number == 3


def test_tasks_are_ranked_by_priority_then_age(store: Store) -> None:
    submit(store, "old", "young")
    submit(store, "urgent", priority=5)
    submit(store, "idle", priority=-1)
    assert run_ids(store) == ["urgent", "old", "young", "idle"]
    store.prioritize("idle", 6)
    assert run_ids(store)[0] == "idle"


def test_age_follows_the_submissions_whatever_the_clock_says(store: Store) -> None:
    store.submit(make_spec("first"), 0, now=1000.0)
    store.submit(make_spec("second"), 0, now=1.0)
    assert run_ids(store) == ["first", "second"]


def test_tasks_of_some_states(store: Store) -> None:
    submit(store, "a", "b", "c")
    store.claim("a", "here", [], now=1.0)
    store.end_queued("b", FAILED, now=1.0)
    assert run_ids(store, states=[State.RUNNING]) == ["a"]
    assert run_ids(store, states=[State.QUEUED, State.RUNNING]) == ["a", "c"]
    assert run_ids(store, states=[]) == []


def test_tasks_of_a_host_are_those_pinned_to_it_or_to_none(store: Store) -> None:
    submit(store, "mine")
    submit(store, "theirs", host="there")
    submit(store, "anywhere", host=None)
    assert run_ids(store, host="here") == ["mine", "anywhere"]
    assert run_ids(store) == ["mine", "theirs", "anywhere"]


def test_a_limit_keeps_unfinished_tasks_and_the_newest_final_ones(store: Store) -> None:
    submit(store, "f1", "f2", "f3", priority=9)
    for run_id in ("f1", "f2", "f3"):
        store.end_queued(run_id, FAILED, now=1.0)
    submit(store, "low", "high")
    store.prioritize("high", 1)
    assert run_ids(store, limit=3) == ["f3", "high", "low"]
    assert run_ids(store, limit=2) == ["high", "low"]
    assert run_ids(store, limit=1) == ["high"]
    assert run_ids(store, limit=99) == ["f1", "f2", "f3", "high", "low"]


# Heartbeat and tracking


def test_a_heartbeat_vouches_for_running_attempts_of_its_host(store: Store) -> None:
    submit(store, "mine", "ended", host=None)
    submit(store, "theirs", host=None)
    store.claim("mine", "here", [], now=1.0)
    store.claim("ended", "here", [], now=1.0)
    store.end_attempt("ended", 1, DONE, now=2.0)
    store.claim("theirs", "there", [], now=1.0)
    store.heartbeat("here", {"mine": 12, "ended": 12, "theirs": 12, "nobody": 12}, now=9.0)
    samples, beats = {}, {}
    for task in store.tasks():
        samples[task.run_id] = task.samples
        beats[task.run_id] = store.attempts(task.run_id)[0].heartbeat_at
    assert samples == {"mine": 12, "ended": 0, "theirs": 0}
    assert beats == {"mine": 9.0, "ended": 1.0, "theirs": 1.0}
    store.heartbeat("here", {}, now=10.0)
    assert store.attempts("mine")[0].heartbeat_at == 9.0


def test_untracked_tasks_are_final_ones_pinned_to_the_host_or_run_there(store: Store) -> None:
    submit(store, "pinned", "unfinished", "tracked")
    submit(store, "ran-here", "ran-there", host=None)
    store.end_queued("pinned", FAILED, now=1.0)
    store.end_queued("tracked", FAILED, now=1.0)
    for run_id, host in (("ran-here", "here"), ("ran-there", "there")):
        store.claim(run_id, host, [], now=1.0)
        store.end_attempt(run_id, 1, DONE, now=2.0)
    store.mark_tracked("tracked")
    store.mark_tracked("unfinished")
    store.mark_tracked("nobody")
    assert {task.run_id for task in store.untracked("here")} == {"pinned", "ran-here"}
    task = read(store, "unfinished")
    assert not task.tracked, "the status of a task that is not final is not the final one"


# Requests of people


def test_the_last_who_cancels_is_kept(store: Store) -> None:
    submit(store, "a")
    assert store.request_cancel("a", "ada")
    assert store.request_cancel("a", "bob")
    task = read(store, "a")
    assert (task.cancel_by, task.state) == ("bob", State.QUEUED)


@pytest.mark.parametrize(
    "request_",
    [lambda store: store.request_cancel("a", "ada"), lambda store: store.prioritize("a", 3)],
    ids=["cancel", "prioritize"],
)
def test_a_final_task_takes_no_requests(store: Store, request_: Callable[[Store], bool]) -> None:
    submit(store, "a")
    store.end_queued("a", FAILED, now=1.0)
    before = store.get("a")
    assert request_(store) is False
    assert store.get("a") == before
    assert store.request_cancel("nobody", "ada") is False
    assert store.prioritize("nobody", 1) is False


def test_a_running_task_can_be_prioritized(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    assert store.prioritize("a", -4)
    task = read(store, "a")
    assert task.priority == -4


def test_retry_gives_fresh_budgets_and_goes_on_counting_attempts(store: Store) -> None:
    submit(store, "a")
    store.claim("a", "here", [], now=1.0)
    store.end_attempt("a", 1, replace(AGAIN, oom=True, not_before=50.0), now=2.0)
    store.claim("a", "here", [], now=60.0)
    store.request_cancel("a", "ada")
    store.end_attempt("a", 2, AGAIN, now=61.0)
    store.mark_tracked("a")
    assert store.retry("a", now=70.0)
    task = read(store, "a")
    assert (task.state, task.retries, task.ooms, task.cancel_by) == (State.QUEUED, 0, 0, None)
    assert (task.exit_reason, task.message, task.ended_at, task.tracked) == ("", "", None, False)
    assert (task.started_at, task.submitted_at, task.attempt) == (1.0, 70.0, 2)
    assert task.not_before == 0.0
    attempt = store.claim("a", "here", [GPU], now=70.0)
    assert attempt is not None
    assert attempt.number == 3


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.FINISHED])
def test_only_failed_and_killed_tasks_are_retried(store: Store, state: State) -> None:
    submit(store, "a")
    if state is not State.QUEUED:
        store.claim("a", "here", [], now=1.0)
    if state is State.FINISHED:
        store.end_attempt("a", 1, DONE, now=2.0)
    before = store.get("a")
    assert store.retry("a", now=3.0) is False
    assert store.get("a") == before
    assert store.retry("nobody", now=3.0) is False


# Agents, quarantine, transitions


def test_agents_come_renew_and_go(store: Store) -> None:
    record = AgentRecord("here", "ada", "0.1.0", 1.0, 1.0, ({"id": "GPU-1", "kind": "nvidia"},))
    store.register_agent(record, now=2.0)
    store.register_agent(replace(record, user="bob", devices=()), now=3.0)
    assert store.agents() == [
        replace(record, heartbeat_at=2.0),
        replace(record, user="bob", devices=(), heartbeat_at=3.0),
    ]
    store.register_agent(replace(record, version="0.2.0"), now=4.0)
    assert store.agents()[0] == replace(record, version="0.2.0", heartbeat_at=4.0)
    store.unregister_agent("here", "ada")
    store.unregister_agent("here", "ada")
    assert [agent.user for agent in store.agents()] == ["bob"]


def test_quarantine_is_replaced_and_ended(store: Store) -> None:
    item = Quarantine("here", "GPU-1", "memory not freed", until=60.0, failures=1)
    store.quarantine(item)
    store.quarantine(replace(item, until=120.0, failures=2))
    store.quarantine(replace(item, host="there"))
    assert store.quarantined("here") == [replace(item, until=120.0, failures=2)]
    assert len(store.quarantined()) == 2
    store.end_quarantine("here", "GPU-1")
    store.end_quarantine("here", "GPU-1")
    assert [item.host for item in store.quarantined()] == ["there"]


def test_transitions_are_kept_once_and_read_on_from_a_serial_number(store: Store) -> None:
    first = Transition("a", 1, {"state": [0.5, -1.0], "action": {"gpu_delta": 1}}, key=True)
    store.add_transitions([first, Transition("b", 1), Transition("b", 1, {"other": 1})])
    store.add_transitions([replace(first, data={}, key=False), Transition("a", 2)])
    found = store.transitions()
    assert [item for _, item in found] == [first, Transition("b", 1), Transition("a", 2)]
    serials = [serial for serial, _ in found]
    assert serials == sorted(set(serials))
    assert store.transitions(after=serials[1]) == found[2:]
    assert store.transitions(run_id="a") == [found[0], found[2]]
    assert store.transitions(limit=2) == found[:2]
    store.add_transitions([])
    assert len(store.transitions()) == 3


def test_beyond_a_number_the_oldest_transitions_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "KEPT_TRANSITIONS", 3)
    for number in range(1, 6):
        store.add_transitions([Transition("a", number)])
    found = store.transitions()
    assert [item.decision for _, item in found] == [3, 4, 5]
    store.add_transitions([])
    assert store.transitions() == found


# Learning


def test_one_task_learns_once_enough_has_come_in(store: Store) -> None:
    assert not store.is_time_to_learn(3)
    store.add_transitions([Transition("a", n, learnable=n != 2) for n in range(1, 4)])
    assert not store.is_time_to_learn(3)
    assert store.submit_learning(make_spec("early"), 1.0, 3) is None
    assert store.tasks() == []
    store.add_transitions([Transition("a", 4, learnable=True)])
    assert store.is_time_to_learn(3)
    task = store.submit_learning(make_spec("first"), 1.0, 3)
    assert task is not None
    assert task == read(store, "first")
    assert (task.state, task.priority) == (State.QUEUED, LEARNING_PRIORITY)


def test_no_other_one_learns_until_it_is_over_and_more_has_come_in(store: Store) -> None:
    new = [Transition("a", n, learnable=True) for n in range(1, 9)]
    store.add_transitions(new[:3])
    assert store.submit_learning(make_spec("first"), 1.0, 3) is not None
    store.add_transitions(new[3:6])
    assert store.submit_learning(make_spec("second"), 2.0, 3) is None
    store.claim("first", "here", [], now=3.0)
    assert not store.is_time_to_learn(3)
    store.end_attempt("first", 1, FAILED, now=4.0)
    assert store.submit_learning(make_spec("second"), 5.0, 3) is not None
    store.end_queued("second", FAILED, now=6.0)
    store.add_transitions(new[6:8])
    assert store.submit_learning(make_spec("third"), 7.0, 3) is None
    assert store.submit_learning(make_spec("third"), 7.0, 2) is not None
    assert run_ids(store) == ["first", "second", "third"]
