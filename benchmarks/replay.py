"""How well a replay foretells another policy, against a real run of that policy."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import product

import click

from benchmarks.figures import Figure, command
from benchmarks.host import PROJECTS, Host, host

PAIRS = (("fixed", "goodput"), ("rules", "ddpg"))
"""Policies whose runs go on side by side on one machine; each is foretold from the other."""

CASES = {
    "digits": ("digits", {"batch_size": "8", "lr": "1e-4", "width": "64", "epochs": "20"}),
    "narrow digits": ("digits", {"batch_size": "8", "lr": "1e-4", "width": "8", "epochs": "60"}),
    "language": ("language", {"batch_size": "8", "lr": "1e-3", "sequences": "9216"}),
}
"""Projects and their parameters. The narrow one computes little, so that a larger batch pays."""

GOAL = 0.15
"""Median error of the running time."""


@dataclass(frozen=True)
class Foretold:
    """A running time that was foretold, and what it really was.

    Attributes:
        case: Project, policy that was recorded and policy that was foretold.
        seconds: Foretold; None where the replay refused.
        low: Lower end of its interval.
        high: Upper end.
        real: What it was.
    """

    case: str
    seconds: float | None
    low: float
    high: float
    real: float

    @property
    def error(self) -> float:
        """Relative error."""
        assert self.seconds is not None
        return abs(self.seconds / self.real - 1)


def measure(quick: bool) -> list[Figure]:
    """Two seeds of each case and pair of policies; ``quick``, one of the first pair."""
    seeds, pairs = (1, PAIRS[:1]) if quick else (2, PAIRS)
    found: list[Foretold] = []
    with host(slots=2) as place:
        for seed, pair, case in product(range(seeds), pairs, CASES):
            told = _pair(place, case, seed, pair)
            found += told
            for each in told:
                click.echo(str(each), err=True)
    return _figures(found)


def _pair(place: Host, case: str, seed: int, pair: tuple[str, str]) -> list[Foretold]:
    names = {policy: f"{case}, {policy}, {seed}" for policy in pair}
    project, parameters = CASES[case]

    def train(policy: str) -> None:
        place.run(
            *("mlflow", "run", str(PROJECTS / project), "--backend", "rlsched"),
            *("--backend-config", json.dumps({"policy": policy}), "--run-name", names[policy]),
            *(part for name, text in parameters.items() for part in ("-P", f"{name}={text}")),
            *("-P", f"seed={seed}"),
        )

    threads = [threading.Thread(target=train, args=(policy,)) for policy in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = pair
    return [_foretell(place, names, first, second), _foretell(place, names, second, first)]


def _foretell(place: Host, names: dict[str, str], known: str, wanted: str) -> Foretold:
    from mlflow_rlsched.analysis import model, replay
    from mlflow_rlsched.analysis.recorded import read
    from mlflow_rlsched.store import open_store

    os.environ["RLSCHED_HOME"] = place.env["RLSCHED_HOME"]  # whose champion decides
    with closing(open_store(place.store)) as store:
        tasks = {task.spec.label: task for task in store.tasks()}
        record, real = (read(store, tasks[names[each]], time.time()) for each in (known, wanted))
    fitted = model.fit(record)
    outcomes = replay.play(record, fitted, replay.policies_for(record, [wanted]))
    outcome = next(each for each in outcomes if each.policy == wanted)
    case, seconds = f"{names[known]} -> {wanted}", replay.happened(real).seconds
    if outcome.seconds is None:
        return Foretold(case, None, 0.0, 0.0, seconds)
    span = outcome.seconds
    return Foretold(case, span.value, span.low, span.high, seconds)


def _figures(found: list[Foretold]) -> list[Figure]:
    told = [each for each in found if each.seconds is not None]
    refused = len(found) - len(told)
    if not told:
        raise click.ClickException(f"all {refused} replays refused: the runs were too short")
    within = sum(each.low <= each.real <= each.high for each in told)
    note = (
        f"{len(told)} replays of {', '.join(CASES)}, the largest error"
        f" {max(each.error for each in told):.0%}; {within} within their 90 % intervals;"
        f" {refused} refused, as the fit was too thin; baseline: seconds"
    )
    return [
        Figure(
            "running time foretold for another policy: median error",
            statistics.median(each.error for each in told),
            "",
            GOAL,
            statistics.median(each.real for each in told),
            note,
        )
    ]


main = command(measure)

if __name__ == "__main__":
    main()
