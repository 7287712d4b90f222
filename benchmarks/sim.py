"""What policies are worth on simulated runs that nothing was fitted to or chosen by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.figures import Figure, command
from mlflow_rlsched.learning.evaluation import Played, mean_of, play
from mlflow_rlsched.learning.hindsight import optimum
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.simulator.parameters import Effects, Ranges
from mlflow_rlsched.simulator.run import Runs

UNSEEN = ("bert", "deepspeech2")
"""Applications that nothing was trained on, fitted to or chosen by."""

POLICIES: dict[str, Callable[[int], Policy]] = {
    "rules": lambda _: Rules(),
    "goodput": lambda _: Goodput(),
}
FOLLOWED = 20.0
"""Running time to which a run is followed, over its length at its initial setting."""

SEED = 2026


def measure(quick: bool) -> list[Figure]:
    """Novice starts, without and with an axis of the learning rate; ten minutes."""
    count = 20 if quick else 200
    figures = []
    for axis, effects in (
        ("measured axes (devices, batch)", replace(Effects(), learning_rate=False)),
        ("with the learning rate's fitted axis", Effects()),
    ):
        figures += _novice(axis, effects, count)
    return figures


def novice(count: int, effects: Effects) -> Runs:
    """Runs at the base batch, on one device or on all, with a rate up to 10 times off."""
    ranges = Ranges(batch_start=(1.0, 1.0), lr_optimum=(0.1, 10.0))
    runs = Runs(count, SEED, effects, ranges, UNSEEN)
    most = np.arange(count) % 2 == 1
    gpus = np.where(most, np.minimum(runs.bounds.gpus_max, runs.bounds.batch_initial), 1.0)
    runs.begin_with(gpus)
    runs.parameters.horizon_s *= FOLLOWED / 5
    return runs


def _novice(axis: str, effects: Effects, count: int) -> list[Figure]:
    def runs() -> Runs:
        return novice(count, effects)

    fixed = play(runs(), lambda _: Fixed())
    best = optimum(runs(), fixed.device_seconds)
    played = {name: play(runs(), policies) for name, policies in POLICIES.items()}
    figures = [_ratio(axis, "hindsight", best, fixed, goal=0.25)]
    for name, found in played.items():
        figures.append(_ratio(axis, name, found, fixed, goal=1.0))
    return figures


def _ratio(axis: str, name: str, found: Played, fixed: Played, goal: float) -> Figure:
    known = fixed.reached
    ratios = (found.seconds / fixed.seconds)[known]
    hours = found.device_seconds[known].sum() / fixed.device_seconds[known].sum()
    mean = mean_of(ratios)
    rescued = f"{found.reached[~known].mean():.0%}" if (~known).any() else "none"
    return Figure(
        f"novice, {axis}: time to target, {name} / fixed",
        mean.value,
        "times",
        goal,
        float(fixed.seconds[known].mean()),
        f"simulated; mean of {known.sum()} pairs ({mean.low:.2f} to {mean.high:.2f}), geometric"
        f" {np.exp(np.log(ratios).mean()):.2f}; device-hours {hours:.2f} times; over 1.1 times:"
        f" {np.mean(ratios > 1.1):.0%}; never there: {np.mean(~found.reached[known]):.0%};"
        f" there where fixed never is ({(~known).sum()} runs): {rescued}; restarts"
        f" {found.restarts[known].mean():.1f}; baseline: seconds",
    )


main = command(measure)

if __name__ == "__main__":
    main()
