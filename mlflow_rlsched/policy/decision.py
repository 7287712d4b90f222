"""One run's decisions: from what was measured to the next setting, explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
class Alternative:
    """What another policy would have done in the place of the one that decided.

    Attributes:
        version: Its version.
        action: What the guard would have left of its proposal; None when it failed.
        reason: Its reason and the guard's, or how it failed.
    """

    version: str
    action: Action | None
    reason: str


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
        alternatives: What other policies would have done, by their names.
        inputs: What the networks saw, whether they decided or were asked only; None where there
            are none.
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
    alternatives: Mapping[str, Alternative] = field(default_factory=dict)
    inputs: Sequence[float] | None = None

    @property
    def changed(self) -> bool:
        """Whether the training has to be told anything."""
        return self.setting != self.before

    @property
    def reason(self) -> str:
        """The proposal's reason and the guard's, one after the other."""
        return _joined(self.proposal, self.vetoes)

    def to_json(self) -> dict[str, Any]:
        """The line of ``decisions.jsonl``; finite numbers only."""
        proposal = asdict(self.proposal)
        del proposal["notes"]  # the history has them
        del proposal["inputs"]
        return {
            "number": self.number,
            "elapsed_s": self.elapsed_s,
            "policy": self.policy,
            "version": self.version,
            "state": self.state.to_json(),
            "inputs": None if self.inputs is None else list(self.inputs),
            "before": asdict(self.before),
            "proposal": proposal,
            "vetoes": list(self.vetoes),
            "action": asdict(self.action),
            "setting": asdict(self.setting),
            "terms": self.terms.to_json(),
            "reward": self.reward.to_json(),
            "next_s": self.next_s,
            "history": self.history.to_json(),
            "alternatives": {name: asdict(each) for name, each in self.alternatives.items()},
        }


class Decider:
    """Makes a run's decisions, one after the other.

    Attributes:
        limits: What bounds the setting; replaced when the training says more of itself.
        policy: Who proposes; replaced when a better one is there. A decision is made by the one
            that is there when it begins.
        others: Policies that are asked what they would have done.
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
        self.others: Sequence[Policy] = ()
        self.history = history or History()
        self._weights = weights or Weights()

    def decide(self, interval: Interval) -> Decision:
        """Decide on the setting for the next interval."""
        policy, others = self.policy, self.others
        observed = observe(self.history, interval, self.limits)
        state = build_state(observed, interval, self.limits)
        proposal = policy.propose(state, interval, observed, self.limits)
        outcome = guard(proposal, interval, observed, self.limits)
        terms = terms_of(self.history, observed, interval, self.limits)
        notes = _measured(observed.notes) | dict(proposal.notes)
        inputs = proposal.inputs
        alternatives = {}
        for other in others:
            found, asked = _asked(other, state, interval, observed, self.limits)
            alternatives[other.name] = found
            if asked is not None:
                # Of what it only handed on, the policy that decides may have measured more.
                measured = _measured(asked.notes).items()
                notes |= {k: v for k, v in measured if v != observed.notes.get(k)}
                inputs = inputs or asked.inputs
        self.history = decided(observed, interval, outcome.action, outcome.setting, notes)
        return Decision(
            number=self.history.decisions,
            elapsed_s=interval.elapsed_s,
            policy=policy.name,
            version=policy.version,
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
            alternatives=alternatives,
            inputs=inputs,
        )


def _asked(
    policy: Policy, state: State, interval: Interval, history: History, limits: Limits
) -> tuple[Alternative, Proposal | None]:
    """What a policy would have done, and its proposal; None when it failed."""
    try:
        proposal = policy.propose(state, interval, history, limits)
        outcome = guard(proposal, interval, history, limits)
    except Exception as error:  # noqa: BLE001 - the decision stands, whatever another one does
        return Alternative(policy.version, None, f"it failed: {error!r}"), None
    told = Alternative(policy.version, outcome.action, _joined(proposal, outcome.vetoes))
    return told, proposal


def _measured(notes: Mapping[str, float]) -> dict[str, float]:
    """What models have measured; the rest tells of what a policy wants to do."""
    return {name: note for name, note in notes.items() if "." in name}


def _joined(proposal: Proposal, vetoes: Sequence[str]) -> str:
    return "; ".join([proposal.reason, *vetoes])
