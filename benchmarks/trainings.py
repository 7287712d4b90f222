"""One training of a project, on a clock that counts samples instead of seconds.

The training is the project's own script, with its own session: it reports, obeys directives and
stops as under an agent. Only its clock is ours: a second is a fixed number of samples, so what is
reported does not depend on how fast or busy the machine is, and the same training says the same
twice.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.host import PROJECTS
from mlflow_rlsched.policy.action import NO_CHANGE, Setting
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.loss import level, signals
from mlflow_rlsched.policy.measuring import decided, observe
from mlflow_rlsched.policy.stability import alignment, noise_scale
from mlflow_rlsched.policy.state import build_state
from mlflow_rlsched.protocol import EXIT_RESUME, Directive, Report, ReportReader

Row: TypeAlias = dict[str, Any]
"""A training: its course, ``reports`` and ``steps`` (see ``train``)."""

Floats: TypeAlias = NDArray[np.float64]

INTERVAL = 4
"""Reports of a decision interval, as in the simulator."""

SETTLED = 10
"""Reports that a training goes on for after its loss has reached the target."""

LOST = 1e6
"""Loss from which a training is given up; so is one that is not a number."""


@dataclass(frozen=True)
class Course:
    """How a project is trained.

    Attributes:
        project: Name of the project.
        optimizer: ``adam``, the project's own, or ``sgd`` with momentum 0.9 in its place.
        arguments: Its arguments, but the batch size and the learning rate.
        batch: Batch size, samples.
        rate: Learning rate.
        second: Samples of a second on its clock: one report.
        limit: Samples after which it is stopped.
        target: Loss from which it is stopped.
        changes: (samples, factor on the learning rate from there on), in this order.
    """

    project: str
    optimizer: str
    arguments: tuple[str, ...]
    batch: int
    rate: float
    second: int
    limit: int
    target: float
    changes: tuple[tuple[int, float], ...] = ()


def train(course: Course) -> Row:
    """Train in a process of its own.

    Returns:
        The course; ``reports``, as they were sent, their ``time`` being processor seconds; and
        ``steps``, the loss of every step.

    Raises:
        RuntimeError: The training failed; the text is its output.
    """
    with tempfile.TemporaryDirectory(prefix="rlsched-bench-") as name:
        child = multiprocessing.get_context("fork").Process(
            target=_in_child, args=(course, Path(name))
        )
        child.start()
        child.join()
        if child.exitcode != 0:
            raise RuntimeError(f"{course}:\n{(Path(name) / 'output').read_text()}")
        reports = ReportReader(Path(name) / "attempt" / "report.jsonl").poll()
        told = [{**report.numbers, **report.metrics} for report in reports if not report.event]
        steps = json.loads((Path(name) / "steps.json").read_text())
        return {**asdict(course), "reports": told, "steps": steps}


def _in_child(course: Course, folder: Path) -> None:
    with open(folder / "output", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        with redirect_stdout(output):
            _run(course, folder)


def _run(course: Course, folder: Path) -> None:
    import torch

    from mlflow_rlsched.training import gradients, session

    torch.set_num_threads(1)
    attempt = folder / "attempt"
    attempt.mkdir()
    os.environ |= {
        "RLSCHED_RUN_DIR": str(folder),
        "RLSCHED_ATTEMPT": "1",
        "RLSCHED_ATTEMPT_DIR": str(attempt),
        "RLSCHED_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "RLSCHED_NUM_GPUS": "0",
    }
    if course.optimizer == "sgd":
        torch.optim.Adam = _momentum  # type: ignore[misc]
    losses: list[float] = []
    supervisor = _Supervisor(course, attempt)
    whole: Callable[..., bool] = session.Session.step

    def step(self: session.Session, *, loss: Any, samples: int) -> bool:
        supervisor.look(self.samples + samples, float(loss))
        losses.append(float(f"{float(loss):.4g}"))
        return whole(self, loss=loss, samples=samples)

    session.Session.step = step  # type: ignore[method-assign, assignment]
    session.time = SimpleNamespace(  # type: ignore[assignment]
        monotonic=lambda: supervisor.samples / course.second, time=time.process_time
    )
    gradients.SHARE = math.inf  # of the time, which is not what this clock counts
    script = str(PROJECTS / course.project / "train.py")
    setting = f"--batch-size {course.batch} --lr {course.rate}"
    sys.argv = [script, *course.arguments, *setting.split()]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code != EXIT_RESUME:  # stopped, as it was asked to
            raise
    (folder / "steps.json").write_text(json.dumps(losses))


def _momentum(parameters: Any, lr: float) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


class _Supervisor:
    """Says when the learning rate changes and when the training stops.

    Attributes:
        samples: Samples seen.
    """

    def __init__(self, course: Course, attempt: Path) -> None:
        self.samples = 0
        self._course, self._attempt = course, attempt
        self._changes = list(course.changes)
        self._sum, self._count, self._reports = 0.0, 0, 0
        self._losses: list[float] = []  # means between reports
        self._reached = 0
        self._sequence = 0
        self._scale = 1.0

    def look(self, samples: int, loss: float) -> None:
        """Look at a step before the session does."""
        self.samples = samples
        self._sum, self._count = self._sum + loss, self._count + 1
        if samples // self._course.second > self._reports:
            self._reports = samples // self._course.second
            self._losses.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
            self._reached += (level(self._losses) or 0.0) <= self._course.target
            lost = not self._losses[-1] < LOST
            if self._reached > SETTLED or (lost and len(self._losses) > SETTLED):
                self._direct("stop")
        if self._changes and samples >= self._changes[0][0]:
            self._scale = self._changes.pop(0)[1]
            self._direct("continue")
        if samples >= self._course.limit:
            self._direct("stop")

    def _direct(self, action: str) -> None:
        self._sequence += 1
        directive = Directive(1, self._sequence, lr_scale=self._scale, action=action)
        directive.write(self._attempt)


def view(row: Row) -> list[dict[str, float]]:
    """What a policy would have seen at the end of each decision interval.

    Samples, ``loss`` (its level), the relative ``slope`` and the ``oscillation`` (log2) of the
    state, the relative ``spread``, the mean ``cosine`` of consecutive gradients, ``noise_scale``
    and ``grad_var``; what was not known is absent.
    """
    history, setting = History(), Setting(1, row["batch"])
    limits = Limits(batch_initial=row["batch"], optimizer=row["optimizer"], interval_s=INTERVAL)
    reports = [Report(numbers=numbers) for numbers in row["reports"]]
    found = []
    for end in range(INTERVAL, len(reports) + 1, INTERVAL):
        now = Interval(INTERVAL, end, setting, reports=reports[end - INTERVAL : end])
        history = observe(history, now, limits)
        state, seen = build_state(history, now, limits), signals(history.losses)
        values: dict[str, float | None] = {"samples": history.samples}
        if seen is not None:
            values |= {
                "loss": seen.level,
                "slope": seen.change,
                "spread": seen.spread / max(abs(seen.level), 1e-12),
            }
        if "loss_oscillation" not in state.missing:
            values["oscillation"] = state.values["loss_oscillation"]
        if history.gradients:
            values |= {
                "cosine": alignment(history.gradients)[0],
                "noise_scale": noise_scale(history.gradients),
                "grad_var": history.gradients[-1].var,
            }
        found.append({name: value for name, value in values.items() if value is not None})
        history = decided(history, now, NO_CHANGE, setting, {})
    return found


def levels(row: Row) -> Floats:
    """(N, 2) samples and level of the loss: the median of five reports, at the middle one's."""
    told = [(r["samples"], r["loss"]) for r in row["reports"] if "loss" in r]
    around = (told[max(i - 2, 0) : i + 3] for i in range(len(told)))
    return np.array(
        [(at, median(loss for _, loss in near)) for (at, _), near in zip(told, around, strict=True)]
    )


def passage(row: Row, loss: float) -> float | None:
    """Samples after which the level of the loss is ``loss``, interpolated; None if it never is."""
    points = levels(row)
    below = np.flatnonzero(points[:, 1] <= loss)
    if not len(below):
        return None
    (x0, y0), (x1, y1) = points[max(below[0] - 1, 0)], points[below[0]]
    return float(x1 if y0 <= loss else x0 + (x1 - x0) * (y0 - loss) / (y0 - y1))
