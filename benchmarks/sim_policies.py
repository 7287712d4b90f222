"""Every policy on the same simulated runs, side by side, on all cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.sim_starts import RaisedRate
from mlflow_rlsched.learning.evaluation import Played, play
from mlflow_rlsched.learning.hindsight import optimum
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.simulator.run import Runs

HINDSIGHT = "hindsight"
"""Not a policy: the optimum by search within the device-seconds of the fixed setting."""


@dataclass(frozen=True)
class Contender:
    """What decides.

    Attributes:
        name: fixed, rules, goodput, ddpg or hindsight.
        version: That of ddpg.
    """

    name: str
    version: Version | None = None

    def policy(self, per_node: float) -> Policy:
        """The policy of a run whose nodes have so many devices."""
        if self.version is not None:
            return Ddpg(self.version, per_node=per_node)
        if self.name == "goodput":
            return Goodput(per_node=per_node)
        return Rules() if self.name == "rules" else Fixed()


def contenders(version: Version | None) -> list[Contender]:
    """The policies that there are, fixed first."""
    found = [Contender(name) for name in ("fixed", "rules", "goodput")]
    return found if version is None else [*found, Contender("ddpg", version)]


def side_by_side(
    pool: Executor, cases: Mapping[str, tuple[Runs, Sequence[Contender]]]
) -> dict[str, dict[str, Played]]:
    """What became of the runs of each case, by the name of who decided.

    Runs that never get to their target count as long as their case follows them: they might as
    well have failed at once.
    """
    tasks = [(case, who) for case, (_, all_of_them) in cases.items() for who in all_of_them]
    found = pool.map(_played, [cases[case][0] for case, _ in tasks], [who for _, who in tasks])
    table: dict[str, dict[str, Played]] = {case: {} for case in cases}
    for (case, who), played in zip(tasks, found, strict=True):
        table[case][who.name] = played
    return table


def _played(runs: Runs, who: Contender) -> Played:
    runs = deepcopy(runs)  # a pool in the same process hands on the runs themselves
    if who.name == HINDSIGHT:
        budget = _played(runs, Contender("fixed")).device_seconds
        return optimum(runs, budget)
    per_node = runs.parameters.gpus_per_node
    played = play(runs, lambda run: who.policy(float(per_node[run])))
    if isinstance(runs, RaisedRate):
        seconds = runs.recovered_at - runs.raised_at
        played = replace(played, seconds=seconds, reached=np.isfinite(seconds))
    followed = np.fmax(played.seconds, runs.parameters.horizon_s)
    return replace(played, seconds=np.where(played.reached, played.seconds, followed))
