"""What there is to learn from: the transitions that the store keeps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.learning.experience import experience, usable
from mlflow_rlsched.policy.checkpoint import Version, actor_outputs, critic_outputs
from mlflow_rlsched.policy.inputs import chosen
from mlflow_rlsched.policy.replay import KEY, priority
from mlflow_rlsched.policy.reward import DISCOUNT, Terms, reward
from mlflow_rlsched.store import Transition
from mlflow_rlsched.store.interface import KEPT_TRANSITIONS
from rlsched_dashboard.sources.critics import has_critics
from rlsched_dashboard.sources.histories import Numbers
from rlsched_dashboard.sources.scheduler import Scheduler

PAGE = 1000
JUDGED = 2000
"""Transitions that are judged by the critics, the newest."""


@dataclass(frozen=True)
class Seen:
    """What a page shows of a transition.

    Attributes:
        run_id: The run.
        decision: Number of the decision.
        policy: Who decided.
        key: Whether it is a key transition.
        learnable: Whether it can be learned from.
        reward: Reward of the interval that followed.
        why: Why it is a key transition, or "".
    """

    run_id: str
    decision: int
    policy: str
    key: bool
    learnable: bool
    reward: float
    why: str


class ReplayView:
    """Reads each transition once.

    Args:
        scheduler: Has the store.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._serial = 0
        self._seen: deque[Seen] = deque(maxlen=KEPT_TRANSITIONS)
        self._newest: deque[Transition] = deque(maxlen=JUDGED)
        self._priorities: tuple[Any, tuple[Numbers, Numbers]] | None = None

    def transitions(self) -> Sequence[Seen]:
        """All that are kept, oldest first.

        Raises:
            StoreError: The store cannot be read.
        """
        with self._lock:
            while found := self._scheduler.transitions(self._serial, PAGE):
                for serial, item in found:
                    self._serial = serial
                    self._seen.append(_seen(item))
                    if item.learnable:
                        self._newest.append(item)
            return list(self._seen)

    def priorities(self, version: Version) -> tuple[Numbers, Numbers]:
        """How likely the newest transitions would be drawn, over the mean: ordinary, then key ones.

        As the critics of a version judge them, one step ahead; both empty where it has none.
        """
        with self._lock:
            asked = version.name, self._serial
            if self._priorities is None or self._priorities[0] != asked:
                self._priorities = asked, _priorities(version, list(self._newest))
            return self._priorities[1]


def _seen(item: Transition) -> Seen:
    data = item.data
    terms = Terms.from_json(data["terms"])
    total = reward(terms, Weights(**data["weights"])).total
    why = ""
    if item.key:
        why = {"oom": "out of memory"}.get(terms.ending or "", terms.ending or "")
        why = why if why not in ("", "done") else "a restart, or a large change of the reward"
    return Seen(item.run_id, item.decision, data["policy"], item.key, item.learnable, total, why)


def _priorities(version: Version, items: Sequence[Transition]) -> tuple[Numbers, Numbers]:
    rows = list(experience(usable(items)))
    if not rows or not has_critics(version):
        return np.empty(0), np.empty(0)
    inputs, action, discounts, following = (
        np.concatenate([getattr(row, name) for row, *_ in rows])
        for name in ("inputs", "action", "discount", "next_inputs")
    )
    rewards = np.concatenate([row.reward for row, *_ in rows])[:, 0]
    key = np.array([is_key for *_, is_key in rows])
    then = chosen(actor_outputs(version.arrays, following))
    target = (1 - DISCOUNT) * rewards
    target = target + discounts[:, 0] * critic_outputs(version.arrays, following, then)
    errors = target - critic_outputs(version.arrays, inputs, action)
    odds = priority(errors) * np.where(key, KEY, 1.0)
    odds = odds / odds.mean()
    return odds[~key], odds[key]
