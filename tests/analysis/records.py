"""Records of runs that are written by hand, so that every figure is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mlflow_rlsched.analysis.recorded import Launch, RunRecord, Told
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.policy.action import Setting
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.protocol import Report
from mlflow_rlsched.store import Attempt, DeviceShare, State, Task
from tests.dashboard.records import decision as whole_decision
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
    """A decision; of its state there are the fields that are given."""
    before = {"gpus": 1, "batch_size": 8, "lr_factor": 1.0, "lr_scale": 1.0} | (before or {})
    return whole_decision(
        number=number,
        time=START + time,
        before=before,
        setting=before | (setting or {}),
        terms={"progress": progress, "duration_s": duration, "scales": {"total_s": 1000.0}},
        state={
            name: {"value": value, "normalised": 0.0, "missing": False}
            for name, value in state.items()
        },
    )


def trained(
    stages: Sequence[tuple[int, float]],
    step_s: Callable[[int], float],
    noise_scale: float = 1000.0,
    **config: Any,
) -> RunRecord:
    """A run that trains at one batch size after the other, and ends.

    Args:
        stages: Batch sizes and how long it trained at each, seconds.
        step_s: Time of a step at a batch size.
        noise_scale: What its gradients tell, samples.
        config: Of its configuration.
    """
    decider = Decider(Limits(batch_initial=stages[0][0], interval_s=5.0), Fixed())
    decider.others = [Goodput()]
    lines, decisions = told((5, 0), batch=float(stages[0][0])), []
    now, samples, steps = 5.0, 0.0, 0.0
    whole = sum(length * batch / step_s(batch) for batch, length in stages)
    for batch, length in stages:
        for _ in range(round(length / 5)):
            reports = []
            for _ in range(5):
                now, steps = now + 1, steps + 1 / step_s(batch)
                samples += batch / step_s(batch)
                loss = 1 / (1 + samples / 1e5)
                numbers = {"time": START + now, "step": steps, "samples": samples, "loss": loss}
                numbers |= {"grad_sqr": 1.0, "grad_var": noise_scale, "progress": samples / whole}
                reports.append(Report(numbers=numbers))
                metrics = {"val_loss": loss}
                lines.append(Told(START + now, steps, samples, float(batch), None, metrics))
            can = frozenset({"batch_size", "learning_rate"})
            interval = Interval(5.0, now, Setting(1, batch), reports=reports, can=can)
            training = {"can": sorted(can), "batch_size": stages[0][0], "optimizer": "sgd"}
            extra = {"attempt": 1, "time": START + now, "training": training}
            decisions.append(json.loads(json.dumps(decider.decide(interval).to_json() | extra)))
    record = run(
        launch(1, 0, now + 2, lines), ended=now + 2, decisions=decisions, exit_reason="finished"
    )
    spec = make_spec("run", config=RunConfig.model_validate(config).model_dump(mode="json"))
    return replace(record, task=replace(record.task, spec=spec))
