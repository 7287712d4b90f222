"""From the records of decisions to transitions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.learning.transitions import transition_of, transitions_of
from mlflow_rlsched.policy.baselines import Rules
from mlflow_rlsched.policy.inputs import INPUTS
from mlflow_rlsched.simulator.run import Runs
from tests.learning.recording import SMALL_BATCH, record, steady

Record = dict[str, Any]


@pytest.fixture(scope="module")
def decided() -> list[Record]:
    return record(Runs(1, 0, ranges=SMALL_BATCH), lambda _: steady(1.1), most=8)[0]


def test_each_decision_with_what_it_led_to(decided: list[Record]) -> None:
    weights = Weights(beta=2.0)
    found = transitions_of("a", decided, weights)
    assert [item.decision for item in found] == [r["number"] for r in decided[:-1]]
    for item, before, after in zip(found, decided, decided[1:], strict=False):
        data = item.data
        assert (data["inputs"], data["next_inputs"]) == (before["inputs"], after["inputs"])
        assert len(data["inputs"]) == len(INPUTS)
        assert data["action"] == before["action"]
        assert data["noise"] == [0.0, 0.0]
        assert data["terms"] == after["terms"]
        assert data["elapsed_s"] == after["elapsed_s"]
        assert (data["policy"], data["version"]) == ("ddpg", before["version"])
        assert data["weights"]["beta"] == 2.0
        assert item.learnable


def test_what_is_missing_on_record_is_no_transition(decided: list[Record]) -> None:
    found = transitions_of("a", [decided[0], *decided[2:5]], Weights())
    assert [item.decision for item in found] == [3, 4]


def test_without_a_version_there_is_nothing_to_learn_from() -> None:
    decided = record(Runs(1, 0, ranges=SMALL_BATCH), lambda _: Rules(), most=3)[0]
    assert [item.learnable for item in transitions_of("a", decided, Weights())] == [False, False]
    asked = record(Runs(1, 0, ranges=SMALL_BATCH), lambda _: Rules(), [steady(1.1)], most=3)[0]
    found = transitions_of("a", asked, Weights())
    assert [(item.learnable, item.data["policy"]) for item in found] == [(True, "rules")] * 2


@pytest.mark.parametrize(
    ("ending", "learnable"), [("done", True), ("failed", True), ("oom", False), (None, False)]
)
def test_only_an_end_needs_no_inputs_after_it(
    decided: list[Record], ending: str | None, learnable: bool
) -> None:
    before, after = deepcopy(decided[:2])
    after["inputs"] = None
    after["terms"]["ending"] = ending
    assert transition_of("a", before, after, Weights()).learnable is learnable


def test_key_transitions(decided: list[Record]) -> None:
    before, after = deepcopy(decided[1:3])
    assert not transition_of("a", before, after, Weights()).key
    for ending, key in (("oom", True), ("diverged", True), ("failed", True), ("done", False)):
        after["terms"]["ending"] = ending
        assert transition_of("a", before, after, Weights()).key is key
    after["terms"]["ending"] = None
    after["reward"]["total"] += 2
    assert transition_of("a", before, after, Weights()).key
    before, after = deepcopy(decided[1:3])
    before["setting"]["gpus"] += 1
    assert transition_of("a", before, after, Weights()).key
