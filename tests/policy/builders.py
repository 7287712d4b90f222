"""Intervals and reports as the tests of the policies need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.baselines import Rules
from mlflow_rlsched.policy.decision import Decider, Decision
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.protocol import Report

ALL = frozenset({"batch_size", "learning_rate", "resume"})
SETTING = Setting(1, 64)


def report(*, nonfinite: frozenset[str] = frozenset(), **numbers: float) -> Report:
    return Report(numbers=numbers, nonfinite=nonfinite)


def reports(losses: Sequence[float], start: int = 0, **more: float) -> list[Report]:
    """A loss a second, 100 samples each; NaN and infinities as the protocol tells them."""
    found = []
    for place, loss in enumerate(losses, start + 1):
        numbers = {"time": float(place), "samples": 100.0 * place, "step": 10.0 * place, **more}
        finite = abs(loss) < float("inf")
        found.append(
            report(**numbers, loss=loss)
            if finite
            else report(nonfinite=frozenset({"loss"}), **numbers)
        )
    return found


def interval(**changes: Any) -> Interval:
    values: dict[str, Any] = {
        "duration_s": 5.0,
        "elapsed_s": 100.0,
        "setting": SETTING,
        "can": ALL,
        "pressure": 0.0,
    }
    return Interval(**(values | changes))


def proposal(gain: float | None = None, **action: Any) -> Proposal:
    return Proposal(Action(**action), "a test", gain)


class Series:
    """Decides on intervals that follow each other, each from its losses."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.decider = Decider(limits or Limits(batch_initial=64), Rules())
        self.setting = SETTING
        self.seen = 0

    def decide(self, losses: Sequence[float], **changes: Any) -> Decision:
        told = reports(losses, self.seen)
        self.seen += len(losses)
        decision = self.decider.decide(
            interval(reports=told, setting=self.setting, elapsed_s=float(self.seen or 1), **changes)
        )
        self.setting = decision.setting
        return decision
