"""Random lives of tasks, in the store and in a model of it that fits a page."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mlflow_rlsched.store import DeviceShare, Ending, State, open_store
from tests.contract.conftest import Engine
from tests.task_specs import make_spec

UNFINISHED = (State.QUEUED, State.RUNNING)
shares = st.lists(
    st.builds(DeviceShare, st.sampled_from(["GPU-1", "GPU-2"]), st.sampled_from([40, 60, 100])),
    max_size=2,
)


@dataclass
class Model:
    """A task as the model sees it."""

    priority: int
    order: int
    state: State = State.QUEUED
    attempt: int = 0
    retries: int = 0
    not_before: float = 0.0
    cancel_by: str | None = None
    leases: dict[int, Counter[str]] = field(default_factory=dict)


class Lives(RuleBasedStateMachine):
    """Drives a store and its model through the same calls."""

    url: str
    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.store = open_store(self.url)
        self.model: dict[str, Model] = {}
        self.orders = itertools.count(1)
        self.now = 0.0

    def teardown(self) -> None:
        self.store.close()

    @rule(target=tasks, priority=st.integers(-1, 1))
    def submit(self, priority: int) -> str:
        run_id = f"run-{len(self.model)}"
        self.store.submit(make_spec(run_id), priority, self.now)
        self.model[run_id] = Model(priority, next(self.orders))
        return run_id

    @rule(run_id=tasks, priority=st.integers(-1, 1))
    def submit_again(self, run_id: str, priority: int) -> None:
        self.store.submit(make_spec(run_id), priority, self.now)
        old = self.model[run_id]
        if old.state not in UNFINISHED:
            new = Model(priority, next(self.orders), attempt=old.attempt, leases=old.leases)
            self.model[run_id] = new

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(run_id=tasks, shares=shares)
    def claim(self, run_id: str, shares: list[DeviceShare]) -> None:
        task = self.model[run_id]
        wanted: Counter[str] = Counter()
        for share in shares:
            wanted[share.device] += share.amount
        held = self.held()
        possible = (
            task.state is State.QUEUED
            and task.cancel_by is None
            and task.not_before <= self.now
            and all(held[device] + amount <= 100 for device, amount in wanted.items())
        )
        attempt = self.store.claim(run_id, "here", shares, self.now)
        assert (attempt is not None) == possible
        if attempt is not None:
            task.attempt += 1
            assert attempt.number == task.attempt
            task.state = State.RUNNING
            task.leases[task.attempt] = wanted

    @rule(
        run_id=tasks,
        back=st.integers(0, 1),
        state=st.sampled_from([State.QUEUED, State.FINISHED, State.FAILED, State.KILLED]),
        counts=st.booleans(),
        delay=st.sampled_from([0.0, 10.0]),
        is_last=st.booleans(),
    )
    def end_attempt(
        self, run_id: str, back: int, state: State, counts: bool, delay: float, is_last: bool
    ) -> None:
        task = self.model[run_id]
        ending = Ending(
            state, "reason", "", not_before=self.now + delay, counts=counts, is_last=is_last
        )
        current = task.state is State.RUNNING and back == 0
        assert self.store.end_attempt(run_id, task.attempt - back, ending, self.now) == current
        if current:
            cancelled = state is State.QUEUED and task.cancel_by is not None
            task.state = State.KILLED if cancelled else state
            task.retries += counts
            task.not_before = self.now + delay
            task.order = next(self.orders) if is_last else task.order

    @rule(run_id=tasks)
    def end_queued(self, run_id: str) -> None:
        task = self.model[run_id]
        ended = self.store.end_queued(run_id, Ending(State.KILLED, "cancelled", ""), self.now)
        assert ended == (task.state is State.QUEUED)
        if ended:
            task.state = State.KILLED

    @rule(run_id=tasks, data=st.data())
    def release(self, run_id: str, data: st.DataObject) -> None:
        task = self.model[run_id]
        attempt = data.draw(st.integers(0, task.attempt))
        self.store.release(run_id, attempt)
        task.leases.pop(attempt, None)

    @rule(run_id=tasks, by=st.sampled_from(["ada", "bob"]))
    def cancel(self, run_id: str, by: str) -> None:
        task = self.model[run_id]
        assert self.store.request_cancel(run_id, by) == (task.state in UNFINISHED)
        if task.state in UNFINISHED:
            task.cancel_by = by

    @rule(run_id=tasks, priority=st.integers(-1, 1))
    def prioritize(self, run_id: str, priority: int) -> None:
        task = self.model[run_id]
        assert self.store.prioritize(run_id, priority) == (task.state in UNFINISHED)
        if task.state in UNFINISHED:
            task.priority = priority

    @rule(run_id=tasks)
    def retry(self, run_id: str) -> None:
        task = self.model[run_id]
        possible = task.state in (State.FAILED, State.KILLED)
        assert self.store.retry(run_id, self.now) == possible
        if possible:
            task.state, task.retries, task.not_before = State.QUEUED, 0, 0.0
            task.cancel_by = None

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = open_store(self.url)

    @invariant()
    def tasks_are_as_in_the_model(self) -> None:
        ranked = sorted(self.model.items(), key=lambda item: (-item[1].priority, item[1].order))
        assert [
            (t.run_id, t.state, t.priority, t.order, t.attempt, t.retries, t.cancel_by)
            for t in self.store.tasks()
        ] == [
            (name, m.state, m.priority, m.order, m.attempt, m.retries, m.cancel_by)
            for name, m in ranked
        ]

    @invariant()
    def leases_are_as_in_the_model(self) -> None:
        found = {
            (lease.run_id, lease.attempt, lease.share.device): lease.share.amount
            for lease in self.store.leases()
        }
        assert found == {
            (run_id, attempt, device): amount
            for run_id, task in self.model.items()
            for attempt, wanted in task.leases.items()
            for device, amount in wanted.items()
        }
        assert all(amount <= 100 for amount in self.held().values())

    def held(self) -> Counter[str]:
        return sum(
            (wanted for task in self.model.values() for wanted in task.leases.values()), Counter()
        )


def test_the_store_lives_as_its_model(engine: Engine, tmp_path: Path) -> None:
    folders: Iterator[Path] = (tmp_path / str(number) for number in itertools.count())

    def machine() -> Lives:
        Lives.url = engine(next(folders))
        return Lives()

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
