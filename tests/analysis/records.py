"""Records of runs that are written by hand, so that every figure is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlflow_rlsched.analysis.recorded import Launch, RunRecord, Told
from mlflow_rlsched.store import Attempt, DeviceShare, State, Task
from tests.task_specs import make_spec

START = 1000.0


def told(*points: tuple[float, float], batch: float = 8.0, wait: float | None = None) -> list[Told]:
    """Reports from (seconds after ``START``, samples so far)."""
    return [Told(START + at, samples / batch, samples, batch, wait) for at, samples in points]


def launch(
    number: int,
    start: float,
    end: float | None,
    reports: Sequence[Told] = (),
    reason: str = "finished",
    devices: int = 1,
) -> Launch:
    """An attempt, seconds after ``START``."""
    shares = [DeviceShare(f"cpu-{slot}") for slot in range(devices)]
    attempt = Attempt(
        *("run", number, "here", shares, START + start, START + start),
        ended_at=None if end is None else START + end,
        reason="" if end is None else reason,
    )
    return Launch(attempt, reports, devices)


def run(
    *launches: Launch,
    submitted: float = 0.0,
    ended: float | None = None,
    decisions: Sequence[dict[str, Any]] = (),
    now: float = 1000.0,
    state: State = State.FINISHED,
    **changes: Any,
) -> RunRecord:
    """A run, seconds after ``START``."""
    task = Task(
        make_spec("run"),
        state,
        0,
        START + submitted,
        1,
        attempt=len(launches),
        ended_at=None if ended is None else START + ended,
        **changes,
    )
    return RunRecord(task, launches, decisions, (), START + now)


def decision(
    number: int,
    time: float,
    before: dict[str, Any] | None = None,
    setting: dict[str, Any] | None = None,
    progress: float = 0.01,
    duration: float = 10.0,
    **state: float,
) -> dict[str, Any]:
    """What an analysis reads of a decision; fields of the state that are not given are missing."""
    names = ("gpu_utilisation", "memory_used", "power")
    before = {"gpus": 1, "batch_size": 8, "lr_factor": 1.0, "lr_scale": 1.0} | (before or {})
    return {
        "number": number,
        "time": START + time,
        "attempt": 1,
        "before": before,
        "setting": before | (setting or {}),
        "terms": {"progress": progress, "duration_s": duration},
        "state": {
            name: {"value": state.get(name, 0.5), "missing": name not in state} for name in names
        },
    }
