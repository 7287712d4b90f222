"""What the learning rate and the batch size do to real trainings, as a policy sees them.

Trains ``projects/digits`` and ``projects/language`` on grids of batch sizes and learning rates,
each with one constant setting, and with changes of the rate in between; then fits the simulator's
learning-rate model to what they reported (``benchmarks/axes_fits.py``). Samples, not seconds, are
the measure. ``--out`` keeps the raw table, a training a line; ``--table`` fits such a file again.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median
from typing import TextIO

import click
import numpy as np

from benchmarks.axes_fits import (
    GAUSS,
    SHAPES,
    Fit,
    Place,
    Shape,
    fit_curve,
    fit_speed,
    linear,
    place_of,
    response,
)
from benchmarks.figures import Figure, show
from benchmarks.host import PROJECTS
from benchmarks.trainings import Course, Row, passage, train, view

STEP = 30**0.25
"""Ratio of neighbouring rates of a grid."""

BATCHES = (32, 8, 128)
LONG = {
    "digits": ("--epochs", "10000", "--width", "32"),
    "language": ("--sequences", "10000000"),
}
"""Arguments with which a project trains so long that its schedule is flat."""

CHANGES = (2.0, 4.0, 0.5)
"""Factors on the rate that are tried in the middle of a training."""


@dataclass(frozen=True)
class Case:
    """A project with the optimizer that it is trained with.

    Attributes:
        project: Name of the project.
        optimizer: ``adam``, the project's own, or ``sgd``.
        rate: Middle of the rates.
        second: Samples of a report.
        limit: Samples after which a training is stopped.
        losses: Losses whose first passage is measured; it is stopped some time after the last.
    """

    project: str
    optimizer: str
    rate: float
    second: int
    limit: int
    losses: tuple[float, float, float]

    def course(self, batch: int, rate: float) -> Course:
        """A training with one setting, up to the last of the losses."""
        arguments = LONG[self.project]
        return Course(
            *(self.project, self.optimizer, arguments, batch, rate),
            *(self.second, self.limit, self.losses[-1]),
        )

    def changed(self, rate: float, changes: tuple[tuple[int, float], ...]) -> Course:
        """A training of a fixed length with changes of the rate."""
        usual = self.course(BATCHES[0], rate)
        return replace(usual, limit=self.length, target=0.0, changes=changes)

    @property
    def length(self) -> int:
        """Samples of a training with changes."""
        return 48 * self.second


CASES = (
    Case("digits", "sgd", 0.03, 256, 32768, (1.0, 0.5, 0.2)),
    Case("digits", "adam", 0.001, 256, 32768, (1.0, 0.5, 0.2)),
    Case("language", "adam", 0.003, 128, 9216, (3.0, 2.6, 2.4)),
)


def trainings(quick: bool) -> Iterator[Row]:
    """Every training, one after the other."""
    with tempfile.TemporaryDirectory(prefix="rlsched-bench-") as folder:
        _prepare(f"sqlite:///{folder}/mlflow.db")
        for case in CASES[1:2] if quick else CASES:
            for batch in BATCHES[:1] if quick else BATCHES:
                yield from _rates(case, batch, range(-4, 5, 2) if quick else range(-4, 5))
            yield from _changes(case, quick)


def _prepare(tracking: str) -> None:
    """Do once what every training would do when it starts: they are forks of this process."""
    os.environ |= {"MLFLOW_TRACKING_URI": tracking, "OMP_NUM_THREADS": "1"}
    import mlflow
    import torch

    torch.set_num_threads(1)
    mlflow.MlflowClient().search_experiments(max_results=1)
    for case in CASES:
        runpy.run_path(str(PROJECTS / case.project / "train.py"))


def _rates(case: Case, batch: int, places: range) -> Iterator[Row]:
    """The trainings of a batch size, up to the first rate that is too high to learn at all."""
    learnt = False
    for place in places:
        row = _trained(case.course(batch, case.rate * STEP**place))
        yield row
        learns = passage(row, case.losses[0]) is not None
        if learnt and not learns:
            return
        learnt |= learns


def _changes(case: Case, quick: bool) -> Iterator[Row]:
    """Trainings with a rate that is ten times too low and with the usual one."""
    for rate in (case.rate / 10, case.rate):
        yield _trained(case.changed(rate, ()))
        for part, factor in product((0.2,) if quick else (0.2, 0.5), CHANGES):
            yield _trained(case.changed(rate, ((int(part * case.length), factor),)))


def _trained(course: Course) -> Row:
    row = train(course)
    row["seen"] = view(row)
    click.echo(
        f"{course.project} {course.optimizer}, batch {course.batch}, rate {course.rate:.3g},"
        f" changes {course.changes}: loss {row['seen'][-1]['loss']:.3g} after"
        f" {row['seen'][-1]['samples']:.0f} samples",
        err=True,
    )
    return row


def figures(rows: Sequence[Row]) -> list[Figure]:
    """What the fits say of a raw table."""
    found = []
    for case in CASES:
        mine = [r for r in rows if (r["project"], r["optimizer"]) == (case.project, case.optimizer)]
        constant = [r for r in mine if r["limit"] == case.limit]
        if constant:
            what = f"{case.project}, {case.optimizer}"
            fits = {shape: fit_speed(constant, case.losses[1], shape) for shape in SHAPES}
            tried = (place_of(r, fits[GAUSS], case.losses[0], case.losses[2]) for r in constant)
            places = [place for place in tried if place is not None]
            found += [_speed(what, case, shape, fit) for shape, fit in fits.items()]
            found += _axis(what, case, constant, fits[GAUSS], places)
            found += _told(what, places)
            found += _courses(what, constant, fits[GAUSS])
            found += _answers(what, [r for r in mine if r["limit"] == case.length], fits[GAUSS])
    return found


def _speed(what: str, case: Case, shape: Shape, fit: Fit) -> Figure:
    (first, second), (one, other) = fit.parameters, fit.errors
    note = (
        f"below {first:.2f} ± {one:.2f}, above {second:.2f} ± {other:.2f}; R² {fit.r2:.3f} of"
        f" {fit.count}; best {_by_batch(fit.best)}; samples there {_by_batch(fit.samples)}"
    )
    name = f"{what}: samples to a loss of {case.losses[1]:g}, {shape.name}: residual"
    return Figure(name, fit.rms, "ln", 0.1, None, note)


def _by_batch(values: Mapping[int, float]) -> str:
    return ", ".join(f"{batch}: {value:.3g}" for batch, value in values.items())


def _axis(
    what: str, case: Case, rows: Sequence[Row], fit: Fit, places: Sequence[Place]
) -> list[Figure]:
    """How the best rate and the samples there grow with the batch, and where the axis ends."""
    failed: dict[int, float] = {}
    fine: dict[int, float] = {}
    for row in rows:
        batch, over = row["batch"], math.exp(fit.x(row))
        if passage(row, case.losses[1]) is not None:
            fine[batch] = max(over, fine.get(batch, 0.0))
        elif over > 1:
            failed[batch] = min(over, failed.get(batch, math.inf))
    found = []
    scales = [place.noise_scale for place in places if place.noise_scale is not None]
    if len(fit.best) > 2 and scales:
        batches, scale = np.array(list(fit.best)), median(scales)
        power = 1.0 if case.optimizer == "sgd" else 0.5
        growth = linear([np.log(batches)], np.log(list(fit.best.values())))
        room = linear([np.log(batches)], -power * np.log1p(scale / batches)).coefficients[0]
        line = linear([batches], list(fit.samples.values()))
        note = (
            f"power of the batch, ± {growth.errors[0]:.2f}; best {_by_batch(fit.best)}; baseline:"
            f" what the measured noise scale, {scale:.0f}, makes of it (McCandlish et al.); the"
            f" samples there are those of a noise scale of"
            f" {line.coefficients[1] / line.coefficients[0]:.0f}"
        )
        found.append(
            Figure(
                f"{what}: growth of the best rate", growth.coefficients[0], "", power, room, note
            )
        )
    if failed:
        note = (
            f"first that fails {_by_batch(failed)}; last that learns {_by_batch(fine)}; goal: where"
            " rate x (2 - rate) is 0, and a step of the grid"
        )
        name = f"{what}: rate that does not reach the loss, over the best"
        found.append(Figure(name, min(failed.values()), "times", 2 * STEP, None, note))
    return found


def _told(what: str, places: Sequence[Place]) -> list[Figure]:
    """How noise and gradients depend on the batch and on the rate."""
    found = []
    stepped = [(place, place.stepped) for place in places]
    reported = [(place, place.reported) for place in places if place.reported is not None]
    for name, known in (("step", stepped), ("report", reported)):
        if len(known) > 4:
            columns = [[math.log(p.batch) for p, _ in known], [p.x for p, _ in known]]
            noises = [math.log(noise) for _, noise in known]
            model = linear(columns, noises)
            batch, rate = (
                f"{value:.2f} ± {error:.2f}"
                for value, error in zip(model.coefficients[:2], model.errors[:2], strict=True)
            )
            note = (
                f"power of the batch {batch}, of the rate {rate}; R² {model.r2:.2f} of"
                f" {len(known)} trainings"
            )
            title = f"{what}: relative noise of the loss of a {name}"
            found.append(Figure(title, math.exp(fmean(noises)), "", 0.15, None, note))
    cosines = [(place.x, place.cosine) for place in places if place.cosine is not None]
    low = [cosine for x, cosine in cosines if x < -2]
    near = [cosine for x, cosine in cosines if x > -1]
    if low and near:
        note = (
            f"mean of {len(near)} trainings from 0.37 times the best on; baseline: of {len(low)}"
            " below 0.14 times"
        )
        name = f"{what}: cosine near the best rate"
        found.append(Figure(name, fmean(near), "", 0.0, fmean(low), note))
    return found


def _courses(what: str, rows: Sequence[Row], fit: Fit) -> list[Figure]:
    """How well the loss's course is described, over the trainings below the best rate."""
    found = []
    for delayed in (False, True):
        curves = [fit_curve(row, delayed) for row in rows if fit.x(row) < 0]
        middle = {
            name: median(getattr(curve, name) for curve in curves)
            for name in ("floor", "delay", "power", "rms")
        }
        note = f"medians of {len(curves)} trainings: " + ", ".join(
            f"{name} {value:.2f}" for name, value in middle.items()
        )
        kind = "a power law with a delay" if delayed else "a power law"
        name = f"{what}: course of the loss, {kind}: residual"
        found.append(Figure(name, middle["rms"], "ln", 0.1, None, note))
    return found


