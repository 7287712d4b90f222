"""Agents of several users on one host with one store; host, clock and trainings are simulated."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import trust
from mlflow_rlsched.agent import loop
from mlflow_rlsched.agent.others import CLAIM_S, LOST_S, Others
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.store import (
    AgentRecord,
    DeviceShare,
    Ending,
    Outlook,
    State,
    Store,
    Task,
    open_store,
)
from tests.agent.simulated import GPUS, Host, Training, folder_in_memory
from tests.task_specs import make_spec

PASS_S = 5.0


class SharedHost(Host):
    """A host whose users share its store; one process stands for all their agents."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        patch.setattr(loop, "is_shared", lambda url: True)
        self._patch = patch
        self._agents: dict[str, loop.Agent | None] = {}

    def tick_of(self, user: str) -> None:
        """Let the agent of this user work once."""
        self._patch.setattr(loop, "user_name", lambda: user)
        self.agent = self._agents.get(user)
        self.tick()
        self._agents[user], self.agent = self.agent, None

    def kill_agent_of(self, user: str) -> None:
        """kill -9."""
        self.agent = self._agents.pop(user)
        self.kill_agent()

    def retry_for(self, run_id: str) -> None:
        """Queue a run of another user again, as an administrator."""
        task = self.store.get(run_id)
        assert task is not None
        url = self._files.store
        trust.requests_dir(url).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trust, "is_shared", lambda url: True)
            patch.setattr(trust, "user_name", lambda: "an administrator")
            now = trust.queue_time(task)
            assert self.store.retry(run_id, now, trust.proofs_of_retry(url, task, now))

    def agent_of(self, user: str) -> loop.Agent:
        agent = self._agents[user]
        assert agent is not None
        return agent

    def forge(self, statement: str, *values: Any) -> None:
        """Write into the store by other means than ``rlsched``."""
        path = self._files.store.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement, values)

    def requests(self) -> list[Path]:
        """Files of administrators' requests."""
        return list(trust.requests_dir(self._files.store).iterdir())

    def close(self) -> None:
        for agent in self._agents.values():
            self.agent = agent
            self.kill_agent()
        super().close()

    def running(self) -> set[str]:
        return {task.run_id for task in self.store.tasks([State.RUNNING])}

    def training_of(self, run_id: str) -> Any:
        (found,) = [each for each in self.live() if each.run_id == run_id]
        return found


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedHost]:
    root = folder_in_memory()
    made = SharedHost(root, monkeypatch)
    yield made
    made.close()
    shutil.rmtree(root)


def adas_run(host: SharedHost) -> Training:
    """A run of Ada's on all devices, which resumes, as Bob's agent knows."""
    run_id = host.submit(user="ada", gpus=GPUS, can=["resume"])
    host.tick_of("ada")
    training = host.training_of(run_id)
    host.report(training, step=1)
    host.tick_of("bob")
    host.tick_of("ada")  # reads what it can, and tells the others
    return training


def test_each_agent_starts_what_is_its_own_and_leaves_the_rest(host: SharedHost) -> None:
    adas = host.submit(user="ada")
    bobs = host.submit(user="bob")
    host.tick_of("ada")
    assert host.running() == {adas}
    host.tick_of("bob")
    assert host.running() == {adas, bobs}


def test_who_holds_less_comes_first_whoever_looks_first(host: SharedHost) -> None:
    adas = [host.submit(user="ada") for _ in range(GPUS + 2)]
    host.tick_of("ada")
    assert host.running() == set(adas[:GPUS])
    bobs = host.submit(user="bob")
    host.tick_of("bob")
    host.end(host.training_of(adas[0]), 0)
    host.tick_of("ada")
    assert bobs not in host.running()
    assert adas[GPUS] not in host.running(), "the device is left to Bob's"
    host.tick_of("bob")
    assert bobs in host.running()


