"""A long queue: the command that shows it, a scheduling pass over it, and tiny tasks in a slot."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, command
from benchmarks.host import PROJECTS, Host, host

if TYPE_CHECKING:
    from mlflow_rlsched.agent.loop import Agent
    from mlflow_rlsched.store import Attempt, Task, TaskSpec

TASKS = 1000
CROWD = 10_000
RUNNING = 1000
SPARE = 4
"""Devices of the crowded host that are free: too few for whoever is first."""


def measure(quick: bool) -> list[Figure]:
    """All figures: with 1,000 queued tasks, and with 10,000 beside 1,000 running ones."""
    times = 3 if quick else 9
    with host(slots=2) as place:
        os.environ.update(place.env)
        _put(place, _waiting(_submitted(place), 2, TASKS - 1))
        figures = [show_queue(place, TASKS, 1.0, times), scheduling_pass(place, 5 * times)]
    with host(slots=RUNNING + SPARE) as place, ExitStack() as shims:
        os.environ.update(place.env)
        spec = _submitted(place)
        _put(place, *_running(place, spec, shims))
        whole = {"initial": RUNNING + SPARE, "min": 1, "max": RUNNING + SPARE}
        first = replace(spec, run_id="f" * 32, config={**spec.config, "gpus": whole})
        _put(place, [replace(task, priority=8) for task in _waiting(first, RUNNING + 2, 1)])
        _put(place, _waiting(spec, RUNNING + 3, CROWD - 2))
        shown = show_queue(place, CROWD, 3.0, times)
        figures += [shown, *crowded_pass(place, times)]
    with host(slots=1) as place:
        os.environ.update(place.env)
        return [*figures, packing(place, 4 * times)]


def _submitted(
    place: Host, project: Path = PROJECTS / "faulty", entry_point: str = "count"
) -> TaskSpec:
    """The specification of a real submission, a pattern for more."""
    import mlflow

    from mlflow_rlsched import submission

    mlflow.set_tracking_uri(place.env["MLFLOW_TRACKING_URI"])
    request = submission.Request(
        str(project), entry_point, {}, None, {}, mlflow.get_tracking_uri(), "0", None
    )
    task, _ = submission.submit(request, lambda: None)
    return task.spec


def _waiting(spec: TaskSpec, order: int, count: int) -> list[Task]:
    """Tasks like it, of seven priorities and twenty experiments; ``order`` is of the first."""
    from mlflow_rlsched.store import State, Task

    now = time.time()
    return [
        Task(
            replace(spec, run_id=f"{n:032x}", experiment_id=str(n % 20)),
            State.QUEUED,
            priority=n % 7,
            submitted_at=now,
            order=n,
        )
        for n in range(order, order + count)
    ]


def _running(place: Host, spec: TaskSpec, shims: ExitStack) -> tuple[list[Task], list[Attempt]]:
    """Tasks that run on a device each, the last of them before everybody who waits."""
    from mlflow_rlsched import protocol
    from mlflow_rlsched.filelock import FileLock
    from mlflow_rlsched.store import Attempt, DeviceShare, State

    tasks, attempts = [], []
    hour = replace(spec, config={**spec.config, "timeout_s": 3600.0})
    for slot, task in enumerate(_waiting(hour, 2, RUNNING)):
        run_dir = place.root / "runs" / task.run_id
        folder = protocol.attempt_dir(run_dir, 1)
        folder.mkdir(parents=True)
        protocol.Directive(1, gpus=1).write(folder)
        (folder / "report.jsonl").write_text('{"event": "hello", "can": ["resume"]}\n')
        shim = FileLock(folder / "shim.lock")  # that somebody holds it is a sign of life
        shim.acquire()
        shims.callback(shim.release)
        priority = 9 if slot == RUNNING - 1 else 0
        now = time.time()
        runs = replace(task, state=State.RUNNING, priority=priority, attempt=1, started_at=now)
        tasks.append(replace(runs, spec=replace(task.spec, run_dir=str(run_dir))))
        shares = (DeviceShare(f"cpu-{slot}"),)
        attempts.append(Attempt(task.run_id, 1, spec.host or "", shares, now, now))
    return tasks, attempts


def _put(place: Host, tasks: Sequence[Task], attempts: Sequence[Attempt] = ()) -> None:
    """Put tasks into the store in one transaction: with one each it would take minutes."""
    from sqlalchemy import Connection, insert

    from mlflow_rlsched.store.rows import task_row, to_text
    from mlflow_rlsched.store.schema import ATTEMPTS, LEASES
    from mlflow_rlsched.store.schema import TASKS as ROWS
    from mlflow_rlsched.store.sqlite import SqliteDatabase

    def put(connection: Connection) -> None:
        connection.execute(insert(ROWS), [task_row(task) for task in tasks])
        for each in attempts:
            devices = [asdict(share) for share in each.devices]
            row = asdict(each) | {"devices": to_text(devices)}
            connection.execute(insert(ATTEMPTS).values(row))
            holds = {"run_id": each.run_id, "attempt": each.number, "since": each.started_at}
            for device in devices:
                connection.execute(insert(LEASES).values(holds | {"host": each.host} | device))

    with closing(SqliteDatabase(place.store)) as database:
        database.transact(put, write=True)


@contextmanager
def _agent(place: Host) -> Iterator[Agent]:
    """An agent that tells nobody, when it has seen all that there is."""
    from mlflow_rlsched.agent.loop import Agent
    from mlflow_rlsched.agent.tracking import Tracker
    from mlflow_rlsched.daemon import AgentFiles

    files = AgentFiles(place.store)
    files.create()
    agent = Agent(files)
    for name in ("start", "stop"):
        setattr(Tracker, name, lambda *_: None)
    agent.tick(True)
    yield agent
    agent.close()


def _seconds(action: Callable[[], object], times: int) -> float:
    values = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        values.append(time.perf_counter() - began)
    return statistics.median(values)


def show_queue(place: Host, tasks: int, goal: float, times: int) -> Figure:
    """Seconds of the whole command ``rlsched queue``."""
    value = _seconds(lambda: place.run("rlsched", "queue"), times)
    note = f"the whole command, {tasks:,} queued tasks, median of {times}"
    return Figure(f"rlsched queue, {tasks:,} tasks", value, "s", goal, None, note)


def scheduling_pass(place: Host, times: int) -> Figure:
    """Milliseconds of one pass of the agent, all devices being taken."""
    from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest, lock_dir

    locks = DeviceLocks(lock_dir())
    locks.acquire([LockRequest(f"cpu-{slot}") for slot in range(2)])
    with _agent(place) as agent:
        value = 1000 * _seconds(agent._schedule, times)
    locks.release()
    note = f"{TASKS:,} queued tasks, no free device, median of {times}"
    return Figure("one scheduling pass", value, "ms", 50.0, None, note)


def crowded_pass(place: Host, times: int) -> list[Figure]:
    """Seconds of one pass, and of all that the agent does in a second, over a crowd.

    All wait behind one that wants what all others hold: it is promised the devices for the time
    when the last of these must have ended, so it is looked whether others may pass it, and who
    could make way for it.
    """
    with _agent(place) as agent:
        assert len(agent._running) == RUNNING
        found = _seconds(agent._schedule, times)
        tick = _seconds(lambda: agent.tick(True), times)
    note = f"{RUNNING:,} running, {CROWD:,} waiting, {SPARE} devices free, median of {times}"
    return [
        Figure("one pass over a crowd", found, "s", 1.0, None, note),
        Figure("one tick over a crowd", tick, "s", 1.0, None, f"{note}; with supervision"),
    ]


def packing(place: Host, tasks: int) -> Figure:
    """Milliseconds between the last moment of a tiny task and the first of the next in its slot."""
    from mlflow_rlsched.daemon import AgentFiles

    project, stamps = place.root / "stamp", place.root / "stamps"
    project.mkdir()
    stamp = f"date +%s.%N >> {stamps}"
    (project / "MLproject").write_text(
        f'name: stamp\nentry_points:\n  main:\n    command: "{stamp}; {stamp}"\n'
    )
    for _ in range(tasks):
        _submitted(place, project, "main")
    stamps.touch()
    AgentFiles(place.store).start()
    deadline = time.monotonic() + 5 * tasks
    while len(times := stamps.read_text().split()) < 2 * tasks:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{tasks} tiny tasks took longer than 5 s each")
        time.sleep(0.1)
    gaps = [1000 * (float(b) - float(a)) for a, b in zip(times[1::2], times[2::2], strict=False)]
    note = f"{tasks} tasks of two commands one after the other, one slot, median"
    return Figure("pause between two tiny tasks", statistics.median(gaps), "ms", 250.0, None, note)


main = command(measure)

if __name__ == "__main__":
    main()
