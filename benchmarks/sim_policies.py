"""Every policy on the same simulated runs, side by side, on all cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np

from benchmarks.sim_starts import RaisedRate
from mlflow_rlsched.learning.comparison import POLICIES, Chosen, policy_of
from mlflow_rlsched.learning.evaluation import Played, play
from mlflow_rlsched.learning.hindsight import optimum
from mlflow_rlsched.learning.parallel import spread
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.simulator.run import Runs

HINDSIGHT = "hindsight"
"""Not a policy: the optimum by search within the device-seconds of the fixed setting."""

WORKERS = os.cpu_count() or 1


def contenders(version: Version | None) -> dict[str, Chosen]:
    """The policies that there are by their names, fixed first."""
    found: dict[str, Chosen] = {name: name for name in POLICIES}
    return found if version is None else {**found, "ddpg": version}


def side_by_side(
    cases: Mapping[str, tuple[Runs, Mapping[str, Chosen]]], workers: int = WORKERS
) -> dict[str, dict[str, Played]]:
    """What became of the runs of each case, by the name of who decided.

    Runs that never get to their target count as long as their case follows them: they might as
    well have failed at once.
    """
    places = [(case, name) for case, (_, policies) in cases.items() for name in policies]
    jobs = [(runs, chosen) for runs, policies in cases.values() for chosen in policies.values()]
    found = dict(spread(_played, jobs, workers))
    table: dict[str, dict[str, Played]] = {case: {} for case in cases}
    for number, (case, name) in enumerate(places):
        table[case][name] = found[number]
    return table


def _played(job: tuple[Runs, Chosen]) -> Played:
    runs, chosen = deepcopy(job[0]), job[1]  # this process may hand on the runs themselves
    if chosen == HINDSIGHT:
        return optimum(runs, _played((runs, "fixed")).device_seconds)
    per_node = runs.parameters.gpus_per_node
    played = play(runs, lambda run: policy_of(chosen, float(per_node[run])))
    if isinstance(runs, RaisedRate):
        seconds = runs.recovered_at - runs.raised_at
        played = replace(played, seconds=seconds, reached=np.isfinite(seconds))
    followed = np.fmax(played.seconds, runs.parameters.horizon_s)
    return replace(played, seconds=np.where(played.reached, played.seconds, followed))