def test_quotas_are_the_administrators(
    host: SharedHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = tmp_path / "pool.toml"
    rules.write_text("quotas = {ada = 1}")
    monkeypatch.setenv("RLSCHED_POOL_FILE", str(rules))
    first, second = (host.submit(user="ada", quotas={"ada": 9}) for _ in range(2))
    host.tick_of("ada")
    assert host.running() == {first}
    rules.write_text("quotas = {ada = 2}")
    host.tick_of("ada")
    assert host.running() == {first, second}


def test_rules_that_cannot_be_used_start_nothing(
    host: SharedHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pool.toml").write_text("quota = {ada = 1}")
    monkeypatch.setenv("RLSCHED_POOL_FILE", str(tmp_path / "pool.toml"))
    host.submit(user="ada")
    host.tick_of("ada")
    assert host.running() == set()
    (tmp_path / "pool.toml").unlink()
    host.tick_of("ada")
    assert len(host.running()) == 1


def test_an_agent_that_is_silent_holds_up_nobody(host: SharedHost) -> None:
    host.tick_of("bob")
    host.submit(user="bob", priority=9, gpus=GPUS)
    adas = host.submit(user="ada", gpus=GPUS)
    host.tick_of("ada")
    assert host.running() == set(), "Bob's agent may be about to start it"
    for _ in range(3):  # it is dead, and Ada's own look at it does not keep it alive
        host.work(LOST_S / 3 + 1)
        host.tick_of("ada")
    assert host.running() == {adas}


def test_an_agent_that_does_not_use_a_device_holds_it_up_for_a_while_only(host: SharedHost) -> None:
    bobs = host.submit(user="bob", priority=9, gpus=GPUS)
    adas = host.submit(user="ada", gpus=GPUS)
    passes = 0
    while not host.running():
        now = host.clock.time()
        alive = AgentRecord(socket.gethostname(), "bob", "1", 0.0, now)
        host.store.register_agent(alive, now)
        host.tick_of("ada")
        host.work(PASS_S)
        passes += 1
        assert passes * PASS_S <= CLAIM_S + 3 * PASS_S
    assert host.running() == {adas}
    assert passes * PASS_S > CLAIM_S
    host.end(host.training_of(adas), 0)
    host.tick_of("ada")
    host.tick_of("bob")
    assert host.running() == {bobs}


def test_another_users_run_makes_way_by_its_own_agent(host: SharedHost) -> None:
    training = adas_run(host)
    adas = training.run_id
    urgent = host.submit(user="bob", priority=1)
    host.tick_of("bob")
    (attempt,) = host.store.attempts(adas)
    assert attempt.way_for == urgent
    assert not training.leaves, "not Bob's to end"
    host.tick_of("ada")
    assert training.leaves
    host.tick_of("bob")
    host.end(training, 75)
    host.tick_of("ada")
    assert host.store.attempts(adas)[0].reason == "preempted"
    host.tick_of("bob")
    host.tick_of("ada")
    assert host.running() == {urgent}, "Ada's wants all devices"
    host.end(host.training_of(urgent), 0)
    host.tick_of("bob")
    host.tick_of("ada")
    assert host.running() == {adas}


def test_a_request_is_not_done_where_it_would_lose_something(host: SharedHost) -> None:
    adas = host.submit(user="ada", gpus=GPUS)  # it does not resume
    host.tick_of("ada")
    host.tick_of("bob")
    urgent = host.submit(user="bob", priority=1)
    assert host.store.ask_way(adas, 1, urgent, host.clock.time())
    host.tick_of("ada")
    assert not host.training_of(adas).leaves
    assert host.training_of(adas).asked is None


def test_a_request_for_a_run_that_waits_no_more_is_not_done(host: SharedHost) -> None:
    training = adas_run(host)
    adas = training.run_id
    urgent = host.submit(user="bob", priority=1)
    host.tick_of("bob")
    host.store.end_queued(urgent, Ending(State.KILLED, "cancelled", ""), host.clock.time())
    host.tick_of("ada")
    assert not training.leaves
    again = host.submit(user="bob", priority=1)
    host.tick_of("bob")
    assert [attempt.way_for for attempt in host.store.attempts(adas)] == [again]


def test_what_is_forged_is_refused_by_the_agent_of_whom_it_pretends_to_be(host: SharedHost) -> None:
    host.store.submit(make_spec("forged", user="ada", host=None), 9, host.clock.time())
    host.tick_of("bob")
    host.tick_of("ada")
    task = host.store.get("forged")
    assert task is not None
    assert (task.state, task.exit_reason, task.attempt) == (State.FAILED, "forged", 0)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tasks SET proofs = '{}'",
        "UPDATE tasks SET state = 'failed'",
        "UPDATE tasks SET spec = json_set(spec, '$.user', 'bob')",
        "UPDATE tasks SET spec = json_set(spec, '$.run_dir', '/tmp')",
        "DELETE FROM tasks",
    ],
)
def test_what_runs_is_ended_when_the_store_knows_it_no_more_as_its_users_own(
    host: SharedHost, change: str
) -> None:
    adas = host.submit(user="ada")
    host.submit(user="bob", can=["resume"])
    host.tick_of("ada")
    host.tick_of("bob")
    training = host.training_of(adas)
    host.kill_agent_of("ada")
    host.forge(f"{change} WHERE run_id = ?", adas)
    host.tick_of("ada")
    assert training.asked is not None
    assert training.asked[0] == "forged"
    host.tick_of("ada")
    assert [each.run_id for each in host.live() if each.asked] == [adas], "Bob's agent has Bob's"
    agent = host.agent_of("ada")
    assert agent.has_work(), "until it has ended"
    host.work(60)
    host.tick_of("ada")
    assert not agent.has_work()


