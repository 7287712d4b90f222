"""A learning task that is over in seconds: ``python -m tests.learning.learning_task STORE``."""

from __future__ import annotations

import sys
from functools import partial

from mlflow_rlsched.learning import online
from mlflow_rlsched.learning.mlflow_log import Log
from mlflow_rlsched.learning.workloads import Workload
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.store import open_store
from mlflow_rlsched.training import attach
from mlflow_rlsched.versions import Versions
from tests.learning.recording import SMALL_BATCH

PLAN = online.Plan(evaluation=4, improvement=3, runs=10, at_once=5)
TINY = online.Plan(evaluation=1, improvement=2, updates=50, runs=2, at_once=1)


def shorten() -> None:
    """Let candidates be judged on short runs, whose learning rate is right."""
    online.Runs = partial(Runs, ranges=SMALL_BATCH)  # type: ignore[misc, assignment]
    whole = Workload.runs
    Workload.runs = lambda self, count, seed: whole(  # type: ignore[method-assign, assignment]
        self, count, seed, SMALL_BATCH
    )


if __name__ == "__main__":
    shorten()
    with attach() as session:
        store = open_store(sys.argv[1])
        online.OnlineLearning(store, Versions(), session, TINY, Log()).run()
