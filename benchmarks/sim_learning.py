"""What learning is worth: from 20 runs of a new workload, and from random weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.figures import Figure
from benchmarks.sim_figures import LONGER, figure, quotient, ratio
from benchmarks.sim_policies import WORKERS, side_by_side
from benchmarks.sim_starts import SEED, recurring
from mlflow_rlsched.learning import pretraining
from mlflow_rlsched.learning.comparison import HELD_OUT, Chosen, novice
from mlflow_rlsched.learning.evaluation import Played, mean_of
from mlflow_rlsched.learning.hindsight import optimum
from mlflow_rlsched.learning.mlflow_log import Log
from mlflow_rlsched.learning.online import OnlineLearning, Plan
from mlflow_rlsched.learning.parallel import spread
from mlflow_rlsched.learning.pretraining import HEADS, Pretraining
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.simulator.parameters import Effects
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.store import open_store
from mlflow_rlsched.training import attach
from mlflow_rlsched.versions import Versions
from tests.learning.recording import keep, record

MEASURED = Effects(learning_rate=False)

RECORDED_SEED, FRESH_SEED = 0, 1

_VALIDATION = ("yolov3",)
_LONGEST = 2000  # decisions on a recorded run


@dataclass(frozen=True)
class Size:
    """How much is played and learned.

    Attributes:
        recorded: Runs of a workload that are learned from.
        fresh: Pairs of runs on which before and after are compared.
        validation: Runs for each point of the curve.
        online: How a workload is learned from.
        training: How a policy is trained from random weights.
        shown: Rounds after which that is shown.
    """

    recorded: int = 20
    fresh: int = 200
    validation: int = 64
    online: Plan = Plan()  # noqa: RUF009 - frozen
    training: pretraining.Plan = pretraining.Plan(rounds=40)  # noqa: RUF009 - frozen
    shown: tuple[int, ...] = (0, 5, 10, 20, 40)


QUICK = Size(
    recorded=4,
    fresh=4,
    validation=4,
    online=Plan(evaluation=1, improvement=1, runs=2),
    training=pretraining.Plan(rounds=2, runs=32),
    shown=(0, 1, 2),
)


@dataclass(frozen=True)
class Learned:
    """What learning from the runs of a workload led to.

    Attributes:
        champion: The version that decides from then on.
        promoted: Whether that is the candidate.
    """

    champion: Version
    promoted: bool


def measure(version: Version, size: Size, apps: tuple[str, ...] = HELD_OUT) -> list[Figure]:
    """The figures of learning.

    Args:
        version: Decides on the runs that are learned from, and is what learning begins with.
        size: How much.
        apps: Applications that the new workloads are like.
    """
    jobs: list[Callable[[], Any]] = [partial(learned, app, version, size) for app in apps]
    jobs.append(partial(from_nothing, size))
    done = dict(spread(_call, jobs, WORKERS))
    *found, curve = (done[place] for place in range(len(jobs)))
    workloads: Mapping[str, Learned] = dict(zip(apps, found, strict=True))
    fresh = {app: recurring(app, size.fresh, FRESH_SEED) for app in apps}
    others = novice(size.fresh, SEED, HELD_OUT, MEASURED)
    cases: dict[str, tuple[Runs, Mapping[str, Chosen]]] = {
        app: (runs, {"fixed": "fixed", "before": version, **_after(workloads[app])})
        for app, runs in fresh.items()
    }
    after = {app: each.champion for app, each in workloads.items() if each.promoted}
    cases["others"] = others, {"before": version, **after}
    points = {str(rounds): point for rounds, point in curve.items()}
    cases["curve"] = (
        novice(size.validation, SEED, _VALIDATION, MEASURED),
        {"fixed": "fixed", "goodput": "goodput", **points},
    )
    played = side_by_side(cases)
    figures = []
    for app, each in workloads.items():
        figures += tuned_to(app, fresh[app], played[app], each.promoted)
        before = played["others"]["before"]
        figures += others_than(app, before, played["others"].get(app, before))
    return figures + curve_of(played["curve"], list(points))


def learned(app: str, version: Version, size: Size) -> Learned:
    """Let a version decide on runs of a workload, and let it learn from them as an agent would."""
    torch.set_num_threads(1)
    runs = recurring(app, size.recorded, RECORDED_SEED)
    nodes = runs.parameters.gpus_per_node
    records = record(
        runs,
        lambda run: Ddpg(version, per_node=float(nodes[run]), explores=f"{app} {run}"),
        most=_LONGEST,
    )
    with TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        versions = Versions(folder / "policies")
        versions.promote(version)
        with closing(open_store(f"sqlite:///{folder}/rlsched.db")) as store, attach() as session:
            keep(store, folder / "runs", {f"run{n}": each for n, each in enumerate(records)})
            promoted = OnlineLearning(store, versions, session, size.online, Log()).run()
        return Learned(versions.champion().version, promoted)


def from_nothing(size: Size) -> dict[int, Version]:
    """What the training from random weights has come to, by its rounds."""
    torch.set_num_threads(1)
    training = Pretraining(size.training)
    optional = training.optional()

    def now() -> Version:
        return Version(training.learner.arrays(), {"rounds": training.round}, optional, HEADS)

    found = {0: now()}
    for _ in training.rounds():
        if training.round in size.shown:
            found[training.round] = now()
    return found


def tuned_to(app: str, runs: Runs, played: Mapping[str, Played], promoted: bool) -> list[Figure]:
    """What was gained on fresh runs of the workload."""
    before = played["before"]
    after = played.get("after", before)
    budget = np.maximum(played["fixed"].device_seconds, before.device_seconds)
    least = np.minimum(optimum(runs, budget).seconds / before.seconds, 1.0)
    ratios = after.seconds / before.seconds
    verdict = "the candidate was promoted" if promoted else "the candidate was not promoted"
    note = f"{verdict}; hindsight may take the device-seconds of fixed or of before"
    return [
        figure(
            f"new workload like {app}: distance to hindsight left open",
            quotient(ratios - least, 1 - least),
            0.5,
            baseline=float(np.mean(1 - least)),
            note=note,
        ),
        ratio(f"new workload like {app}: time, after / before", after, before, 1.0),
    ]


def others_than(app: str, before: Played, after: Played) -> list[Figure]:
    """What became of novices' runs at large."""
    of = f"others, after learning from one like {app}"
    worse = mean_of((after.seconds > LONGER * before.seconds).astype(float))
    return [
        ratio(f"{of}: time, after / before", after, before, 1.0),
        figure(f"{of}: over {LONGER} x before", worse, 0.01),
    ]


def curve_of(played: Mapping[str, Played], rounds: list[str]) -> list[Figure]:
    """Times over fixed by the rounds of the training, beside those of goodput."""
    fixed = played["fixed"].seconds
    usual = float(np.mean(played["goodput"].seconds / fixed))
    note = f"{len(fixed)} novice runs like {_VALIDATION[0]}; goal and baseline: goodput"
    return [
        figure(
            f"trained from random weights, {each} rounds: time / fixed",
            mean_of(played[each].seconds / fixed),
            usual,
            "times",
            usual,
            note + ("; the rules decide, as it has seen nothing" if each == "0" else ""),
        )
        for each in rounds
    ]


def _after(each: Learned) -> dict[str, Chosen]:
    return {"after": each.champion} if each.promoted else {}


def _call(job: Callable[[], Any]) -> Any:
    return job()
