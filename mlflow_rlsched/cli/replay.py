"""``rlsched replay``: what other policies would have made of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.cli.common import (
    json_option,
    opened,
    plain,
    print_json,
    print_table,
    store_option,
    table,
)
from mlflow_rlsched.cli.recorded import find_recorded
from mlflow_rlsched.policy_names import POLICIES
from mlflow_rlsched.words import duration

if TYPE_CHECKING:
    from mlflow_rlsched.analysis.model import Model
    from mlflow_rlsched.analysis.replay import Course, Happened, Outcome, Range

HEADINGS = ["", "TIME", "OVER FIXED", "DEVICE-HOURS", "TO TARGET", "FINAL", "BATCH", "DEVICES"]


@click.command()
@click.argument("run_id", metavar="RUN_ID")
@click.option(
    "--policy",
    "asked",
    multiple=True,
    type=click.Choice(POLICIES),
    help="A policy to look at; may be given several times. All by default.",
)
@store_option
@json_option
def replay(run_id: str, asked: Sequence[str], url: str, as_json: bool) -> None:
    """Show what other policies would have made of a run, by a model that is fitted to it.

    Each is compared with fixed and with what really happened. Times are medians and 90 % intervals
    of the model; how much equal runs differ by themselves is not in them.
    """
    with opened(url) as store:
        task = find_recorded(store, run_id)
        from mlflow_rlsched.analysis.recorded import read

        record = read(store, task, time.time())
    from mlflow_rlsched.analysis import model as models
    from mlflow_rlsched.analysis import replay as replays

    try:
        model = models.fit(record)
    except models.ModelError as error:
        raise click.ClickException(f"no model can be fitted to this run: {error}") from error
    policies = replays.policies_for(record, asked or POLICIES)
    if missing := [name for name in asked if name not in policies]:
        raise click.ClickException(f"there is no policy {missing[0]} to ask: `rlsched doctor`")
    found = replays.play(record, model, policies)
    real, course = replays.happened(record), replays.course_of(record)
    if as_json:
        fit = {
            "settings": [asdict(step) for step in model.measured],
            "step_time_error": model.step_error,
            "foretold_error": model.foretold_error,
        }
        outcomes = [asdict(outcome) for outcome in found]
        told = {"fit": fit, "happened": asdict(real), "metric": course.metric, "policies": outcomes}
        print_json({"run_id": task.run_id, "simulated": True} | told)
    else:
        click.echo(f"run {task.run_id}  {plain(task.spec.label)}\n")
        _print(model, real, found, course)
    if asked and all(outcome.refused for outcome in found if outcome.policy in asked):
        raise click.ClickException("the model is too thin to tell what was asked for")


def _print(model: Model, real: Happened, found: Sequence[Outcome], course: Course) -> None:
    fixed = found[0].seconds
    rows: list[list[object]] = [
        [
            f"happened ({real.policy})" + ("" if real.is_whole else ", not to its end"),
            duration(real.seconds),
            f"{real.seconds / fixed.value:.2f}" if fixed and real.is_whole else "",
            f"{real.device_s / 3600:.3g}",
            "" if real.target_s is None else duration(real.target_s),
            "" if real.metric is None else f"{course.metric} {real.metric:.4g}",
            "",
            "",
        ]
    ]
    rows += [_row(outcome, fixed, course) for outcome in found if not outcome.refused]
    print_table(table(HEADINGS, rows))
    for outcome in found:
        if outcome.refused:
            click.echo(f"{outcome.policy}: {outcome.refused}")
    for sentence in _basis(model, course):
        click.echo(f"\n{sentence}")


def _row(outcome: Outcome, fixed: Range | None, course: Course) -> list[object]:
    assert outcome.seconds is not None
    assert outcome.device_s is not None
    return [
        outcome.policy,
        _span(outcome.seconds),
        "" if fixed is None else f"{outcome.seconds.value / fixed.value:.2f}",
        f"{outcome.device_s.value / 3600:.3g}",
        "" if outcome.target_s is None else _span(outcome.target_s),
        "" if outcome.metric is None else f"{course.metric} {outcome.metric:.4g}",
        f"{outcome.batch:.0f}",
        f"{outcome.gpus:.0f}",
    ]


def _span(span: Range) -> str:
    return f"{duration(span.value)} ({duration(span.low)} to {duration(span.high)})"


def _basis(model: Model, course: Course) -> list[str]:
    settings: dict[str, Any] = {f"{s.gpus} x {s.batch:g}": s for s in model.measured}
    foretold = model.foretold_error
    unseen = (
        "One setting does not say how step times change with the batch: that is assumed, as unsure"
        " as it is."
        if foretold is None
        else f"Settings that it is not told are off by {foretold:.1%} (median)."
    )
    said = [
        f"Simulated, by a model fitted to the settings that were measured (devices x batch:"
        f" {', '.join(list(settings)[:6])}{', …' if len(settings) > 6 else ''}). Its step times are"
        f" off by {model.step_error:.1%}. {unseen}",
        "TIME is running time to the end of the plan, without waiting in the queue, with all that"
        " the run may have free. What another learning rate is worth is not in it.",
    ]
    if course.trouble:
        said.append(course.trouble[0].upper() + course.trouble[1:] + ".")
    return said
