"""What every store promises users who share it: proofs, outlooks and requests to make way."""

from __future__ import annotations

import pytest

from mlflow_rlsched.store import Outlook, Store
from tests.contract.steps import AGAIN, FAILED, GPU, read, submit
from tests.task_specs import make_spec

OUTLOOK = Outlook(1, True, False, 9.5, "it is 50% done")
FIRST = {"spec": "s", "queue": "q", "priority": "p"}


def test_proofs_are_kept_with_what_they_prove(store: Store) -> None:
    assert store.submit(make_spec("a"), 0, 1.0, FIRST).proofs == FIRST
    store.prioritize("a", 5, "p5")
    store.request_cancel("a", "ada", "c")
    store.request_cancel("a", "ben", "c2")
    assert read(store, "a").cancel_by == "ben"
    assert read(store, "a").proofs == FIRST | {"priority": "p5", "cancel": "c2"}


def test_a_retry_brings_its_own_proofs_and_ends_the_cancellation(store: Store) -> None:
    store.submit(make_spec("a"), 0, 1.0, FIRST)
    store.request_cancel("a", "ada", "c")
    store.end_queued("a", FAILED, 2.0)
    assert store.retry("a", 3.0, {"queue": "q2", "priority": "p2"})
    task = read(store, "a")
    assert task.proofs == {"spec": "s", "queue": "q2", "priority": "p2"}
    assert (task.cancel_by, task.submitted_at) == (None, 3.0)


def test_a_cancellation_can_be_dismissed_until_the_end(store: Store) -> None:
    submit(store, "a", "b")
    for run_id in ("a", "b"):
        store.request_cancel(run_id, "ada")
    store.dismiss_cancel(read(store, "a"))
    seen = read(store, "b")
    store.end_queued("b", FAILED, 2.0)
    store.dismiss_cancel(seen)
    assert read(store, "a").cancel_by is None
    assert read(store, "b").cancel_by == "ada"


@pytest.mark.parametrize("another", [("ben", "c"), ("ada", "c2")])
def test_only_the_cancellation_that_was_seen_is_dismissed(
    store: Store, another: tuple[str, str]
) -> None:
    submit(store, "a")
    store.request_cancel("a", "ada", "c")
    seen = read(store, "a")
    store.request_cancel("a", *another)
    store.dismiss_cancel(seen)
    assert read(store, "a").cancel_by == another[0]


def test_a_proof_is_replaced_unless_it_changed_since(store: Store) -> None:
    seen = store.submit(make_spec("a"), 0, 1.0, FIRST)
    store.replace_proof(seen, "queue", "q2")
    assert read(store, "a").proofs == FIRST | {"queue": "q2"}
    seen = read(store, "a")
    store.prioritize("a", 5, "p5")
    store.replace_proof(seen, "priority", "p0")
    assert read(store, "a").proofs == FIRST | {"queue": "q2", "priority": "p5"}
    seen = read(store, "a")
    store.end_queued("a", FAILED, 2.0)
    store.replace_proof(seen, "queue", "q3")
    assert read(store, "a").proofs["queue"] == "q2"


def test_outlooks_are_of_attempts_that_have_not_ended(store: Store) -> None:
    submit(store, "a", "b", "c", host=None)
    store.claim("a", "here", [GPU], 1.0)
    store.claim("b", "there", [GPU], 1.0)
    store.tell_outlooks("here", dict.fromkeys("abc", OUTLOOK))
    store.tell_outlooks("here", {})
    (attempt,) = store.running_attempts("here")
    assert (attempt.run_id, attempt.outlook) == ("a", OUTLOOK)
    assert [each.outlook for each in store.running_attempts("there")] == [None]
    store.end_attempt("a", 1, AGAIN, 2.0)
    assert store.running_attempts("here") == []
    store.release("a", 1)
    store.claim("a", "here", [GPU], AGAIN.not_before + 3.0)
    assert [each.outlook for each in store.running_attempts("here")] == [None]


def test_an_attempt_is_asked_once_to_make_way_for_a_run(store: Store) -> None:
    submit(store, "a", "b")
    assert not store.ask_way("a", 0, "b", 1.0), "it does not run"
    store.claim("a", "here", [GPU], 1.0)
    assert store.ask_way("a", 1, "b", 2.0)
    assert not store.ask_way("a", 1, "b", 3.0)
    (attempt,) = store.attempts("a")
    assert (attempt.way_for, attempt.way_at) == ("b", 2.0)
    assert store.ask_way("a", 1, "c", 3.5)
    assert [(each.way_for, each.way_at) for each in store.attempts("a")] == [("c", 3.5)]
    store.end_attempt("a", 1, AGAIN, 4.0)
    assert not store.ask_way("a", 1, "c", 5.0)
