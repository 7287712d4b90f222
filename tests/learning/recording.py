"""Simulated runs that are decided on like real ones, with the records that an agent would keep."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_rlsched import decision_log
from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.learning.transitions import transitions_of
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.ddpg import Learner
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.inputs import INPUTS, STATE
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.simulator.parameters import Ranges
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.store import Store
from tests.policy.trained import trained
from tests.task_specs import make_spec

Record = dict[str, Any]

SMALL_BATCH = Ranges(
    lr_optimum=(1, 1),
    gpus_max=(1, 1),
    noise_scale=(5, 5),
    batch_start=(1, 1),
    batch_headroom=(16, 16),
    decisions=(20, 30),
    memory_use=(0.02, 0.05),
)
"""Novice runs: all is well but the batch, which is much too small."""


def record(
    runs: Runs, policies: Callable[[int], Policy], others: Sequence[Policy] = (), most: int = 60
) -> list[list[Record]]:
    """The records of the decisions on each run, at most so many."""
    bounds, count = runs.bounds, len(runs.progress)
    deciders = [Decider(bounds.of(run), policies(run)) for run in range(count)]
    found: list[list[Record]] = [[] for _ in range(count)]
    settings, followed = runs.settings.copy(), np.ones(count, bool)
    for _ in range(most):
        seen = runs.advance(settings)
        settings = seen.settings.copy()
        for run in np.flatnonzero(followed).tolist():
            deciders[run].others = others
            decision = deciders[run].decide(seen.interval(run))
            setting = decision.setting
            settings.gpus[run], settings.batch[run] = setting.gpus, setting.batch_size
            settings.lr_factor[run], settings.lr_scale[run] = setting.lr_factor, setting.lr_scale
            training = {
                "batch_size": int(bounds.batch_initial[run]),
                "optimizer": "sgd" if bounds.sgd[run] else "adam",
            }
            found[run].append(json.loads(json.dumps(decision.to_json() | {"training": training})))
        followed = ~runs.ended
        if not followed.any():
            break
    return found


def keep(store: Store, folder: Path, records: Mapping[str, Sequence[Record]]) -> None:
    """Let an agent have kept these runs: their tasks, records and transitions."""
    for run_id, decisions in records.items():
        run_dir = folder / run_id
        run_dir.mkdir(parents=True)
        for decision in decisions:
            decision_log.append(run_dir, decision)
        store.submit(make_spec(run_id, run_dir=str(run_dir)), 0, now=1.0)
        store.add_transitions(transitions_of(run_id, decisions, Weights()))


def steady(batch_factor: float) -> Ddpg:
    """A policy that always changes the batch by this factor."""
    version = trained(1.0)
    version.arrays["actor.body.4.bias"][-2] = math.atanh((batch_factor - 1) / 0.2)
    return Ddpg(Version(version.arrays, {"batch_factor": batch_factor}, STATE))


def growing(count: int = 24) -> dict[str, list[Record]]:
    """Runs under policies that make the batch larger, leave it, or make it smaller."""
    policies = [steady(factor) for factor in (1.15, 1.07, 1.0, 0.93)]
    found = record(Runs(count, 3, ranges=SMALL_BATCH), lambda run: policies[run % 4])
    return {f"run{number}": records for number, records in enumerate(found)}


def idle() -> Version:
    """A version that changes nothing and can be continued."""
    learner = Learner(seed=0)
    learner.normaliser.count.fill_(1e6)
    learner.normaliser.low.fill_(-9)
    learner.normaliser.high.fill_(9)
    arrays = learner.arrays()
    assert arrays["normaliser.mean"].shape == (len(INPUTS),)
    return Version(arrays, {"is": "idle"}, STATE)
