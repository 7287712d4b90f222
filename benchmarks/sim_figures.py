"""From what became of simulated runs to figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import bootstrap  # type: ignore[import-untyped]

from benchmarks.figures import Figure
from benchmarks.sim_policies import HINDSIGHT
from mlflow_rlsched.learning.evaluation import Estimate, Played, mean_of
from mlflow_rlsched.policy.inputs import Array

LONGER = 1.1
"""Time over fixed from which a run has lost something."""


def novice(start: str, played: Mapping[str, Played]) -> list[Figure]:
    """Times from novice starts, over those of the other policies."""
    fixed, best = played["fixed"], played[HINDSIGHT]
    known = fixed.reached & best.reached
    figures = []
    for name, found in played.items():
        if name == "fixed":
            continue
        of = f"{start}: time, {name}"
        lost = f"; there where fixed never is ({(~fixed.reached).sum()} runs):"
        lost += f" {_share(found.reached[~fixed.reached])}"
        figures += [
            ratio(f"{of} / fixed, where fixed gets there", found, fixed, 0.25, fixed.reached, lost),
            ratio(f"{of} / fixed, all", found, fixed, 0.25, note="; bounds from above" + lost),
        ]
        if name != HINDSIGHT:
            figures.append(ratio(f"{of} / hindsight", found, best, 1.08, known))
    if "ddpg" in played:
        for other, goal in (("goodput", 0.85), ("rules", 0.7)):
            of = f"{start}: time, ddpg / {other}, all"
            figures.append(ratio(of, played["ddpg"], played[other], goal))
    return figures


def tuned(start: str, played: Mapping[str, Played], apps: Array) -> list[Figure]:
    """Times from tuned starts.

    Args:
        start: Which.
        played: What became of the runs.
        apps: (R,) the application of each run.
    """
    fixed = played["fixed"]
    best = np.minimum(played[HINDSIGHT].seconds / fixed.seconds, 1.0)  # fixed is a schedule too
    figures = [ratio(f"{start}: time, hindsight / fixed", played[HINDSIGHT], fixed, 1.0)]
    for name, found in played.items():
        if name in ("fixed", HINDSIGHT):
            continue
        ratios = found.seconds / fixed.seconds
        worst = f"; p99 {np.percentile(ratios, 99):.2f}"
        figures.append(ratio(f"{start}: time, {name} / fixed", found, fixed, 1.0, note=worst))
        for app in np.unique(apps):
            of = f"{start}: time, {name} / fixed, {app}"
            figures.append(ratio(of, found, fixed, 1.02, apps == app))
        figures.append(
            figure(
                f"{start}: over {LONGER} x fixed, {name}",
                mean_of((ratios > LONGER).astype(float)),
                0.01,
            )
        )
        left = quotient(ratios - best, 1 - best)
        note = "of the means; hindsight is at most fixed"
        of = f"{start}: gap to hindsight left open, {name}"
        figures.append(figure(of, left, 0.3, note=note, baseline=float(np.mean(1 - best))))
    if "ddpg" in played:
        of = f"{start}: time, ddpg / goodput"
        figures.append(ratio(of, played["ddpg"], played["goodput"], 1.0))
    return figures


def idle(start: str, played: Mapping[str, Played]) -> list[Figure]:
    """The part of the held devices' time in which they do not compute."""
    fixed = played["fixed"]
    figures = []
    for name, found in played.items():
        note = f"mean of {len(found.busy)} runs"
        if name != "fixed":
            note += f"; {_costs(found, fixed, np.ones(len(fixed.busy), bool))}"
        of = f"{start}: idle part of held devices, {name}"
        figures.append(figure(of, mean_of(1 - found.busy), 0.28, "", 1 - fixed.busy.mean(), note))
    return figures


