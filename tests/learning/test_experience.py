"""From transitions to what a learner takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.learning.experience import experience, fill
from mlflow_rlsched.learning.transitions import transitions_of
from mlflow_rlsched.policy.inputs import encode
from mlflow_rlsched.policy.replay import Replay
from mlflow_rlsched.policy.reward import DISCOUNT, Terms, absorbing, discount, reward
from mlflow_rlsched.simulator.parameters import HORIZON
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.store import Transition
from tests.learning.recording import SMALL_BATCH, record, steady


@pytest.fixture(scope="module")
def known() -> list[Transition]:
    """Two runs of five transitions."""
    found = record(Runs(2, 0, ranges=SMALL_BATCH), lambda _: steady(1.1), most=6)
    return [
        item for run, decided in enumerate(found) for item in transitions_of(f"{run}", decided, W)
    ]


W = Weights()


def ended(item: Transition, ending: str) -> Transition:
    terms = {**item.data["terms"], "ending": ending}
    return replace(item, data={**item.data, "terms": terms})


def test_a_row_has_the_action_that_was_taken_and_the_rewards_parts(
    known: list[Transition],
) -> None:
    for item, (row, _, key) in zip(known, experience(known), strict=True):
        terms, action = Terms.from_json(item.data["terms"]), item.data["action"]
        assert row.reward[0, 0] == pytest.approx(reward(terms, W).total, abs=1e-5)
        assert row.discount[0, 0] == pytest.approx(discount(terms.duration_s, terms.scales))
        wanted = encode(*(np.array([v]) for v in action.values()))
        assert row.action == pytest.approx(wanted)
        assert row.inputs[0] == pytest.approx(item.data["inputs"], abs=1e-6)
        assert row.next_inputs[0] == pytest.approx(item.data["next_inputs"], abs=1e-6)
        assert key is item.key


def test_runs_end_where_the_next_decision_is_not_theirs(known: list[Transition]) -> None:
    assert [over for _, over, _ in experience(known)] == [*[False] * 4, True] * 2
    gap = [known[0], known[1], known[3], known[4], *known[5:]]
    assert [over for _, over, _ in experience(gap)][:4] == [False, True, False, True]
    assert [over for _, over, _ in experience(known[::-1])] == [*[False] * 4, True] * 2


def test_a_run_that_is_done_earns_on_and_one_that_failed_does_not(
    known: list[Transition],
) -> None:
    last = known[4]
    rows = {e: next(experience([ended(last, e)]))[0] for e in ("done", "failed", "oom")}
    assert rows["done"].discount[0, 0] == rows["failed"].discount[0, 0] == 0
    assert rows["oom"].discount[0, 0] > 0
    terms = Terms.from_json(ended(last, "done").data["terms"])
    left = HORIZON * terms.scales.total_s - last.data["elapsed_s"]
    after = discount(terms.duration_s, terms.scales) * absorbing(left, W, terms.scales)
    assert rows["done"].reward[0, 0] == pytest.approx(reward(terms, W).total + after, rel=1e-4)


def test_what_no_learner_can_use_is_left_out(known: list[Transition]) -> None:
    older = replace(known[1], data={**known[1].data, "inputs": [0.0] * 7})
    unknown = replace(known[2], learnable=False)
    assert len(list(experience([known[0], older, unknown]))) == 1


def test_a_replay_is_filled_with_returns_that_cross_no_run(known: list[Transition]) -> None:
    replay = Replay(capacity=16)
    assert fill(replay, known, steps=3) == len(replay) == 10
    rows = [row for row, *_ in experience(known)]
    found = replay.sample(16).transitions
    first = [
        row
        for row, whole in zip(found.discount, found.inputs, strict=True)
        if np.allclose(whole, rows[0].inputs[0])
    ]
    lengths = [float(row.discount[0, 0]) for row in rows]
    assert first
    assert first[0] == pytest.approx(np.prod(lengths[:3]), rel=1e-5)
    last = [
        row
        for row, whole in zip(found.discount, found.inputs, strict=True)
        if np.allclose(whole, rows[4].inputs[0])
    ]
    assert last
    assert last[0] == pytest.approx(lengths[4], rel=1e-5)
    assert lengths[0] <= DISCOUNT**0.5
