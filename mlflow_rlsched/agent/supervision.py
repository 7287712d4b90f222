"""One running attempt as the agent sees it, from its files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.forecast import Holding, left_of
from mlflow_rlsched.agent.memory import MemoryWatch, places
from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.agent.recovery import Evidence
from mlflow_rlsched.agent.telemetry import CPU_METRIC, Sample
from mlflow_rlsched.agent.tuning import Outcome, Tuning
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.store import DeviceShare, Ending, State, Task

OUTPUT_TAIL_BYTES = 16 * 1024
MAX_BACKLOG_BYTES = 64 * 1024 * 1024
_ALIVE_PERCENT = 1.0
_LOSSES = ("loss", "train_loss", "training_loss", "val_loss")


class Supervised:
    """A running attempt: its reports, its signs of life, its time.

    Args:
        task: The task, with the current attempt's number.
        config: The task's configuration.
        folder: The attempt's directory.
        devices: What it holds.
        gpus: How many of its ``gpus`` that is.
        memory_total: Memory of the host, bytes.
        policies: Who may decide on it.
        ran_before_s: Seconds that earlier attempts ran.
        age_s: Seconds that this one ran before, under an agent that died.

    Attributes:
        unkept: Transitions that the store may not have.
        memory: Whether it keeps within its memory.
    """

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        folder: Path,
        devices: list[Device],
        gpus: int,
        memory_total: int,
        policies: Policies,
        ran_before_s: float,
        age_s: float,
    ) -> None:
        self.task = task
        self.config = config
        self.folder = folder
        self.devices = devices
        self.number = task.attempt
        self.samples = task.samples
        self.tuning = Tuning(folder, task.attempt, config, devices, gpus, memory_total, policies)
        self.unkept = self.tuning.transitions()
        self.memory = MemoryWatch(places(config, devices, gpus, memory_total))
        self.nonfinite = 0
        self._logged: dict[str, float] = {}
        self.stopping: str | None = None
        self.device_lost: str | None = None
        self._events: dict[str, str] = {}
        self._reports = folder / "report.jsonl"
        self._reader = protocol.ReportReader(self._reports)
        self._alive_at = time.monotonic()
        self._launched_at = time.monotonic() - age_s
        self._deadline = None
        if config.timeout_s is not None:
            self._deadline = self._launched_at + config.timeout_s - ran_before_s

    @property
    def run_id(self) -> str:
        """The MLflow run."""
        return self.task.run_id

    @property
    def can(self) -> frozenset[str] | None:
        """What the training can do; None until it has said so."""
        return self.tuning.can

    @property
    def skipped(self) -> int:
        """Report lines that could not be read."""
        return self._reader.skipped

    def observe(self) -> None:
        """Read what the training reported since the last call."""
        for report in self._reader.poll():
            self._alive_at = time.monotonic()
            if report.event is not None:
                self._events[report.event] = report.text
            self.nonfinite += len(report.nonfinite)
            self.tuning.observe(report)

    def catch_up(self) -> None:
        """Read what was reported before this agent looked."""
        self._observe_all()
        self.tuning.caught_up()

    def _observe_all(self) -> None:
        """Read all that was reported so far, where ``observe`` reads a bounded piece."""
        try:
            size = min(self._reports.stat().st_size, MAX_BACKLOG_BYTES)
        except FileNotFoundError:
            return
        for _ in range(size // protocol.MAX_READ_BYTES + 1):
            self.observe()

    def watch(self, metrics: Mapping[str, float]) -> None:
        """Take in what a training that does not report to us has logged by itself."""
        metrics = {k: v for k, v in metrics.items() if not k.startswith(("rlsched/", "system/"))}
        if metrics and metrics != self._logged:
            self._logged = dict(metrics)
            names = (self.config.objective.metric, *_LOSSES)
            loss = next((metrics[name] for name in names if name in metrics), None)
            numbers = {"time": time.time()} | ({} if loss is None else {"loss": loss})
            self.tuning.observe(protocol.Report(numbers=numbers, metrics=self._logged))

    def close(self, ending: Ending) -> Outcome | None:
        """The last decision of the attempt: what was measured until it ended; None if nothing."""
        kind = {"finished": "done", "oom": "oom"}.get(ending.reason)
        if kind is None and ending.state is State.FAILED:
            kind = "failed"
        said = f"attempt {self.number} ended ({ending.reason})"
        text = f"{said}: {ending.message}" if ending.message else said
        return self.tuning.close(text, kind, ending.batch_size)

    def take(self, sample: Sample) -> tuple[str, str] | None:
        """Take in a sample of its devices and processes; returns what ``MemoryWatch`` warns of."""
        self.tuning.sample(sample)
        self._show_life(sample.metrics)
        self.device_lost = sample.lost
        left_s, _ = self._left()
        return self.memory.observe(sample, self.batch_size(), left_s, time.monotonic())

    def _show_life(self, metrics: Mapping[str, float]) -> None:
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

    def held_s(self) -> float:
        """Seconds since its launch."""
        return time.monotonic() - self._launched_at

    def holding(self, shares: Sequence[DeviceShare]) -> Holding:
        """What it holds, and how long it is expected to."""
        return Holding(self.run_id, shares, *self._left())

    def _left(self) -> tuple[float, str]:
        timeout = None if self._deadline is None else self._deadline - time.monotonic()
        return left_of(self.tuning.record, timeout, time.time())

    def must_end(self) -> str | None:
        """Why the attempt has to be ended now, as the class of its ending, or None."""
        now = time.monotonic()
        if self.device_lost is not None:
            return "device_fault"
        if self.memory.exceeded is not None:
            return "oom"
        if self.tuning.leaves_s() > self.config.grace_s:
            return self.tuning.leaves
        if self._deadline is not None and now > self._deadline:
            return "timeout"
        # Only a training that speaks with us can be missed.
        if self.can is not None and now - self._alive_at > self.config.heartbeat_s:
            return "lost_heartbeat"
        return None

    def batch_size(self) -> int | None:
        """The batch size in use, None when this training has none that can be changed."""
        if self.can is not None and "batch_size" in self.can:
            in_force = self.tuning.setting.batch_size
            if in_force is not None:
                return in_force
        if self.task.batch_size is not None:
            return self.task.batch_size
        if self.config.batch_size.param is None or self.config.launcher != "command":
            return None
        return self.config.initial_batch_size

    def evidence(self, ending: protocol.Exit) -> Evidence:
        """All that is known of the attempt, now that it ended."""
        self._observe_all()
        return Evidence(
            exit=ending,
            done="done" in self._events,
            stopped="stopped" in self._events,
            oom=self._events.get("oom"),
            environment=self._events.get("environment_failed"),
            output=self.output_tail(),
            device_lost=self.device_lost,
            batch_size=self.batch_size(),
            memory=self.tuning.memory_need(),
            leaves=self.tuning.leaves,
            gpus=self.tuning.setting.gpus,
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
