"""A policy made better from what was recorded under it, with no way to try anything out.

Where actions cannot be tried, critics are wrong about those that nobody took, and an actor that
follows their gradient goes there. So the critics only say which of the recorded actions were better
than what the policy would have done, and the actor is taught these, and to stay as it is everywhere
else: one step of policy improvement (Brandfonbrener et al. 2021, "Offline RL Without Off-Policy
Evaluation") by critic-regularised regression (Wang et al. 2020, equation 4, "binary max").
"""

from __future__ import annotations

import numpy as np
import torch

from mlflow_rlsched.policy.ddpg import Learner, Losses
from mlflow_rlsched.policy.inputs import Array, chosen
from mlflow_rlsched.policy.replay import Replay, Transitions

BATCH = 256
RATE = 3e-4

NEVER = 10**9
"""``Settings.actor_after`` of a learner whose actor does not follow the critics' gradient."""


def evaluate(learner: Learner, replay: Replay, updates: int, at_once: int = 50) -> Losses:
    """Let the critics learn what the reference policy is worth; what the last updates found."""
    for _ in range(max(1, updates // at_once)):
        losses = learner.update(replay, at_once)
    return losses


def improve(learner: Learner, replay: Replay, updates: int) -> tuple[float, float]:
    """Teach the actor what was better than its reference.

    Returns:
        The mean loss, and the share of recorded actions that were better.
    """
    losses, shares = [], []
    for _ in range(updates):
        seen = replay.sample(BATCH).transitions
        wanted, better = taught(learner, seen)
        losses.append(learner.imitate(seen.inputs, wanted, RATE))
        shares.append(float(better.mean()))
    return float(np.mean(losses)), float(np.mean(shares))


def taught(learner: Learner, seen: Transitions) -> tuple[Array, Array]:
    """What the actor is taught: (N, 7), and where that is the recorded action: (N,).

    Args:
        learner: With a reference.
        seen: Recorded transitions.
    """
    assert learner.reference is not None
    with torch.no_grad():
        inputs = learner.normaliser(torch.from_numpy(seen.inputs))
        logits, factors = learner.reference(inputs)
        own = torch.from_numpy(chosen(torch.cat([logits, factors], 1).numpy()))
        action = torch.from_numpy(seen.action)
        gain = learner.critics(inputs, action) - learner.critics(inputs, own)
        better = gain.amin(1) > 0  # all critics say so
        held = torch.cat([logits.softmax(1), factors], 1)
        wanted = torch.where(better[:, None], action, held)
    return wanted.numpy(), better.numpy()
