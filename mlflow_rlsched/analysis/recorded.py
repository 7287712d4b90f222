"""What is on record of one run: its attempts, what its training told, its decisions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from mlflow_rlsched import protocol, run_warnings
from mlflow_rlsched.overview import decisions as overview
from mlflow_rlsched.policy.interval import bounded
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
    def trained(self) -> Sequence[Told]:
        """What it told from its first step on; before, it loads and builds."""
        first = self.told[0].step if self.told else None
        if first is None:
            return self.told
        early = takewhile(lambda told: told.step is not None and told.step <= first + 1, self.told)
        return self.told[sum(1 for _ in early) - 1 :]

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
        spoilt: What of it could not be read, a sentence each.
        is_gone: Whether its directory is gone, or another user's.
    """

    task: Task
    launches: Sequence[Launch]
    decisions: Sequence[Record]
    warnings: Sequence[Mapping[str, Any]]
    now: float
    spoilt: Sequence[str] = ()
    is_gone: bool = False

    @property
    def end(self) -> float:
        """When it ended, or now."""
        return self.now if self.task.ended_at is None else self.task.ended_at

    @property
    def on_slots(self) -> bool:
        """Whether it held CPU slots, no accelerators."""
        shares = [share for launch in self.launches for share in launch.attempt.devices]
        return bool(shares) and all(share.device.startswith("cpu-") for share in shares)

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
    decisions, torn = overview.read(run_dir)
    spoilt = [overview.spoilt_text(torn)] if torn else []
    is_gone = not os.access(run_dir, os.R_OK | os.X_OK)
    if is_gone:
        spoilt.append(
            f"what its training told, and what was decided on it, is not known: its directory"
            f" {run_dir} is gone, or another user's"
        )
    initial = int(task.spec.config.get("gpus", {}).get("initial", 1))
    held = {record["attempt"]: record["before"]["gpus"] for record in decisions}
    launches = []
    for attempt in store.attempts(task.run_id):
        folder = protocol.attempt_dir(run_dir, attempt.number)
        found, wild = _told(folder, attempt, now)
        launches.append(Launch(attempt, found, max(1, held.get(attempt.number, initial))))
        if wild:
            spoilt.append(
                f"{wild} of the reports of attempt {attempt.number} are torn, or not of its time,"
                " and are left out"
            )
    return RunRecord(task, launches, decisions, run_warnings.read(run_dir), now, spoilt, is_gone)


def _told(folder: Path, attempt: Attempt, now: float) -> tuple[list[Told], int]:
    """All that a training told, by time, and how many lines say nothing that could be true.

    Its clock may have been set back meanwhile.
    """
    path = folder / "report.jsonl"
    try:
        size = path.stat().st_size
    except OSError:
        return [], 0
    reader = protocol.ReportReader(path)
    found = [
        _line(report)
        for _ in range(size // protocol.MAX_READ_BYTES + 1)
        for report in reader.poll()
        if "time" in report.numbers
    ]
    end = attempt.ended_at or now
    own = [told for told in found if attempt.started_at <= told.time <= end]
    return sorted(own, key=lambda told: told.time), reader.skipped + len(found) - len(own)


def _line(report: protocol.Report) -> Told:
    numbers = report.numbers
    step, samples, batch = (
        bounded(numbers.get(name)) for name in ("step", "samples", "batch_size")
    )
    return Told(
        numbers["time"],
        step,
        samples,
        batch if batch and batch > 0 else None,
        numbers.get("input_wait"),
        report.metrics,
    )
