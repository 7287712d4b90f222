"""Random lives of a pool: what must be true of it, whatever happens and whenever the agent dies."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mlflow_rlsched import decision_log, protocol
from mlflow_rlsched.agent.preemption import MOST, PREEMPTED
from mlflow_rlsched.agent.ranking import AGEING_S, RESIZED, effective_priority
from mlflow_rlsched.agent.turns import TURN_OVER
from mlflow_rlsched.store import State, StoreError, Task
from tests.agent.simulated import GPUS, LEAST_BATCH, Host, Killed, Training, folder_in_memory

MOST_TASKS = 12
GRACE_S = 5.0
RETRIES = 2
QUANTUM_S = 40.0
ROUNDS = 400
"""Steps of a minute after which all must be over, once nothing but work happens."""

COMMON = {"grace_s": GRACE_S, "max_retries": RETRIES, "retry_delays_s": [10], "heartbeat_s": 1e6}
LARGE: list[dict[str, Any]] = [{"gpus": 4}, {"gpus": 3, "timeout_s": 1000}]
KINDS: list[dict[str, Any]] = [
    *LARGE,
    {},
    {"gpus": 2},
    {"gpus": 1, "timeout_s": 300},
    {"gpu_fraction": 0.5},
    {"gpus": {"initial": 1, "max": 3}},
    {"gpus": {"initial": 2, "min": 1, "max": 4}},
    {"gpus": 2, "queue_timeout_s": 2000},
    {"gpus": 2, "quantum_s": QUANTUM_S},
    {"gpus": {"initial": 2, "min": 1, "max": 4}, "quantum_s": QUANTUM_S},
    {"gpus": 0},
]


Submission: TypeAlias = tuple[dict[str, Any], int, list[str] | None, list[str]]
"""Settings, priority, device limit, and what the training can do."""

SUBMISSIONS: st.SearchStrategy[Submission] = st.tuples(
    st.sampled_from(KINDS),
    st.integers(-1, 2),
    st.sampled_from([None, None, ["GPU-0", "GPU-1"]]),
    st.sampled_from([[], ["resume"], ["resume", "batch_size", "learning_rate"]]),
)


class Lives(RuleBasedStateMachine):
    """What people, trainings, devices and clocks do to an agent."""

    def __init__(self) -> None:
        super().__init__()
        self.root = folder_in_memory()
        self.host = Host(self.root)
        self.host.on_claim = self.nobody_like_it_is_passed
        self.runs: list[str] = []
        self.had_turns: set[Path] = set()
        self.samples = 0

    def teardown(self) -> None:
        try:
            self.all_comes_to_an_end()
        finally:
            self.host.close()
            shutil.rmtree(self.root)

    # People

    @initialize(asked=st.lists(SUBMISSIONS, min_size=3, max_size=6))
    def begin(self, asked: list[Submission]) -> None:
        for submission in asked:
            self.submit_one(submission)

    @precondition(lambda self: len(self.runs) < MOST_TASKS)
    @rule(submission=SUBMISSIONS)
    def submit(self, submission: Submission) -> None:
        self.submit_one(submission)

    def submit_one(self, submission: Submission) -> None:
        kind, priority, limit, can = submission
        if kind in LARGE:
            limit = None  # else it could never start, and would be refused
        self.runs.append(self.host.submit(priority, limit, can, **COMMON, **kind))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.host.store.request_cancel(data.draw(st.sampled_from(self.runs)), "ada")

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), priority=st.integers(-1, 3))
    def prioritize(self, data: st.DataObject, priority: int) -> None:
        self.host.store.prioritize(data.draw(st.sampled_from(self.runs)), priority)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        self.host.store.retry(data.draw(st.sampled_from(self.runs)), self.host.clock.time())

    # Trainings

    def draw_live(self, data: st.DataObject) -> Training:
        return data.draw(st.sampled_from(self.host.live()))

    @precondition(lambda self: self.host.live())
    @rule(data=st.data(), progress=st.sampled_from([0.01, 0.5, 0.99]))
    def report(self, data: st.DataObject, progress: float) -> None:
        self.samples += 1000
        self.host.report(self.draw_live(data), loss=1.0, progress=progress, samples=self.samples)

    @rule(delta=st.integers(-2, 2))
    def want_devices(self, delta: int) -> None:
        self.host.policies.delta = delta

    @precondition(lambda self: self.host.live())
    @rule(data=st.data(), dirty_s=st.sampled_from([0.0, 3.0, 100.0]))
    def finish(self, data: st.DataObject, dirty_s: float) -> None:
        self.end(self.draw_live(data), 0, dirty_s, event="done")

    @precondition(lambda self: self.host.live())
    @rule(data=st.data(), code=st.sampled_from([3, 137, None]), dirty_s=st.sampled_from([0.0, 3.0]))
    def crash(self, data: st.DataObject, code: int | None, dirty_s: float) -> None:
        reason = "lost" if code is None else None
        self.host.end(self.draw_live(data), code, reason, dirty_s)

    @precondition(lambda self: self.host.live())
    @rule(data=st.data())
    def run_out_of_memory(self, data: st.DataObject) -> None:
        self.end(self.draw_live(data), 1, 0.0, event="oom", message="out of memory")

    @precondition(lambda self: any(training.leaves for training in self.host.live()))
    @rule(data=st.data(), dirty_s=st.sampled_from([0.0, 3.0]))
    def leave(self, data: st.DataObject, dirty_s: float) -> None:
        asked = [training for training in self.host.live() if training.leaves]
        self.end(data.draw(st.sampled_from(asked)), 75, dirty_s, event="stopped")

    def end(self, training: Training, code: int, dirty_s: float, **last: Any) -> None:
        self.host.report(training, **last)
        self.host.end(training, code, None, dirty_s)

    # The agent, its devices and its clocks

    @rule()
    def go_on(self) -> None:
        self.work(1.0)

    @rule(seconds=st.sampled_from([8.0, 40.0, 700.0]))
    def work(self, seconds: float) -> None:
        self.host.work(seconds)
        self.host.tick()
        self.check()

    @rule(after=st.integers(0, 60), trouble=st.sampled_from([Killed, Killed, StoreError]))
    def light_the_fuse(self, after: int, trouble: type[BaseException]) -> None:
        self.host.fuse = after, trouble

    @rule(seconds=st.sampled_from([-1e5, -600.0, 600.0, 1e5]))
    def jump(self, seconds: float) -> None:
        self.host.clock.wall += seconds

    @rule(device=st.sampled_from(["GPU-0", "GPU-3"]))
    def lose_or_find_device(self, device: str) -> None:
        self.host.gpus.lost ^= {device}

    # What must be true

    def check(self) -> None:
        tasks = self.host.store.tasks()
        self.no_device_is_held_beyond_what_it_is()
        self.no_task_is_lost(tasks)
        for task in tasks:
            self.attempts_add_up(task)
        for training in self.host.live():
            self.turns_are_for_equals(training, tasks)
        self.budgets_are_kept()

    def budgets_are_kept(self) -> None:
        """No run is told to take more than the pool gave it, and that is within its bounds."""
        agent = self.host.agent
        for training in self.host.live():
            task = self.host.store.get(training.run_id)
            assert task is not None
            gpus = task.spec.config["gpus"]
            budget = agent._scheduling.budget(training.run_id) if agent is not None else None
            if budget is not None:
                assert gpus["min"] <= budget.gpus <= gpus["max"]
            record = decision_log.last(Path(task.spec.run_dir))
            if record is not None and not record["ended"] and record["budget"] is not None:
                before, after = record["before"]["gpus"], record["setting"]["gpus"]
                assert after <= max(before, record["budget"]["gpus"])

    def no_device_is_held_beyond_what_it_is(self) -> None:
        leased: Counter[str] = Counter()
        leases = {}
        for lease in self.host.store.leases():
            leased[lease.share.device] += lease.share.amount
            leases[lease.run_id, lease.attempt, lease.share.device] = lease.share.amount
        assert all(amount <= 100 for amount in leased.values()), leased
        for training in self.host.live():
            for device, amount in training.amounts.items():
                assert leases[training.run_id, training.spec.attempt, device] == amount

    def no_task_is_lost(self, tasks: list[Task]) -> None:
        assert {task.run_id for task in tasks} == set(self.runs)
        live = Counter(training.run_id for training in self.host.live())
        for task in tasks:
            assert live[task.run_id] <= (task.state is State.RUNNING)
            if task.state.final:
                assert task.exit_reason, task
                assert task.ended_at is not None

    def attempts_add_up(self, task: Task) -> None:
        attempts = self.host.store.attempts(task.run_id)
        assert [a.number for a in attempts] == list(range(1, task.attempt + 1))
        over = attempts[:-1] if task.state is State.RUNNING else attempts
        assert all(a.ended_at is not None and a.reason for a in over), attempts
        assert sum(a.reason == PREEMPTED for a in attempts) <= MOST
        assert task.retries <= RETRIES
        assert task.batch_size is None or task.batch_size >= LEAST_BATCH
        gpus = task.spec.config["gpus"]
        for attempt in attempts:
            used = {share.device for share in attempt.devices}
            assert gpus["min"] <= len(used) == len(attempt.devices) <= gpus["max"]
            assert used <= set(task.spec.device_limit or used)

    def turns_are_for_equals(self, training: Training, tasks: list[Task]) -> None:
        """Who is asked to leave for a turn has had a quantum, and an equal has waited as long."""
        directive = protocol.Directive.read(training.folder, training.spec.attempt)
        if directive is None or directive.reason != TURN_OVER or training.folder in self.had_turns:
            return
        self.had_turns.add(training.folder)
        assert self.host.age_s(training.folder) >= QUANTUM_S
        (mine,) = (task for task in tasks if task.run_id == training.run_id)
        assert mine.spec.config["quantum_s"] == QUANTUM_S
        waits = [task for task in tasks if task.state is State.QUEUED]
        agent = self.host.agent
        assert agent is None or any(
            task.priority == mine.priority and agent._waiting.waited_s(task) >= QUANTUM_S
            for task in waits
        )

    def nobody_like_it_is_passed(self, run_id: str) -> None:
        """Of those who want the same, the one that ranks first starts first."""
        agent, starts = self.host.agent, self.host.store.get(run_id)
        assert agent is not None
        assert starts is not None
        if starts.exit_reason == RESIZED or not starts.spec.config["gpus"]["initial"]:
            return
        for task in self.host.unfinished():
            waits = task.state is State.QUEUED and task.run_id in {*agent._waiting._waits} - {
                run_id
            }
            if waits and task.cancel_by is None and agent._waiting.is_ready(task):
                alike = [
                    (t.gpus, t.spec.config, t.spec.device_limit, t.spec.experiment_id)
                    for t in (task, starts)
                ]
                assert alike[0] != alike[1] or self.rank(starts) > self.rank(task)

    def rank(self, task: Task) -> tuple[int, int]:
        assert self.host.agent is not None
        waited = self.host.agent._waiting.waited_s(task)
        return effective_priority(task, waited), -task.order

    def all_comes_to_an_end(self) -> None:
        """Once nothing but work happens, every task ends, and all is given back and told."""
        host = self.host
        host.fuse, host.gpus.lost = None, set()
        host.policies.delta = 0
        for _ in range(ROUNDS):
            host.work(60.0)
            host.tick()
            for training in host.live():
                self.end(training, 0, 0.0, event="done")
            host.tick()
            tasks = host.store.tasks()
            if all(task.state.final and task.tracked for task in tasks) and not host.store.leases():
                break
        else:
            untold = [task for task in tasks if not (task.state.final and task.tracked)]
            raise AssertionError(f"not over: {untold}, {host.store.leases()}")
        self.check()


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=settings().max_examples // 4,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


TICK_S = 50.0
LENGTHS = (100.0, 300.0, 500.0)


@settings(max_examples=settings().max_examples // 20, suppress_health_check=list(HealthCheck))
@given(steps=st.integers(0, 2), gpus=st.integers(1, GPUS), random=st.randoms())
def test_nobody_waits_beyond_the_bound(steps: int, gpus: int, random: Random) -> None:
    """Whoever comes later than ageing makes up for waits longer, however many keep coming.

    More of them come than there is room for, so many steps of priority above the patient one.
    """
    root = folder_in_memory()
    host = Host(root)
    host.policies.delta = 2
    ends = {}

    def come() -> float:
        """Submit one of the many; returns how long it takes, the pass in which that is seen too."""
        length = random.choice(LENGTHS)
        known = {"timeout_s": length + TICK_S} if random.random() < 0.7 else {}
        most = random.randint(1, 3)
        wanted: Any = random.choice([most, {"initial": most, "min": 1, "max": GPUS}])
        can = ["resume"] if isinstance(wanted, dict) else []
        ends[host.submit(steps, gpus=wanted, can=can, **COMMON, **known)] = length
        return length + TICK_S

    def train() -> None:
        """Have all report, leave where they are asked to, and end when they are done."""
        for training in host.live():
            ends[training.run_id] -= TICK_S
            if ends[training.run_id] <= 0:
                host.end(training, 0)
            elif training.leaves:
                host.report(training, event="stopped")
                host.end(training, 75)
            else:
                host.report(training, loss=1.0, progress=0.1)

    try:
        # Those who rank before the patient one run one after the other, at worst.
        bound = sum(come() for _ in range(GPUS))
        host.tick()
        patient = host.submit(0, gpus=gpus, **COMMON)
        since, last_before = host.clock.now, (steps + 1) * AGEING_S
        bound += last_before + max(LENGTHS) + TICK_S
        while True:
            waited = host.clock.now - since
            host.tick()
            if any(training.run_id == patient for training in host.live()):
                break
            assert waited <= bound
            if waited % (2 * TICK_S) == 0:
                length = come()
                bound += length if waited < last_before else 0.0
            host.work(TICK_S)
            train()
    finally:
        host.close()
        shutil.rmtree(root)
