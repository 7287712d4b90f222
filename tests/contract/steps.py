"""Short forms of the calls that most tests of a store begin with."""

from __future__ import annotations

from typing import Any

from mlflow_rlsched.store import DeviceShare, Ending, State, Store, Task
from tests.task_specs import make_spec

GPU = DeviceShare("GPU-1")
HALF = DeviceShare("GPU-1", 50)
AGAIN = Ending(State.QUEUED, "killed", "killed by signal 9", exit_code=137, counts=True)
DONE = Ending(State.FINISHED, "", "", exit_code=0)
FAILED = Ending(State.FAILED, "user_error", "exit code 3", exit_code=3)


def submit(store: Store, *run_ids: str, priority: int = 0, host: str | None = "here") -> None:
    for run_id in run_ids:
        store.submit(make_spec(run_id, host=host), priority, now=100.0)


def read(store: Store, run_id: str) -> Task:
    task = store.get(run_id)
    assert task is not None
    return task


def run_ids(store: Store, **query: Any) -> list[str]:
    return [task.run_id for task in store.tasks(**query)]