def _answers(what: str, rows: Sequence[Row], fit: Fit) -> list[Figure]:
    """How well the fit tells what changes of the rate do, and what they look like."""
    controls = {row["rate"]: row for row in rows if not row["changes"]}
    found = []
    for row in rows:
        if row["changes"]:
            seen = response(row, controls[row["rate"]], fit)
            before, after = GAUSS.log_speed(
                np.array([seen.x, seen.x + math.log(seen.factor)]), *fit.parameters
            )
            soon, later, last = seen.after
            note = (
                f"speed x {seen.speed:.2f}; ln of the loss over the unchanged one's after 2, 5, 10"
                f" reports {soon:+.3f}, {later:+.3f}, {last:+.3f}; ln(loss) a report"
                f" {seen.before_slope:+.3f} in the 10 before, {seen.after_slope:+.3f} in the 10"
                f" after, {seen.without_slope:+.3f} without the change; baseline: the fit's speed"
            )
            name = (
                f"{what}: rate x {seen.factor:g} at {seen.part:.0%}, from {math.exp(seen.x):.2f}"
                " of the best: error of the fit's speed"
            )
            expected = float(after - before)
            error = abs(math.log(seen.speed) - expected)
            found.append(Figure(name, error, "ln", 0.3, math.exp(expected), note))
    return found


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--quick", is_flag=True, help="One case and few rates, to try the command.")
@click.option("--out", type=click.File("w"), help="Where to write the raw table.")
@click.option("--table", type=click.File(), help="Fit this raw table; train nothing.")
def main(as_json: bool, quick: bool, out: TextIO | None, table: TextIO | None) -> None:
    """Measure and fit."""
    if table is not None:
        try:
            rows = [json.loads(line) for line in table]
        except ValueError as error:
            raise click.ClickException(f"{table.name} is no raw table: {error}") from error
    else:
        rows = []
        for row in trainings(quick):
            rows.append(row)
            if out is not None:
                print(json.dumps(row), file=out, flush=True)
    show(figures(rows), as_json)


if __name__ == "__main__":
    main()
