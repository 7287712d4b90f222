"""Work in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import pytest

from mlflow_rlsched.learning.parallel import WorkerError, pool, spread


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def killed(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def ending(number: int) -> int:
    sys.exit(number)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_is_done_once(workers: int) -> None:
    found = dict(spread(squared, range(8), workers))
    assert {place: square for place, (square, _) in found.items()} == {n: n * n for n in range(8)}
    pids = {pid for _, pid in found.values()}
    assert (pids == {os.getpid()}) == (workers == 1)
    assert not multiprocessing.active_children()


def test_a_pool_is_used_again_and_again() -> None:
    with pool(squared, 2) as do:
        first, second = (dict(do(range(at, at + 5))) for at in (0, 5))
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()
    assert [first[place][0] for place in range(5)] == [0, 1, 4, 9, 16]
    assert [second[place][0] for place in range(5)] == [25, 36, 49, 64, 81]
    assert len({pid for _, pid in [*first.values(), *second.values()]}) <= 2


def test_without_jobs_no_process_starts() -> None:
    assert list(spread(squared, [], 4)) == []


def test_a_process_that_ends_is_said_and_the_others_end_too() -> None:
    with pytest.raises(WorkerError, match=r"ended \(signal 9\)"):
        list(spread(killed, range(6), 2))
    assert not multiprocessing.active_children()
    with pytest.raises(WorkerError, match=r"ended \(exit code 3\)"):
        list(spread(ending, [3], 2))


def test_nothing_goes_on_when_nobody_wants_the_rest() -> None:
    results = spread(squared, range(100), 2)
    next(results)
    assert len(multiprocessing.active_children()) == 2
    results.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()
