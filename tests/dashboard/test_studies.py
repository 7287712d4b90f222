"""The page Search: what a study has found, from real studies of Optuna."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import studies
from rlsched_dashboard import study_charts
from rlsched_dashboard.app import context_of, shown
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.settings import Settings

optuna = pytest.importorskip("optuna")
from optuna.distributions import CategoricalDistribution, FloatDistribution  # noqa: E402
from optuna.trial import TrialState, create_trial  # noqa: E402

SPACE = {"lr": FloatDistribution(1e-3, 1.0, log=True), "optimizer": CategoricalDistribution("ab")}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return context_of(
        Settings(f"sqlite:///{tmp_path}/rlsched.db", f"sqlite:///{tmp_path}/mlflow.db")
    )


def text_of(context: Context, **query: str) -> str:
    page = shown(context, View("/search", query))
    return json.dumps(page.to_plotly_json(), default=lambda x: x.to_plotly_json())


def trial(value: float | None, rate: float, state: TrialState, **attributes: Any) -> Any:
    return create_trial(
        state=state,
        value=value,
        params={"lr": rate, "optimizer": "a" if rate < 0.1 else "b"},
        distributions=SPACE,
        user_attrs=attributes,
    )


@pytest.fixture
def study() -> Any:
    """A study with two past runs, two trials and one that was set aside."""
    storage = studies.open_storage(studies.default_storage())
    made = optuna.create_study(study_name="digits", storage=storage)
    run, own = {"rlsched.run_id": "a" * 32}, {"rlsched.search": "x", "rlsched.run_id": "b" * 32}
    made.add_trial(trial(0.9, 0.5, TrialState.COMPLETE, **run))
    made.add_trial(trial(0.7, 0.2, TrialState.COMPLETE, **run))
    made.add_trial(trial(0.4, 0.01, TrialState.COMPLETE, **own))
    made.add_trial(trial(0.8, 0.3, TrialState.PRUNED, **own))
    made.add_trial(trial(None, 0.3, TrialState.FAIL, **own, **{"rlsched.set_aside": "tuned"}))
    made.set_user_attr("rlsched.left_out", {"cancelled": 3})
    return made


def test_a_study_is_shown_with_what_seeded_it(context: Context, study: Any) -> None:
    text = text_of(context, study="digits")
    for words in ("History", "Parallel coordinates", "Best trials", "left out: cancelled"):
        assert words in text
    found = context.studies.study("digits")
    assert [t.number for t in found.trials] == [0, 1, 2, 3], "what was set aside does not count"
    assert [t.seeded for t in found.trials] == [True, True, False, False]
    assert found.seeded == {"complete": 2}
    assert found.best is not None
    assert found.best.value == 0.4


def test_the_charts_say_what_the_study_says(context: Context, study: Any) -> None:
    found = context.studies.study("digits")
    drawn = {trace["name"]: trace for trace in study_charts.history(found)["data"]}
    assert drawn["best so far"]["y"] == [0.9, 0.7, 0.4]
    assert drawn["past run"]["y"] == [0.9, 0.7]
    assert drawn["pruned"]["y"] == [0.8]
    parallel = study_charts.parallel(found)
    assert parallel["layout"]["xaxis"]["ticktext"] == ["lr", "optimizer", "value"]
    said = [(each["x"], each["y"], each["text"]) for each in parallel["layout"]["annotations"]]
    assert said[:4] == [(0, 0, "0.01"), (0, 1, "0.5"), (1, 0, "a"), (1, 1, "b")]
    best = parallel["data"][-1]
    assert best["y"] == [0, 0, 0, None]
    assert "trial 2" in best["text"][0]
    lines = [trace["y"] for trace in parallel["data"] if trace["y"]]
    assert lines[0] == [1, 1, 1, None], "the worst first, so that better ones lie above it"
    slices = study_charts.slices(found)
    assert slices["lr"]["layout"]["xaxis"]["type"] == "log"
    assert slices["optimizer"]["data"][0]["x"] == ["b", "b", "a"]


def test_new_trials_are_seen(context: Context, study: Any) -> None:
    assert len(context.studies.study("digits").complete) == 3
    study.add_trial(trial(0.3, 0.02, TrialState.COMPLETE))
    assert len(context.studies.study("digits").complete) == 4


def test_a_study_that_is_not_there_and_one_without_values_say_so(context: Context) -> None:
    assert "Nothing was searched here yet" in text_of(context)
    storage = studies.open_storage(studies.default_storage())
    optuna.create_study(study_name="empty", storage=storage)
    assert "No values yet" in text_of(context)
    assert "there is no study 'gone'" in text_of(context, study="gone")


def test_without_optuna_the_page_says_what_to_install(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'mlflow-rlsched[search]'" in text_of(context)
