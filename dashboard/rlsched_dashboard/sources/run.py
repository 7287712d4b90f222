"""All that is known of one run, from MLflow, the store and its decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.store import Attempt, Task
from rlsched_dashboard.context import Context
from rlsched_dashboard.sources.histories import History
from rlsched_dashboard.sources.tracking import RunDeleted, RunGone, TrackedRun, TrackingError

Record = Mapping[str, Any]


@dataclass(frozen=True)
class RunData:
    """What there is to show of a run.

    Attributes:
        run_id: The run.
        tracked: The run in MLflow; None where that does not answer.
        task: Its task; None where the store does not have it.
        attempts: Its attempts, oldest first; none where the store does not have it.
        decisions: Its decisions, oldest first.
        metrics: Names of what MLflow has of it.
        trouble: Why something is missing, in a sentence, or "".
    """

    run_id: str
    tracked: TrackedRun | None
    task: Task | None
    attempts: Sequence[Attempt] = ()
    decisions: Sequence[Record] = ()
    metrics: frozenset[str] = field(default_factory=frozenset)
    trouble: str = ""

    @property
    def name(self) -> str:
        """Its name, or "" where it has none."""
        if self.tracked is not None and self.tracked.name:
            return self.tracked.name
        return self.task.spec.label if self.task else ""

    @property
    def state(self) -> str:
        """Where it stands."""
        if self.task is not None:
            return self.task.state.value
        assert self.tracked is not None
        return self.tracked.tags.get("rlsched.state", self.tracked.status.lower())

    @property
    def objective(self) -> str:
        """The metric that counts."""
        config = self.task.spec.config if self.task else {}
        return str(config.get("objective", {}).get("metric", "val_loss"))

    @property
    def started_at(self) -> float | None:
        """Start of its first attempt, or of the run where the attempts are not known."""
        if self.attempts:
            return self.attempts[0].started_at
        return self.tracked.started_at if self.tracked else None

    @property
    def run_dir(self) -> Path | None:
        """Its directory on this host, or None."""
        if self.task is None:
            return None
        path = Path(self.task.spec.run_dir)
        return path if path.is_dir() else None


def read_run(context: Context, run_id: str) -> RunData:
    """What is known of a run now.

    Raises:
        RunGone: Neither MLflow nor the store has it, or it was deleted in MLflow.
        StoreError: The store cannot be read.
        TrackingError: MLflow does not answer, and the store does not have it.
    """
    task = context.scheduler.task(run_id)
    trouble = ""
    tracked = None
    try:
        tracked = context.tracking.run(run_id)
    except RunDeleted:
        raise
    except RunGone:
        if task is None:
            raise
        trouble = (
            f"{redacted(context.tracking.uri)} does not have this run: it was submitted to"
            f" {redacted(task.spec.tracking_uri)}, see --tracking-uri."
        )
    except TrackingError as error:
        if task is None:
            raise
        trouble = str(error)
    attempts = context.scheduler.attempts(run_id) if task else ()
    run_dir = Path(task.spec.run_dir) if task else None
    decisions: Sequence[Record] = []
    try:
        decisions = context.decisions.of(run_id, run_dir)
    except TrackingError as error:
        trouble = str(error)
    except RunGone:
        if task is None:
            raise
    if spoilt := context.decisions.spoilt(run_id):
        text = f"{spoilt} of this run's decisions are not as they were written, and are left out."
        trouble = " ".join(filter(None, (trouble, text)))
    metrics = frozenset(tracked.metrics) if tracked else frozenset()
    return RunData(run_id, tracked, task, attempts, decisions, metrics, trouble)


def read_histories(context: Context, data: RunData, names: Iterable[str]) -> dict[str, History]:
    """Histories of those metrics that the run has; none where MLflow does not answer."""
    found: dict[str, History] = {}
    for name in names:
        if name in data.metrics:
            try:
                found[name] = context.tracking.history(data.run_id, name)
            except (TrackingError, RunGone):
                return found
    return found
