"""What MLflow is told of a run, in tags, status and metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mlflow_rlsched.agent.tracking import Tracker
from mlflow_rlsched.agent.tuning import Outcome
from mlflow_rlsched.store import Attempt, State, Task

_REWARD = ("throughput", "cost", "progress", "smoothness", "total")
_STATUS = {State.FINISHED: "FINISHED", State.FAILED: "FAILED", State.KILLED: "KILLED"}


class Teller:
    """Tells the tracking servers how runs stand; telling twice changes nothing.

    Args:
        tracker: Delivers it.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def waiting(self, task: Task) -> None:
        """A task waits for another attempt."""
        self._retries_over(task, task.attempt)
        self._status(task.run_id, "SCHEDULED")
        tags = {"rlsched.state": task.state.value, "rlsched.exit_reason": task.exit_reason}
        self._tracker.put(task.run_id, "tags", tags)

    def running(self, task: Task, attempt: Attempt) -> None:
        """An attempt runs."""
        self._retries_over(task, attempt.number - 1)
        self._status(task.run_id, "RUNNING")
        tags = {
            "rlsched.state": task.state.value,
            "rlsched.attempts": str(attempt.number),
            "rlsched.devices": ",".join(share.device for share in attempt.devices),
        }
        self._tracker.put(task.run_id, "tags", tags)
        if attempt.number == 1:
            waited = max(0.0, attempt.started_at - task.submitted_at)
            start = {
                "rlsched/queue_seconds": waited,
                "rlsched/gpus": task.spec.config["gpus"]["initial"],
            }
            self._points(task.run_id, start, 0, attempt.started_at)

    def sample(self, task: Task, metrics: Mapping[str, float], step: int) -> None:
        """Values of one moment."""
        self._points(task.run_id, metrics, step, time.time())

    def decision(self, task: Task, outcome: Outcome) -> None:
        """A decision on a run, and what it rests on."""
        decision, record = outcome.decision, outcome.record
        action, terms = decision.action, decision.terms
        values = {
            **outcome.reported,
            "gpus": decision.setting.gpus,
            "throughput": decision.history.throughput,
            "goodput": terms.throughput,
            "action/gpu_delta": action.gpu_delta,
            "action/batch_scale": action.batch_factor,
            "action/lr_scale": action.lr_factor,
            **{f"reward/{name}": getattr(decision.reward, name) for name in _REWARD},
        }
        metrics = {f"rlsched/{name}": v for name, v in values.items() if v is not None}
        self._points(task.run_id, metrics, decision.number, record["time"])
        tags = {"rlsched.policy": decision.policy, "rlsched.policy_version": decision.version}
        if outcome.changed:
            tags["rlsched.tuned"] = "true"
        if outcome.changed or outcome.first:
            self._tracker.put(task.run_id, "tags", tags)

    def warning(self, task: Task, text: str) -> None:
        """Something that a person should know of a run."""
        self._tracker.put(task.run_id, "tags", {"rlsched.warning": text[:5000]})

    def files(self, run_id: str) -> None:
        """The files of a run have changed."""
        self._tracker.put(run_id, "artifacts", {})

    def over(self, task: Task) -> None:
        """A task is over."""
        tags = {
            "rlsched.state": task.state.value,
            "rlsched.exit_reason": task.exit_reason,
            "rlsched.attempts": str(task.attempt),
        }
        if task.message:
            tags["rlsched.message"] = task.message[:5000]
        self._tracker.put(
            task.run_id,
            "final",
            {
                "status": _STATUS[task.state],
                "end_time_ms": int(1000 * (task.ended_at or time.time())),
                "tags": tags,
                "attempt": task.attempt if _may_have_nested_runs(task) else None,
            },
        )

    def _points(self, run_id: str, metrics: Mapping[str, float], step: int, seconds: float) -> None:
        points = [[name, value, int(1000 * seconds), step] for name, value in metrics.items()]
        self._tracker.put(run_id, "metrics", points)

    def _status(self, run_id: str, status: str) -> None:
        self._tracker.put(run_id, "status", {"status": status})

    def _retries_over(self, task: Task, attempt: int) -> None:
        if attempt > 1 and _may_have_nested_runs(task):
            self._tracker.put(task.run_id, "retries_over", {"attempt": attempt})


def _may_have_nested_runs(task: Task) -> bool:
    """Whether an attempt may have had other parameters than those that the run holds."""
    return task.batch_size is not None
