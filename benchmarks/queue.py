"""A long queue: the command that shows it, and a scheduling pass over it."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

from benchmarks.figures import Figure, command
from benchmarks.host import PROJECTS, Host, host

TASKS = 1000


def measure(quick: bool) -> list[Figure]:
    """Both figures, with 1,000 queued tasks."""
    with host(slots=2) as place:
        os.environ.update(place.env)
        _fill(place)
        return [show_queue(place, 3 if quick else 9), scheduling_pass(place, 5 if quick else 50)]


def _fill(place: Host) -> None:
    """Queue a real submission a thousand times over, and no agent to run it."""
    import mlflow

    from mlflow_rlsched import submission
    from mlflow_rlsched.store import open_store

    mlflow.set_tracking_uri(place.env["MLFLOW_TRACKING_URI"])
    request = submission.Request(
        str(PROJECTS / "faulty"), "count", {}, None, {}, mlflow.get_tracking_uri(), "0", None
    )
    task, _ = submission.submit(request, lambda: None)
    store = open_store(place.store)
    for number in range(TASKS - 1):
        run_id = f"{number:032x}"
        store.submit(replace(task.spec, run_id=run_id), number % 7, time.time())
    store.close()


def show_queue(place: Host, times: int) -> Figure:
    """Seconds of the whole command ``rlsched queue``."""
    values = []
    for _ in range(times):
        began = time.perf_counter()
        place.run("rlsched", "queue")
        values.append(time.perf_counter() - began)
    note = f"the whole command, {TASKS} queued tasks, median of {times}"
    return Figure("rlsched queue", statistics.median(values), "s", 1.0, None, note)


def scheduling_pass(place: Host, times: int) -> Figure:
    """Milliseconds of one pass of the agent, all devices being taken."""
    from mlflow_rlsched.agent.loop import Agent
    from mlflow_rlsched.daemon import AgentFiles
    from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest, lock_dir

    locks = DeviceLocks(lock_dir())
    locks.acquire([LockRequest(f"cpu-{slot}") for slot in range(2)])
    files = AgentFiles(place.store)
    files.create()
    agent = Agent(files)
    agent._schedule()  # the first reads all specifications
    values = []
    for _ in range(times):
        began = time.perf_counter()
        agent._schedule()
        values.append(1000 * (time.perf_counter() - began))
    locks.release()
    note = f"{TASKS} queued tasks, no free device, median of {times}"
    return Figure("one scheduling pass", statistics.median(values), "ms", 50.0, None, note)


main = command(measure)

if __name__ == "__main__":
    main()