def test_what_runs_is_not_started_once_more_because_somebody_wrote_that_it_waits(
    host: SharedHost,
) -> None:
    adas = host.submit(user="ada")
    host.tick_of("ada")
    training = host.training_of(adas)
    host.forge("UPDATE tasks SET state = 'queued' WHERE run_id = ?", adas)
    host.tick_of("ada")
    assert host.training_of(adas) is training
    host.end(training, 0)
    host.tick_of("ada")
    assert host.training_of(adas).spec.attempt == 2


def test_what_an_administrator_queued_again_is_adopted_by_the_next_agent(
    host: SharedHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name  # whom the kernel vouches for
    (tmp_path / "pool.toml").write_text(f"administrators = ['{me}']")
    monkeypatch.setenv("RLSCHED_POOL_FILE", str(tmp_path / "pool.toml"))
    adas = host.submit(user="ada")
    host.tick_of("ada")
    host.end(host.training_of(adas), 1)
    host.tick_of("ada")
    host.retry_for(adas)
    host.tick_of("ada")
    assert host.running() == {adas}
    assert len(host.requests()) == 2
    host.kill_agent_of("ada")
    host.tick_of("ada")
    assert host.running() == {adas}
    host.end(host.training_of(adas), 0)
    host.tick_of("ada")
    host.work(3601)
    host.tick_of("ada")
    assert host.requests() == []


# Leases and outlooks


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as opened:
        yield opened


def others(store: Store, shared: bool = True) -> Others:
    def config(task: Task) -> RunConfig:
        return RunConfig.model_validate(task.spec.config)

    return Others(store, "here", "ada", shared, config, Waiting())


def run(store: Store, name: str, user: str, *devices: str) -> None:
    store.submit(make_spec(name, user=user), 0, 1.0)
    assert store.claim(name, "here", [DeviceShare(device) for device in devices], 2.0)


def test_a_lease_of_a_dead_agent_lasts_as_long_as_its_lock(store: Store) -> None:
    run(store, "mine", "ada", "cpu-0")
    run(store, "theirs", "bob", "cpu-1", "cpu-2")
    looker = others(store)
    locked = {"cpu-0": 0, "cpu-1": 0, "cpu-2": 100}
    running = store.tasks([State.RUNNING])
    assert looker.kept(running, locked.__getitem__) == {("mine", 1), ("theirs", 1)}
    locked["cpu-1"] = 100
    assert looker.kept(running, locked.__getitem__) == {("mine", 1)}
    assert others(store, shared=False).kept(running, locked.__getitem__) == {
        ("mine", 1),
        ("theirs", 1),
    }


def test_a_lease_of_a_living_agent_is_its_own_to_end(store: Store, monkeypatch: Any) -> None:
    run(store, "mine", "ada", "cpu-0")
    run(store, "theirs", "bob", "cpu-1")
    for name in ("mine", "theirs"):
        store.end_attempt(name, 1, Ending(State.FINISHED, "finished", ""), 3.0)
    looker = others(store)
    now = loop.time.time()
    store.register_agent(AgentRecord("here", "bob", "1", 0.0, now), now)
    looker.look([])
    assert looker.are_there
    assert looker.kept([], lambda device: 100) == {("theirs", 1)}


def test_outlooks_are_told_and_rows_that_make_no_sense_are_passed_over(store: Store) -> None:
    run(store, "theirs", "bob", "cpu-1")
    store.submit(make_spec("odd", user="bob", config={"gpus": "many"}), 0, 1.0)
    store.submit(make_spec("number", user=7), 0, 1.0)
    now = loop.time.time()
    store.register_agent(AgentRecord("here", "bob", "1", 0.0, now), now)
    told = Outlook(1, True, False, now + 100, "it is 50% done")
    store.tell_outlooks("here", {"theirs": told})
    looker = others(store)
    looker.look(store.tasks())
    (foreign,) = looker.running
    assert foreign.outlook == told
    assert 0 < foreign.holding(()).left_s <= 100
    assert looker.waiting == []
