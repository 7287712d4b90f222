"""What the page of policies rests on: versions, what is kept to learn from, the explorer."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.fields import FIELDS
from mlflow_rlsched.policy.inputs import INPUTS
from mlflow_rlsched.store import open_store
from mlflow_rlsched.versions import Versions
from rlsched_dashboard.app import context_of, shown
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.explorer import USUAL
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.critics import q_values, worth
from rlsched_dashboard.sources.explorer import explore
from rlsched_dashboard.sources.policies import Evaluation
from tests.learning.recording import growing, idle, keep
from tests.policy.trained import trained

USUALLY = {field.name: field.missing for field in FIELDS}
COMPARED = {
    "time": {"value": 0.7, "low": 0.6, "high": 0.8},
    "geometric": 0.65,
    "device_hours": 0.5,
    "reached": 1.0,
}


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    return context_of(
        Settings(f"sqlite:///{tmp_path}/rlsched.db", f"sqlite:///{tmp_path}/mlflow.db")
    )


def text_of(context: Context, **query: str) -> str:
    page = shown(context, View("/policy", query))
    return json.dumps(page.to_plotly_json(), default=lambda part: part.to_plotly_json())


def test_a_version_acts_in_a_state_that_was_set_by_hand() -> None:
    found = explore(trained(1.1), USUALLY, Weights())
    assert found.proposal.action.lr_factor == pytest.approx(1.1)
    assert found.outcome.action.lr_factor == pytest.approx(1.1)
    assert sum(found.chances) == pytest.approx(1)
    assert (found.worth, found.curves) == ((), {}), "it has no critics"


def test_critics_judge_what_is_proposed_and_what_the_guard_leaves() -> None:
    version = idle()
    found = explore(version, USUALLY | {"progress": 0.5}, Weights())
    assert len(found.worth) == 3
    assert sorted(found.curves) == [-2, -1, 0, 1, 2]
    assert {len(curve) for curve in found.curves.values()} == {len(found.factors)}


def test_a_state_outside_of_the_training_is_left_to_the_rules() -> None:
    found = explore(trained(1.1, seen=0.5), USUALLY | {"loss": 2.0}, Weights())
    assert found.proposal.doubt is not None
    assert "the policy was trained on" in found.proposal.doubt


def test_the_guard_has_a_word_on_more_devices() -> None:
    version = trained(1.0)
    version.arrays["actor.body.4.bias"][4] = 5.0
    found = explore(version, USUALLY | {"gpus": 0.25, "progress": 0.3}, Weights())
    assert found.actor.gpu_delta == 2
    assert found.outcome.action.gpu_delta == 0
    assert any("restart" in veto for veto in found.outcome.vetoes)


def test_the_explorer_begins_where_the_state_is_not_known() -> None:
    assert USUAL.keys() == {field.name for field in FIELDS} | set(Weights.model_fields)


def test_q_values_are_those_of_a_version_by_its_name(context: Context) -> None:
    version = idle()
    Versions().add(version)
    actions = {"stay": {"gpu_delta": 0, "batch_factor": 1.0, "lr_factor": 1.0}}
    found = q_values(version.name, [0.0] * len(INPUTS), actions)
    assert found.keys() == {"stay"}
    assert np.isfinite(found["stay"])
    assert q_values(trained(1.1).name, [0.0] * len(INPUTS), actions) == {}, "it is not there"
    assert q_values(version.name, [0.0], actions) == {}, "of another version's inputs"
    assert worth(trained(1.1), [0.0] * len(INPUTS), []) == []


def test_transitions_are_read_once_and_key_ones_count_more(context: Context) -> None:
    records = growing(8)
    folder = Path(context.settings.store.removeprefix("sqlite:///")).parent
    with closing(open_store(context.settings.store)) as store:
        keep(store, folder / "runs", records)
        kept = store.transitions()
        seen = context.replay.transitions()
        assert [(each.run_id, each.decision) for each in seen] == [
            (item.run_id, item.decision) for _, item in kept
        ]
        assert sum(each.key for each in seen) == sum(item.key for _, item in kept)
        assert len(context.replay.transitions()) == len(seen), "nothing twice"
    ordinary, key = context.replay.priorities(idle())
    assert len(ordinary) + len(key) == sum(item.learnable for _, item in kept)
    assert np.concatenate([ordinary, key]).mean() == pytest.approx(1)
    text = text_of(context)
    assert "What there is to learn from" in text
    assert "policy-transitions" in text


def test_a_card_tells_what_its_version_is_worth(context: Context) -> None:
    figures = {"ddpg over fixed": COMPARED, "simulated_runs": 20, "like": ["bert"]}
    version = trained(1.1, {"figures": figures})
    found = context.policies.evaluation(version)
    assert isinstance(found, Evaluation)
    assert [(row.baseline, row.time) for row in found.against] == [("fixed", 0.7)]
    assert "20 simulated runs like bert" in found.basis
    assert context.policies.evaluation(trained(1.1)) is None


def test_promotions_and_rollbacks_show_their_reasons(context: Context) -> None:
    versions = Versions()
    versions.promote(trained(1.1, {"figures": {"gain": 0.1}}), "3 % faster on runs like yours")
    versions.rollback("rewards fell")
    text = text_of(context)
    assert "3 % faster on runs like yours" in text
    assert "rewards fell" in text
    assert "Nothing was learned here yet" in text


def test_a_version_that_is_not_there_is_said_and_the_champion_shown(context: Context) -> None:
    champion = trained(1.1)
    Versions().promote(champion)
    text = text_of(context, version="0123456789ab")
    assert "Version 0123456789ab" in text
    assert "There is no such version" in text
    assert f"Model card of version {champion.name}" in text
    text_of(context, state="[")
    text_of(context, state='{"loss": "x", "moon": 1}')


def test_a_damaged_version_leaves_the_page_whole(context: Context) -> None:
    versions = Versions()
    path = versions.add(trained(1.1))
    path.write_bytes(path.read_bytes()[:1000])
    text = text_of(context)
    assert "may be cut short" in text
    assert "Promotions" in text
