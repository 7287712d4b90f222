"""What a learner takes from the transitions of real runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mlflow_rlsched.learning.transitions import TERMINAL
from mlflow_rlsched.policy.action import GPU_DELTAS
from mlflow_rlsched.policy.inputs import INPUTS, Array, encode
from mlflow_rlsched.policy.replay import Replay, Returns, Transitions, parts_of
from mlflow_rlsched.policy.reward import Terms, discount
from mlflow_rlsched.simulator.parameters import HORIZON
from mlflow_rlsched.store import Transition


def usable(transitions: Iterable[Transition]) -> list[Transition]:
    """Those that can be learned from: with inputs, and not those of another version of them."""
    return [t for t in transitions if t.learnable and len(t.data["inputs"]) == len(INPUTS)]


def experience(transitions: Iterable[Transition]) -> Iterator[tuple[Transitions, bool, bool]]:
    """Transitions of one row, run by run; whether what follows is something else; and the key.

    Args:
        transitions: In any order; what is not usable is left out.
    """
    known = sorted(usable(transitions), key=lambda item: (item.run_id, item.decision))
    for item, following in zip(known, [*known[1:], None], strict=True):
        goes_on = (
            following is not None
            and following.run_id == item.run_id
            and following.decision == item.decision + 1
        )
        yield _row(item.data), not goes_on, item.key


def fill(replay: Replay, transitions: Iterable[Transition], steps: int) -> int:
    """Add n-step transitions to a replay.

    Args:
        replay: Takes them.
        transitions: In any order.
        steps: Most rewards that one sums up.

    Returns:
        How many there were to learn from.
    """
    returns = Returns(steps)
    real = np.ones(1, bool)
    count = 0
    for row, ended, key in experience(transitions):
        count += 1
        for folded in returns.push(row, np.array([ended]), np.array([key]), real):
            replay.add(*folded)
    for folded in returns.flush():
        replay.add(*folded)
    return count


def _row(data: Mapping[str, Any]) -> Transitions:
    terms = Terms.from_json(data["terms"])
    ended = terms.ending in TERMINAL
    left_s = HORIZON * terms.scales.total_s - data["elapsed_s"]
    following = data["next_inputs"] or data["inputs"]  # of no account after an end
    rows = (
        [data["inputs"]],
        _encoded(data["action"]),
        [parts_of(terms, left_s if terms.ending == "done" else 0.0)],
        [[0.0 if ended else discount(terms.duration_s, terms.scales)]],
        [following],
    )
    return Transitions(*(np.array(row, np.float32) for row in rows))


def _encoded(action: Mapping[str, float]) -> Array:
    delta = np.clip(action["gpu_delta"], GPU_DELTAS[0], GPU_DELTAS[-1])
    return encode(*(np.array([v]) for v in (delta, action["batch_factor"], action["lr_factor"])))
