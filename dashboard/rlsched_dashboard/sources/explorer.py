"""What a policy version would do in a state that nobody was in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS, Action, Setting
from mlflow_rlsched.policy.checkpoint import Version, actor_outputs
from mlflow_rlsched.policy.fields import FIELDS
from mlflow_rlsched.policy.guard import Outcome, guard
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import (
    FACTORS,
    Advice,
    action_of,
    chosen,
    inputs_of,
)
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.state import State
from mlflow_rlsched.protocol import CAPABILITIES
from rlsched_dashboard.sources.critics import worth

LIMITS = Limits(gpus_max=8, gpus_are_live=True, batch_initial=64, batch_max=4096)
"""Of the run that is imagined."""

ELAPSED_S = 900.0
CURVE = 21
"""Batch factors at which the critics are asked."""


@dataclass(frozen=True)
class Explored:
    """What a version makes of a state.

    Attributes:
        chances: What the actor thinks of each of ``GPU_DELTAS``, probabilities.
        actor: What the actor alone would do.
        proposal: What the policy proposes: the actor, with the cautions that go with it.
        outcome: What the guard lets through.
        worth: Value of the actor's, the proposed and the remaining action by the critics, in this
            order; empty where the version has none.
        factors: Batch factors, shape (n,).
        curves: Values at them, by change of the devices; empty where the version has no critics.
    """

    chances: tuple[float, ...]
    actor: Action
    proposal: Proposal
    outcome: Outcome
    worth: tuple[float, ...]
    factors: tuple[float, ...]
    curves: Mapping[int, tuple[float, ...]]


def explore(version: Version, values: Mapping[str, float], weights: Weights) -> Explored:
    """What a version does in a state, on a run of up to 8 devices that began with a batch of 64.

    Args:
        version: The version.
        values: A value for each of ``FIELDS``, in its unit.
        weights: The reward's weights.
    """
    vector = tuple(field.normalised(values[field.name]) for field in FIELDS)
    state = State(values, vector, frozenset())
    interval, history = _situation(values)
    policy = Ddpg(version, weights, LIMITS.gpus_max)
    proposal = policy.propose(state, interval, history, LIMITS)
    outcome = guard(proposal, interval, history, LIMITS)
    seen = inputs_of(state, weights, Advice())
    said = actor_outputs(version.arrays, seen[None])[0]
    likely = np.exp(said[:-FACTORS] - said[:-FACTORS].max())
    actor = action_of(chosen(said[None])[0])
    factors = np.linspace(FACTOR_MIN, FACTOR_MAX, CURVE)
    return Explored(
        tuple((likely / likely.sum()).tolist()),
        actor,
        proposal,
        outcome,
        tuple(worth(version, seen.tolist(), [actor, proposal.action, outcome.action])),
        tuple(factors.tolist()),
        {
            delta: found
            for delta in GPU_DELTAS
            if (
                found := tuple(
                    worth(version, seen.tolist(), [Action(delta, float(b)) for b in factors])
                )
            )
        },
    )


def _situation(values: Mapping[str, float]) -> tuple[Interval, History]:
    """A run that would be seen like that, as far as the state tells."""
    gpus = max(1, round(values["gpus"] * LIMITS.gpus_max))
    assert LIMITS.batch_initial is not None
    batch = max(1, round(LIMITS.batch_initial * 2 ** values["batch_size"]))
    scale = 2 ** values["lr_scale"]
    setting = Setting(gpus, batch, scale / (batch / LIMITS.batch_initial) ** 0.5, scale)
    interval = Interval(
        duration_s=10.0,
        elapsed_s=ELAPSED_S,
        setting=setting,
        can=frozenset(CAPABILITIES),
        pressure=values["pressure"],
        free_gpus=LIMITS.gpus_max,
    )
    last = Action(
        round(values["last_gpu_delta"]), values["last_batch_factor"], values["last_lr_factor"]
    )
    history = History(
        decisions=30,
        progress=values["progress"] or None,
        gpus_changed_at=ELAPSED_S - values["since_gpu_change"],
        gpus_change=last.gpu_delta,
        action=last,
        throughput_noise=0.01,
    )
    return interval, history
