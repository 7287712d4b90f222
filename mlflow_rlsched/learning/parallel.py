"""Work in several processes that end with the one that started them."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from mlflow_rlsched.signals import postponing

Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkerError(RuntimeError):
    """A process ended before its work was done, and how, in a sentence."""


def spread(
    work: Callable[[Job], Result], jobs: Sequence[Job], workers: int
) -> Iterator[tuple[int, Result]]:
    """Do jobs side by side.

    Args:
        work: What is done with each: a function of a module, which each process imports.
        jobs: They and their results go through pipes, so they must be picklable.
        workers: Processes; 1 for this one alone.

    Yields:
        The place of a job and its result, as they come.

    Raises:
        WorkerError: A process ended: one of its jobs failed, or it was killed.
    """
    if workers == 1:
        for place, job in enumerate(jobs):
            yield place, work(job)
        return
    with pool(work, min(workers, len(jobs))) as do:
        yield from do(jobs)


@contextlib.contextmanager
def pool(
    work: Callable[[Job], Result], workers: int
) -> Iterator[Callable[[Sequence[Job]], Iterator[tuple[int, Result]]]]:
    """Processes that wait for jobs, like those of ``spread``, until they are no longer needed.

    Args:
        work: What is done with each job.
        workers: Processes.

    Yields:
        What does jobs side by side, as ``spread`` does; again and again, but one list at a time.
    """
    started: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(workers):
            # Half a process would complain.
            with postponing(signal.SIGINT), postponing(signal.SIGTERM):
                pipe, process = _start(work)
                started[pipe] = process
        yield partial(_do, started)
    finally:
        for pipe, process in started.items():
            process.kill()
            process.join()
            pipe.close()


def _do(
    started: Mapping[Connection, BaseProcess], jobs: Sequence[Job]
) -> Iterator[tuple[int, Any]]:
    waiting = iter(enumerate(jobs))
    busy: dict[Connection, int] = {}
    for pipe in started:
        _hand(pipe, waiting, busy)
    while busy:
        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            place = busy.pop(ready)
            try:
                result = ready.recv()
            except (EOFError, OSError) as error:
                process = started[ready]
                process.join()
                raise WorkerError(
                    f"a process that had part of the work ended ({_ending(process)}): start"
                    " again, with fewer workers if memory is short"
                ) from error
            _hand(ready, waiting, busy)
            yield place, result


def _start(work: Callable[[Job], Result]) -> tuple[Connection, BaseProcess]:
    """A process that waits for jobs."""
    context = multiprocessing.get_context("spawn")  # a fork takes no threads along
    pipe, end = context.Pipe()
    process = context.Process(target=_serve, args=(work, end), daemon=True)
    # An interrupt at the terminal goes to all: the others, who never see it, are ended by this one.
    resource_tracker.ensure_running()  # unblocks interrupts whenever it has to start
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    end.close()
    return pipe, process


def _hand(
    pipe: Connection, waiting: Iterator[tuple[int, Job]], busy: dict[Connection, int]
) -> None:
    """Hand the next job to an idle process, if there is one."""
    for place, job in waiting:
        busy[pipe] = place
        with contextlib.suppress(BrokenPipeError):  # seen when its result is read
            pipe.send(job)
        return


def _ending(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(work: Callable[[Job], Result], pipe: Connection) -> None:
    """Do jobs until there is nobody any more who wants them."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(work(pipe.recv()))
