"""Policies side by side on the same simulated runs, and what each comes to beside another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from mlflow_rlsched.learning.evaluation import Estimate, Played, mean_of, play
from mlflow_rlsched.learning.parallel import spread
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.parameters import HORIZON, Effects, Ranges
from mlflow_rlsched.simulator.run import Runs, Source

HELD_OUT = ("bert", "deepspeech2")
"""Applications that no policy is trained on or chosen by."""

AT_ONCE = 8
"""Runs that are played together."""

NOVICE = Ranges(batch_start=(1.0, 1.0), lr_optimum=(0.1, 10.0))
"""The base batch, and a rate up to 10 times off."""

FOLLOWED = 20.0
"""Running time to which a novice's run is followed, over its length at the drawn devices."""

Chosen = str | Version
"""A version of the learned policy, or one of ``POLICIES``."""

POLICIES: Mapping[str, Callable[[float], Policy]] = {
    "fixed": lambda _: Fixed(),
    "rules": lambda _: Rules(),
    "goodput": lambda per_node: Goodput(per_node=per_node),
}
"""The policies that need no training, from the devices of a node."""


def novice(
    count: int, seed: int, apps: Sequence[str] = HELD_OUT, effects: Effects | None = None
) -> Runs:
    """Runs as a novice starts them: at the base batch, with a rate up to 10 times off.

    Every other one is on one device, the rest on as many as they may have.

    Args:
        count: How many.
        seed: Of all that is drawn.
        apps: Applications that they are like.
        effects: What they are subject to.
    """
    runs = Runs(count, seed, effects, NOVICE, apps)
    runs.begin_with(one_or_all(runs))
    runs.parameters.horizon_s *= FOLLOWED / HORIZON
    return runs


def one_or_all(runs: Runs) -> Floats:
    """One device for every other run, for the rest all that their batches can be spread over."""
    most = np.minimum(runs.bounds.gpus_max, runs.bounds.batch_initial)
    return np.where(np.arange(len(most)) % 2 == 1, most, 1.0)


@dataclass(frozen=True)
class _Part:
    """Some runs, and who decides on them."""

    runs: Source
    count: int
    seed: int
    policy: Chosen

    def play(self) -> Played:
        runs = self.runs(self.count, self.seed)
        nodes = runs.parameters.gpus_per_node
        return play(runs, lambda run: policy_of(self.policy, float(nodes[run])))


def policy_of(chosen: Chosen, per_node: float) -> Policy:
    """The policy that decides on a run whose nodes have so many devices."""
    if isinstance(chosen, Version):
        return Ddpg(chosen, per_node=per_node)
    return POLICIES[chosen](per_node)


def side_by_side(
    policies: Mapping[str, Chosen],
    runs: Source,
    count: int,
    seed: int = 0,
    workers: int = 1,
    tell: Callable[[int, int], object] = lambda _done, _of: None,
) -> dict[str, Played]:
    """Play the same runs under several policies.

    Args:
        policies: The policies, by the names that their results get.
        runs: Draws the runs.
        count: How many.
        seed: Of all that is drawn.
        workers: Processes; the results do not depend on it.
        tell: Is called after each part, with the parts that are done and all of them.

    Raises:
        WorkerError: A process ended.
    """
    sizes = [min(AT_ONCE, count - first) for first in range(0, count, AT_ONCE)]
    seeds = np.random.SeedSequence(seed).generate_state(len(sizes)).tolist()
    parts = [
        _Part(runs, size, each, policy)
        for size, each in zip(sizes, seeds, strict=True)
        for policy in policies.values()
    ]
    found: dict[int, Played] = {}
    for place, played in spread(_Part.play, parts, workers):
        found[place] = played
        tell(len(found), len(parts))
    ordered = [found[place] for place in range(len(parts))]
    return {name: _joined(ordered[at :: len(policies)]) for at, name in enumerate(policies)}


def _joined(parts: Sequence[Played]) -> Played:
    columns = ([getattr(part, f.name) for part in parts] for f in fields(Played))
    return Played(*map(np.concatenate, columns))


@dataclass(frozen=True)
class Comparison:
    """What a policy comes to beside another one on the same runs.

    Attributes:
        pairs: Runs that the other one brought to their targets; the next three are of these.
        time: Time to the target over the other one's: the mean. A run that does not get there
            counts with the time for which it was followed. None without pairs.
        geometric: The geometric mean of the same.
        device_hours: Device-hours of all these runs over the other one's.
        reached: Part of all runs that got to their targets.
        lost: Runs that the other one never brought to their targets.
        rescued: Of these, how many got there.
    """

    pairs: int
    time: Estimate | None
    geometric: float | None
    device_hours: float | None
    reached: float
    lost: int
    rescued: int


def compare(found: Played, other: Played) -> Comparison:
    """Compare what became of runs under a policy with what became of them under another one."""
    known = other.reached
    pairs = int(known.sum())
    ratios = found.seconds[known] / other.seconds[known]
    held = [played.device_seconds[known].sum() for played in (found, other)]
    return Comparison(
        pairs=pairs,
        time=mean_of(ratios) if pairs else None,
        geometric=float(np.exp(np.log(ratios).mean())) if pairs else None,
        device_hours=float(held[0] / held[1]) if pairs else None,
        reached=float(found.reached.mean()),
        lost=len(known) - pairs,
        rescued=int(found.reached[~known].sum()),
    )
