"""Who is imitated: an expert that knows the truth of the simulated runs, as no policy can."""

from __future__ import annotations

import numpy as np

from mlflow_rlsched.learning.rollouts import Rollouts
from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.inputs import Array, encode


def expert(rollouts: Rollouts) -> Array:
    """Encoded actions (R, 7): towards the best goodput of the true model, as the guard leaves them.

    The learning rate stays. Who knows the best one need not find out, and finding out is all of a
    policy's work there: there is nobody to imitate.
    """
    runs = rollouts.environment.runs
    true = np.log(runs.parameters.throughput)
    situation = rollouts.situation(runs.speed(runs.settings).noise_scale)
    advised = goodput.advise(true, situation, rollouts.per_node)
    return rollouts.guarded(encode(advised.gpu_delta, advised.batch_factor, np.ones(len(true))))
