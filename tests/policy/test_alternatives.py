"""What other policies would have done stands beside each decision, and changes none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.decision import Decider, Decision
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import INPUTS
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Policy, Proposal
from mlflow_rlsched.policy.state import State
from tests.policy.builders import interval, reports
from tests.policy.trained import trained

LIMITS = Limits(batch_initial=64, batch_max=4096)
LEARNED = Ddpg(trained(0.9))


def decisions(policy: Policy, *others: Policy, count: int = 12) -> list[Decision]:
    """Decisions on a loss that falls slowly, from which the rules would try a higher rate."""
    decider, found = Decider(LIMITS, policy), []
    decider.others = others
    setting = interval().setting
    for number in range(count):
        losses = [3 * 0.95 ** (5 * number + place) + 1 for place in range(5)]
        told = reports(losses, 5 * number, grad_sqr=1.0, grad_var=900.0)
        found.append(decider.decide(interval(reports=told, setting=setting)))
        setting = found[-1].setting
    return found


def without_alternatives(decision: Decision) -> dict[str, Any]:
    told = decision.to_json()
    told.pop("alternatives")
    told.pop("inputs")
    told["history"].pop("notes")
    return told


@pytest.mark.parametrize("policy", [Fixed(), Rules(), Goodput(), LEARNED], ids=lambda p: p.name)
def test_who_is_asked_too_changes_no_decision(policy: Policy) -> None:
    others = [other for other in (Fixed(), Rules(), Goodput(), LEARNED) if other is not policy]
    alone, watched = decisions(policy), decisions(policy, *others)
    assert [*map(without_alternatives, watched)] == [*map(without_alternatives, alone)]
    assert all(set(d.alternatives) == {other.name for other in others} for d in watched)


def test_each_says_what_it_would_have_done_and_why() -> None:
    told = decisions(Fixed(), Rules(), LEARNED)
    last = json.loads(json.dumps(told[-1].to_json()))["alternatives"]
    assert last["ddpg"]["version"] == LEARNED.version
    assert last["ddpg"]["action"]["lr_factor"] == pytest.approx(0.9, abs=1e-3)
    assert last["rules"]["action"]["lr_factor"] == pytest.approx(1.2)
    assert last["rules"]["reason"] == "calm: trying a higher learning rate"


def test_what_the_guard_would_have_said_is_part_of_it() -> None:
    decider = Decider(replace(LIMITS, gpus_max=4), Fixed())
    decider.others = [Wild(Action(gpu_delta=2))]
    told = decider.decide(interval(reports=reports([1.0] * 5)))
    assert told.alternatives["wild"].action == Action()
    assert "cannot change while a run is going on" in told.alternatives["wild"].reason


class Wild:
    """Proposes an action, or fails where there is none."""

    name, version = "wild", "7"

    def __init__(self, action: Action | None, notes: Mapping[str, float] | None = None) -> None:
        self._action, self._notes = action, notes or {}

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        if self._action is None:
            raise ZeroDivisionError("no such luck")
        return Proposal(self._action, "a whim", None, self._notes)


def test_one_that_fails_leaves_the_decision_and_says_so() -> None:
    for decision in decisions(Rules(), Wild(None), LEARNED):
        assert decision.policy == "rules"
        failed = decision.alternatives["wild"]
        assert (failed.version, failed.action) == ("7", None)
        assert failed.reason == "it failed: ZeroDivisionError('no such luck')"
        assert decision.alternatives["ddpg"].action is not None


def test_what_was_not_done_is_not_remembered_but_what_was_measured_is() -> None:
    other = Wild(Action(), {"good": 3.0, "goodput.surprise": 0.25})
    for policy in (Rules(), Fixed()):
        notes = decisions(policy, other)[0].history.notes
        assert "good" not in notes
        assert notes["goodput.surprise"] == 0.25


def test_one_that_measures_nothing_makes_no_model_forget() -> None:
    alone, watched = decisions(LEARNED), decisions(LEARNED, Fixed(), Rules())
    assert alone[-1].inputs is not None
    assert [d.inputs for d in watched] == [d.inputs for d in alone]
    assert watched[-1].history.notes.items() >= alone[-1].history.notes.items()


def test_what_the_networks_saw_is_on_record_whoever_decides() -> None:
    for policy, other in ((LEARNED, Rules()), (Rules(), LEARNED), (Rules(), Fixed())):
        told = decisions(policy, other)[-1]
        seen = json.loads(json.dumps(told.to_json()))["inputs"]
        assert seen == (None if isinstance(other, Fixed) else list(told.inputs or ()))
        assert seen is None or len(seen) == len(INPUTS)


def test_a_policy_that_takes_over_finds_the_model_fitted_and_no_trial_begun() -> None:
    decider = Decider(LIMITS, LEARNED)
    decider.others = [Rules(), Goodput()]
    for number in range(6):
        told = reports([3 * 0.95 ** (5 * number + place) + 1 for place in range(5)], 5 * number)
        decider.decide(interval(reports=told))
    rules = decider.history.notes
    assert rules["goodput.settings"] == 1
    assert not {"good", "failed", "until"} & set(rules)