def interruptions(start: str, played: Mapping[str, Played], at_once: int) -> list[Figure]:
    """Times out of memory over those with the fixed setting.

    Args:
        start: Which.
        played: What became of the runs.
        at_once: Runs that are out of memory before anything could be decided.
    """
    fixed = played["fixed"]
    note = (
        f"of the sums over {len(fixed.ooms)} runs, {at_once} of which run out before the first"
        " decision; fixed has the back-off of supervision; baseline: times a run"
    )
    return [
        figure(
            f"{start}: times out of memory, {name} / fixed",
            quotient(found.ooms, fixed.ooms),
            0.3,
            "times",
            float(fixed.ooms.mean()),
            note,
        )
        for name, found in played.items()
        if name != "fixed"
    ]


def recovery(start: str, played: Mapping[str, Played]) -> list[Figure]:
    """Time from a raise of the rate until what was lost is learnt again."""
    fixed = played["fixed"]
    figures = []
    for name, found in played.items():
        back = f"; comes back: {_share(found.reached)}, fixed: {_share(fixed.reached)}"
        of = f"{start}: time until the loss is back, {name} / fixed"
        if name != "fixed" and fixed.reached.any():
            figures.append(ratio(of, found, fixed, 0.65, fixed.reached, back))
        elif name != "fixed":
            of = f"{start}: runs whose loss never comes back, {name}"
            never = mean_of(1.0 - found.reached)
            note = "part of the runs; the goal is the best there is"
            figures.append(figure(of, never, 0.0, "", float(np.mean(~fixed.reached)), note))
    return figures


def ratio(
    name: str,
    found: Played,
    base: Played,
    goal: float,
    of: Array | None = None,
    note: str = "",
) -> Figure:
    """The mean of the ratios of paired times.

    Args:
        name: What it is.
        found: What became of runs under one policy.
        base: The same under another one.
        goal: Its upper bound.
        of: (R,) the runs that count; all by default.
        note: What else there is to say.
    """
    of = np.ones(len(found.seconds), bool) if of is None else of
    if not of.any():
        return Figure(name, np.nan, "times", goal, None, "there is no such run")
    ratios = (found.seconds / base.seconds)[of]
    text = (
        f"{of.sum()} pairs, geometric {np.exp(np.log(ratios).mean()):.2f}, over {LONGER}:"
        f" {np.mean(ratios > LONGER):.0%}, never there: {np.mean(~found.reached[of]):.0%};"
        f" {_costs(found, base, of)}{note}; baseline: seconds"
    )
    return figure(name, mean_of(ratios), goal, "times", float(base.seconds[of].mean()), text)


def quotient(above: Array, below: Array) -> Estimate:
    """The sum of (N,) values over that of others of the same runs, by the bootstrap."""
    values = np.asarray(above, float), np.asarray(below, float)
    value = float(np.sum(above) / np.sum(below)) if np.sum(below) else np.nan
    found = bootstrap(
        values,
        lambda a, b, axis: a.sum(axis) / np.maximum(b.sum(axis), 1e-12),
        paired=True,
        vectorized=True,
        n_resamples=2000,
        method="percentile",
        random_state=0,
    )
    low, high = found.confidence_interval
    return Estimate(value, float(low), float(high))


def _costs(found: Played, base: Played, of: Array) -> str:
    hours = found.device_seconds[of].sum() / base.device_seconds[of].sum()
    return f"device-hours {hours:.2f} x, restarts {found.restarts[of].mean():.1f}"


def _share(which: Array) -> str:
    return f"{which.mean():.0%}" if len(which) else "none"


def figure(
    name: str,
    found: Estimate,
    goal: float,
    unit: str = "",
    baseline: float | None = None,
    note: str = "",
) -> Figure:
    """An estimate as a figure, its interval in the note; the rest as in ``Figure``."""
    text = f"simulated; {found.low:.3g} to {found.high:.3g}"
    text += f"; {note}" if note else ""
    return Figure(name, found.value, unit, goal, baseline, text)
