"""One running attempt as the agent sees it, from its files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.recovery import Evidence
from mlflow_rlsched.agent.telemetry import CPU_METRIC
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import Task

OUTPUT_TAIL_BYTES = 16 * 1024
MAX_BACKLOG_BYTES = 64 * 1024 * 1024
_ALIVE_PERCENT = 1.0


@dataclass
class Progress:
    """What a training reported since the last sample was taken.

    Attributes:
        losses: Finite losses.
        nonfinite: How many values were NaN or infinite, over the whole attempt.
        numbers: The last of each reported number.
        samples_at: Samples seen and the time of the report, at the last sample.
    """

    losses: list[float] = field(default_factory=list)
    nonfinite: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    samples_at: tuple[float, float] | None = None

    def sample(self) -> dict[str, float]:
        """Values for ``rlsched/…`` metrics since the last call."""
        values = {}
        if self.losses:
            values["loss"] = sum(self.losses) / len(self.losses)
            self.losses.clear()
        for name in ("batch_size", "learning_rate"):
            if name in self.numbers:
                values[name] = self.numbers[name]
        if "samples" in self.numbers and "time" in self.numbers:
            now = (self.numbers["samples"], self.numbers["time"])
            before, self.samples_at = self.samples_at, now
            if before is not None and now[1] > before[1] and now[0] >= before[0]:
                values["throughput"] = (now[0] - before[0]) / (now[1] - before[1])
        return values


class Supervised:
    """A running attempt: its reports, its signs of life, its time.

    Args:
        task: The task, with the current attempt's number.
        config: The task's configuration.
        folder: The attempt's directory.
        devices: What it holds.
        ran_before_s: Seconds that this attempt (before an agent's restart) and earlier ones ran.
    """

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        folder: Path,
        devices: list[Device],
        ran_before_s: float,
    ) -> None:
        self.task = task
        self.config = config
        self.folder = folder
        self.devices = devices
        self.number = task.attempt
        self.samples = task.samples
        self.progress = Progress()
        self.can: frozenset[str] | None = None
        self.stopping: str | None = None
        self.device_lost: str | None = None
        self._events: dict[str, str] = {}
        self._reports = folder / "report.jsonl"
        self._reader = protocol.ReportReader(self._reports)
        self._alive_at = time.monotonic()
        self._deadline = None
        if config.timeout_s is not None:
            self._deadline = time.monotonic() + config.timeout_s - ran_before_s

    @property
    def run_id(self) -> str:
        """The MLflow run."""
        return self.task.run_id

    @property
    def skipped(self) -> int:
        """Report lines that could not be read."""
        return self._reader.skipped

    def observe(self) -> None:
        """Read what the training reported since the last call."""
        for report in self._reader.poll():
            self._alive_at = time.monotonic()
            if report.event == "hello":
                self.can = report.can
            elif report.event is not None:
                self._events[report.event] = report.text
            self.progress.nonfinite += len(report.nonfinite)
            self.progress.numbers.update(report.numbers)
            if "loss" in report.numbers:
                self.progress.losses.append(report.numbers["loss"])

    def catch_up(self) -> None:
        """Read what was reported before this agent looked; old losses are no news."""
        self._observe_all()
        self.progress.sample()

    def _observe_all(self) -> None:
        """Read all that was reported so far, where ``observe`` reads a bounded piece."""
        try:
            size = min(self._reports.stat().st_size, MAX_BACKLOG_BYTES)
        except FileNotFoundError:
            return
        for _ in range(size // protocol.MAX_READ_BYTES + 1):
            self.observe()

    def show_life(self, metrics: Mapping[str, float]) -> None:
        """Take the use of CPU or GPU (percent) in a device sample as a sign of life."""
        # The CPU figure is a share of the whole host: one core of many is life too.
        cores = os.cpu_count() or 1
        used = [
            value * (cores if name == CPU_METRIC else 1)
            for name, value in metrics.items()
            if name.endswith("_utilization_percentage")
        ]
        if any(percent > _ALIVE_PERCENT for percent in used):
            self._alive_at = time.monotonic()

    def overdue(self) -> str | None:
        """``timeout`` or ``lost_heartbeat`` when the attempt has to be ended, else None."""
        now = time.monotonic()
        if self._deadline is not None and now > self._deadline:
            return "timeout"
        # Only a training that speaks with us can be missed.
        if self.can is not None and now - self._alive_at > self.config.heartbeat_s:
            return "lost_heartbeat"
        return None

    def batch_size(self) -> int | None:
        """The batch size in use, None when this training has none that can be changed."""
        if self.can is not None and "batch_size" in self.can:
            reported = self.progress.numbers.get("batch_size")
            if reported is not None and reported >= 1:
                return int(reported)
        if self.task.batch_size is not None:
            return self.task.batch_size
        name = self.config.batch_size.param
        return self.config.initial_batch_size if name is not None else None

    def evidence(self, ending: protocol.Exit) -> Evidence:
        """All that is known of the attempt, now that it ended."""
        self._observe_all()
        return Evidence(
            exit=ending,
            done="done" in self._events,
            oom=self._events.get("oom"),
            environment=self._events.get("environment_failed"),
            output=self.output_tail(),
            device_lost=self.device_lost,
            batch_size=self.batch_size(),
        )

    def output_tail(self) -> str:
        """The end of what the attempt printed."""
        try:
            with open(self.folder / "output.log", "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - OUTPUT_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""
