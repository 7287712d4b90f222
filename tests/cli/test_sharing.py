"""Commands in a store that users share: each asks for their own only, an administrator for all."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mlflow_rlsched import daemon, requests, trust
from mlflow_rlsched.cli.doctor import check_sharing
from mlflow_rlsched.sharing import requests_dir
from mlflow_rlsched.store import Ending, State, Store, Task, open_store
from tests.cli.conftest import Rlsched
from tests.task_specs import make_spec

FAILED = Ending(State.FAILED, "user_error", "")
REQUESTS = (("cancel", "theirs"), ("prioritize", "theirs", "9"), ("retry", "theirs"))


@pytest.fixture
def me(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The user of this process: the one whom the kernel vouches for."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    for module in (daemon, trust, requests):
        monkeypatch.setattr(module, "user_name", lambda: name)
    monkeypatch.setattr(requests, "wake_agent", lambda url: None)
    return name


@pytest.fixture
def store(shared_url: str, monkeypatch: pytest.MonkeyPatch, me: str) -> Iterator[Store]:
    monkeypatch.setenv("RLSCHED_CFG_STORE", shared_url)
    with closing(open_store(shared_url)) as opened:
        for name, user in (("theirs", "somebody"), ("mine", me)):
            spec = make_spec(name, user=user)
            opened.submit(spec, 0, 5.0, trust.proofs_of_submission(shared_url, spec, 0, 5.0))
        yield opened


def task_of(store: Store, name: str) -> Task:
    task = store.get(name)
    assert task is not None
    return task


def name_administrators(text: str) -> None:
    Path(os.environ["RLSCHED_POOL_FILE"]).write_text(f"administrators = {text}\n")


@pytest.mark.parametrize("command", REQUESTS)
def test_what_is_another_users_is_refused(
    rlsched: Rlsched, store: Store, command: tuple[str, ...]
) -> None:
    name_administrators('["carol"]')
    before = task_of(store, "theirs")
    result = rlsched(*command)
    assert result.exit_code == 1
    assert "is of somebody: only somebody or an administrator (carol) may ask that" in result.stderr
    assert task_of(store, "theirs") == before


def test_nothing_is_cancelled_when_one_of_several_is_another_users(
    rlsched: Rlsched, store: Store
) -> None:
    assert rlsched("cancel", "mine", "theirs").exit_code == 1
    assert task_of(store, "mine").cancel_by is None


@pytest.mark.parametrize("command", REQUESTS)
def test_an_administrator_asks_for_what_is_anybodys(
    rlsched: Rlsched, store: Store, shared_url: str, me: str, command: tuple[str, ...]
) -> None:
    name_administrators(f'["{me}"]')
    if command[0] == "retry":
        store.end_queued("theirs", FAILED, 6.0)
    result = rlsched(*command)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "as soon as the agent of somebody looks" in result.stdout
    task = task_of(store, "theirs")
    what, value = {
        "cancel": (trust.CANCEL, me),
        "prioritize": (trust.PRIORITY, 9),
        "retry": (trust.QUEUE, task.proofs[trust.SPEC]),
    }[command[0]]
    said = trust.statement(what, "theirs", task.submitted_at, value)
    assert trust.is_vouched(shared_url, said, [me])


def test_what_is_ones_own_is_signed(
    rlsched: Rlsched, shared_url: str, store: Store, me: str
) -> None:
    assert rlsched("prioritize", "mine", "4").exit_code == 0
    assert rlsched("cancel", "mine").exit_code == 0
    task = task_of(store, "mine")
    for what, value in ((trust.PRIORITY, 4), (trust.CANCEL, me)):
        said = trust.statement(what, "mine", task.submitted_at, value)
        assert trust.is_signed(shared_url, said, task.proofs[what])


def test_what_somebody_wrote_in_ones_name_is_not_retried(
    rlsched: Rlsched, store: Store, me: str
) -> None:
    store.submit(make_spec("forged", user=me), 0, 5.0)
    store.end_queued("forged", FAILED, 6.0)
    result = rlsched("retry", "forged")
    assert result.exit_code == 1
    assert "was not signed by you" in result.stderr


def test_rules_that_cannot_be_used_are_said_in_a_sentence(rlsched: Rlsched, store: Store) -> None:
    name_administrators("5")
    for command in (("cancel", "mine"), ("queue",)):
        result = rlsched(*command)
        assert result.exit_code == 1
        assert "administrators is 5, must be a list of users" in result.stderr


def test_doctor_tells_the_rules_and_what_does_not_count(
    store: Store, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_administrators('["carol"]\nquotas = {ada = 2}')
    finding = check_sharing(shared_url)
    assert finding.ok
    assert "administrators carol; quotas {'ada': 2}" in finding.text
    assert "do not count" not in finding.text
    monkeypatch.setenv("RLSCHED_CFG_WEIGHTS", '{"ada": 3.0}')
    assert "your own weights do not count" in check_sharing(shared_url).text
    requests_dir(shared_url).rmdir()
    assert "is missing" in check_sharing(shared_url).text
