"""What every store promises when many processes and threads use it, and some of them die."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from mlflow_rlsched.store import DeviceShare, State, Store, Transition, open_store
from tests.contract import processes
from tests.contract.conftest import Engine
from tests.contract.steps import DONE, read, submit

MANY = 8


def test_eight_first_opens_at_once_all_work(engine: Engine, tmp_path: Path) -> None:
    urls = [engine(tmp_path / str(number)) for number in range(5)]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(MANY, mp_context=spawn) as pool:
        barrier = manager.Barrier(MANY)
        futures = [pool.submit(processes.open_first, barrier, urls) for _ in range(MANY)]
        counts = [future.result() for future in futures]
    assert [max(column) for column in zip(*counts, strict=True)] == [MANY] * len(urls)
    for url in urls:
        store = open_store(url)
        assert sorted(task.order for task in store.tasks()) == list(range(1, MANY + 1))
        store.close()


def test_eight_processes_claim_each_task_once(store: Store, store_url: str) -> None:
    names = [f"run-{number}" for number in range(60)]
    submit(store, *names)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(MANY, mp_context=spawn) as pool:
        barrier = manager.Barrier(MANY)
        futures = [
            pool.submit(processes.claim_all, barrier, store_url, ["GPU-1", "GPU-2"], seed)
            for seed in range(MANY)
        ]
        claimed = [run_id for future in futures for run_id in future.result()]
    assert sorted(claimed) == sorted(names)
    assert store.leases() == []
    assert {task.attempt for task in store.tasks()} == {1}
    assert {task.state for task in store.tasks()} == {State.FINISHED}


def test_of_eight_processes_one_makes_the_task_that_learns(store: Store, store_url: str) -> None:
    store.add_transitions([Transition("a", number, learnable=True) for number in range(5)])
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(MANY, mp_context=spawn) as pool:
        barrier = manager.Barrier(MANY)
        futures = [
            pool.submit(processes.submit_learning, barrier, store_url, f"run-{number}")
            for number in range(MANY)
        ]
        made = [future.result() for future in futures]
    assert sum(made) == 1
    assert len(store.tasks()) == 1


def test_threads_share_a_store(store: Store) -> None:
    names = [f"run-{number}" for number in range(40)]

    def live(run_id: str) -> bool:
        submit(store, run_id)
        attempt = store.claim(run_id, "here", [DeviceShare(run_id)], now=2.0)
        assert attempt is not None
        assert read(store, run_id).state is State.RUNNING
        return store.end_attempt(run_id, 1, DONE, now=3.0)

    with ThreadPoolExecutor(MANY) as pool:
        assert all(pool.map(live, names))
    assert sorted(lease.run_id for lease in store.leases()) == sorted(names)
    assert sorted(task.order for task in store.tasks()) == list(range(1, 41))


def test_a_killed_writer_leaves_whole_transactions(store: Store, store_url: str) -> None:
    chance = random.Random(2)
    for _ in range(12):
        command = [sys.executable, "-m", "tests.contract.processes", store_url]
        writer = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert writer.stdout is not None
        said = [writer.stdout.readline().split() for _ in range(chance.randint(1, 12))]
        time.sleep(chance.uniform(0, 0.005))  # about one transaction: the kill falls anywhere
        writer.kill()
        said += [line.split() for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        for event, run_id in said:
            assert read(store, run_id).attempt == 1 or event == "queued", "acknowledged, yet lost"
        check_consistency(store)
        for task in store.tasks([State.RUNNING]):
            assert store.end_attempt(task.run_id, task.attempt, DONE, now=4.0)
        for lease in store.leases():
            store.release(lease.run_id, lease.attempt)


def check_consistency(store: Store) -> None:
    leased = {(lease.run_id, lease.attempt): 0 for lease in store.leases()}
    for lease in store.leases():
        leased[lease.run_id, lease.attempt] += 1
    assert set(leased.values()) <= {2}, "both leases of an attempt, or none"
    for task in store.tasks():
        attempts = store.attempts(task.run_id)
        assert [attempt.number for attempt in attempts] == list(range(1, task.attempt + 1))
        open_attempts = [attempt for attempt in attempts if attempt.ended_at is None]
        assert len(open_attempts) == (task.state is State.RUNNING)
        if task.state is State.RUNNING:
            assert leased[task.run_id, task.attempt] == 2
