"""What is on record of one run: its attempts, what its training told, its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlflow_rlsched import decision_log, protocol, run_warnings
from mlflow_rlsched.store import Attempt, Store, Task

Record = Mapping[str, Any]
"""A decision, as ``decisions.jsonl`` has it."""


class Told(NamedTuple):
    """What a training told at one moment; None is "not told".

    Attributes:
        time: Seconds since the epoch.
        step: Optimizer steps so far.
        samples: Samples so far.
        batch: Batch size, samples.
        input_wait: Part of the time since the last report that its input took, 0 to 1.
        metrics: Its own metrics.
    """

    time: float
    step: float | None = None
    samples: float | None = None
    batch: float | None = None
    input_wait: float | None = None
    metrics: Mapping[str, float] = {}


@dataclass(frozen=True)
class Launch:
    """An attempt and what its training told, oldest first.

    Attributes:
        attempt: The attempt.
        told: What was told; nothing by a training that knows nothing of the scheduler.
        gpus: Devices that it held, as its configuration counts them.
    """

    attempt: Attempt
    told: Sequence[Told]
    gpus: int

    @property
    def devices(self) -> float:
        """Devices that it held; CPU slots count as such."""
        return sum(share.amount for share in self.attempt.devices) / 100


@dataclass(frozen=True)
class RunRecord:
    """What is on record of a run.

    Attributes:
        task: Its task.
        launches: Its attempts, oldest first.
        decisions: Its decisions, oldest first.
        warnings: What a person should know of it (``run_warnings``).
        now: When it was read, seconds since the epoch: the end of what goes on.
    """

    task: Task
    launches: Sequence[Launch]
    decisions: Sequence[Record]
    warnings: Sequence[Mapping[str, Any]]
    now: float

    @property
    def end(self) -> float:
        """When it ended, or now."""
        return self.now if self.task.ended_at is None else self.task.ended_at

    @property
    def device_s(self) -> float:
        """Device-seconds that it held."""
        return sum(
            launch.devices * ((launch.attempt.ended_at or self.now) - launch.attempt.started_at)
            for launch in self.launches
        )


def read(store: Store, task: Task, now: float) -> RunRecord:
    """What is on record of a run; what is gone, or another user's, is not there.

    Raises:
        StoreError: The store cannot be read.
    """
    run_dir = Path(task.spec.run_dir)
    decisions = list(decision_log.read(run_dir))
    initial = int(task.spec.config.get("gpus", {}).get("initial", 1))
    held = {record.get("attempt"): record["before"]["gpus"] for record in decisions}
    launches = [
        Launch(
            attempt,
            _told(protocol.attempt_dir(run_dir, attempt.number)),
            max(1, held.get(attempt.number, initial)),
        )
        for attempt in store.attempts(task.run_id)
    ]
    return RunRecord(task, launches, decisions, run_warnings.read(run_dir), now)


def _told(folder: Path) -> list[Told]:
    """All that a training told, by time; the clock may have been set back meanwhile."""
    path = folder / "report.jsonl"
    try:
        size = path.stat().st_size
    except OSError:
        return []
    reader = protocol.ReportReader(path)
    found = [
        _line(report)
        for _ in range(size // protocol.MAX_READ_BYTES + 1)
        for report in reader.poll()
        if "time" in report.numbers
    ]
    return sorted(found, key=lambda told: told.time)


def _line(report: protocol.Report) -> Told:
    numbers = report.numbers
    return Told(
        numbers["time"],
        numbers.get("step"),
        numbers.get("samples"),
        numbers.get("batch_size"),
        numbers.get("input_wait"),
        report.metrics,
    )
