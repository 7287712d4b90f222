"""What other processes do to a store in the tests of concurrency."""

from __future__ import annotations

import os
import random
import sys
from threading import Barrier

from mlflow_rlsched.store import DeviceShare, State, open_store
from tests.contract.steps import AGAIN, DONE
from tests.task_specs import make_spec


def open_first(barrier: Barrier, urls: list[str]) -> list[int]:
    """Open each store at the same moment as the others do, and submit a task.

    Returns:
        How many tasks each store then held.
    """
    counts = []
    for url in urls:
        barrier.wait(60)
        store = open_store(url)
        store.submit(make_spec(f"by-{os.getpid()}"), 0, now=1.0)
        counts.append(len(store.tasks()))
        store.close()
    return counts


def submit_learning(barrier: Barrier, url: str, run_id: str) -> bool:
    """Try to add the task that learns at the same moment as the others do; whether it was added."""
    store = open_store(url)
    barrier.wait(60)
    task = store.submit_learning(make_spec(run_id), 1.0, 5)
    store.close()
    return task is not None


def claim_all(barrier: Barrier, url: str, devices: list[str], seed: int) -> list[str]:
    """Claim queued tasks on random devices, end each at once, until none is queued.

    Returns:
        The runs that this process claimed.
    """
    chance = random.Random(seed)
    store = open_store(url)
    claimed = []
    barrier.wait(60)
    while queued := store.tasks([State.QUEUED]):
        share = DeviceShare(chance.choice(devices), chance.choice([30, 50, 100]))
        attempt = store.claim(chance.choice(queued).run_id, "here", [share], now=2.0)
        held = [lease.share for lease in store.leases() if lease.share.device == share.device]
        assert sum(share.amount for share in held) <= 100
        if attempt is not None:
            claimed.append(attempt.run_id)
            assert store.end_attempt(attempt.run_id, attempt.number, DONE, now=3.0)
            store.release(attempt.run_id, attempt.number)
    store.close()
    return claimed


def write_for_ever(url: str) -> None:
    """Take tasks through their lives, naming on standard output what was acknowledged."""
    store = open_store(url)
    number = 0
    while True:
        number += 1
        run_id = f"{os.getpid()}-{number}"
        store.submit(make_spec(run_id), 0, now=1.0)
        print("queued", run_id, flush=True)
        store.claim(run_id, "here", [DeviceShare("GPU-1"), DeviceShare("GPU-2")], now=2.0)
        store.end_attempt(run_id, 1, AGAIN if number % 2 else DONE, now=3.0)
        print("ended", run_id, flush=True)
        store.release(run_id, 1)


if __name__ == "__main__":
    write_for_ever(sys.argv[1])
