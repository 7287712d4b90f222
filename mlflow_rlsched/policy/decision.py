"""One run's decisions: from what was measured to the next setting, explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.guard import guard
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.measuring import decided, observe, terms_of
from mlflow_rlsched.policy.pacing import interval_length
from mlflow_rlsched.policy.proposal import Policy, Proposal
from mlflow_rlsched.policy.reward import Reward, Terms, reward
from mlflow_rlsched.policy.state import State, build_state


@dataclass(frozen=True)
class Decision:
    """One decision with everything that led to it.

    Attributes:
        number: 1 for a run's first.
        elapsed_s: Running time, seconds.
        policy: Name of the policy.
        version: Its version.
        state: The 23 numbers.
        before: The setting that was in force.
        proposal: What the policy wanted.
        vetoes: What the guard changed, and why: sentences for people.
        action: What is left of the proposal.
        setting: What shall be in force now.
        terms: Raw reward terms of the interval that has just ended.
        reward: Its reward by component.
        next_s: Seconds until the next decision.
        history: What the next decision builds on.
    """

    number: int
    elapsed_s: float
    policy: str
    version: str
    state: State
    before: Setting
    proposal: Proposal
    vetoes: Sequence[str]
    action: Action
    setting: Setting
    terms: Terms
    reward: Reward
    next_s: float
    history: History

    @property
    def changed(self) -> bool:
        """Whether the training has to be told anything."""
        return self.setting != self.before

    @property
    def reason(self) -> str:
        """The proposal's reason and the guard's, one after the other."""
        return "; ".join([self.proposal.reason, *self.vetoes])

    def to_json(self) -> dict[str, Any]:
        """The line of ``decisions.jsonl``; finite numbers only."""
        return {
            "number": self.number,
            "elapsed_s": self.elapsed_s,
            "policy": self.policy,
            "version": self.version,
            "state": self.state.to_json(),
            "before": asdict(self.before),
            "proposal": asdict(self.proposal),
            "vetoes": list(self.vetoes),
            "action": asdict(self.action),
            "setting": asdict(self.setting),
            "terms": self.terms.to_json(),
            "reward": self.reward.to_json(),
            "next_s": self.next_s,
            "history": self.history.to_json(),
        }


class Decider:
    """Makes a run's decisions, one after the other.

    Attributes:
        limits: What bounds the setting; replaced when the training says more of itself.
        policy: Who proposes; replaced when a better one is there.
        history: What the next decision builds on. Store it with each decision and hand it to a
            new ``Decider`` to go on exactly there.
    """

    def __init__(
        self,
        limits: Limits,
        policy: Policy,
        weights: Weights | None = None,
        history: History | None = None,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.history = history or History()
        self._weights = weights or Weights()

    def decide(self, interval: Interval) -> Decision:
        """Decide on the setting for the next interval."""
        observed = observe(self.history, interval, self.limits)
        state = build_state(observed, interval, self.limits)
        proposal = self.policy.propose(state, interval, observed, self.limits)
        outcome = guard(proposal, interval, observed, self.limits)
        terms = terms_of(self.history, observed, interval, self.limits)
        self.history = decided(observed, interval, outcome.action, outcome.setting, proposal.notes)
        return Decision(
            number=self.history.decisions,
            elapsed_s=interval.elapsed_s,
            policy=self.policy.name,
            version=self.policy.version,
            state=state,
            before=interval.setting,
            proposal=proposal,
            vetoes=outcome.vetoes,
            action=outcome.action,
            setting=outcome.setting,
            terms=terms,
            reward=reward(terms, self._weights),
            next_s=interval_length(
                self.limits.interval_s, interval.elapsed_s, observed.progress, observed.step_rate
            ),
            history=self.history,
        )
