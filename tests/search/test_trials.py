"""Trials whose runs ended otherwise than they were asked for, or that nobody finds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow
import optuna
import pytest
from optuna.trial import TrialState

from mlflow_rlsched.search.plan import planned
from mlflow_rlsched.search.space import parse
from mlflow_rlsched.search.trials import Running, Search
from mlflow_rlsched.store import open_store
from mlflow_rlsched.submission import Request
from tests.search.conftest import PastRun

PROJECT = str(Path(__file__).parent / "project")


@pytest.fixture
def search(client: mlflow.MlflowClient) -> Search:
    request = Request(PROJECT, "main", {}, None, {}, client.tracking_uri, "0", None)
    plan = planned(request, parse(["lr=loguniform(1e-4,1)", "batch_size=int(16,512,log)"]))
    return Search(optuna.create_study(), plan, client, 1, 1, lambda _: None)


def asked(search: Search, **attributes: Any) -> optuna.Trial:
    """A trial that runs."""
    params = {"lr": 0.01, "batch_size": 64}
    search.study.enqueue_trial(params, user_attrs={**search._marks, **attributes})
    return search.study.ask(search._plan.space.searched)


def test_a_tuned_trial_makes_place_for_what_it_trained_with(
    search: Search, past_run: PastRun, client: mlflow.MlflowClient
) -> None:
    tags = {"rlsched.tuned": "true", "rlsched.effective": '{"lr": 0.025, "batch_size": 181}'}
    run_id = past_run([0.9, 0.4], tags=tags)
    each = Running(asked(search), run_id)
    search._report(None, each, {0: 0.9, 1: 0.4})
    search._conclude(each, client.get_run(run_id))
    before, after = search.study.trials
    assert before.state is TrialState.FAIL
    assert (after.state, after.value) == (TrialState.COMPLETE, 0.4)
    assert after.params == {"lr": 0.025, "batch_size": 181}
    assert after.intermediate_values == {0: 0.9, 1: 0.4}
    assert search.own() == [after], "one trial, counted once"


@pytest.mark.parametrize(
    ("values", "status", "tags", "why"),
    [
        (None, "FINISHED", {}, "has no metric val_loss"),
        (float("nan"), "FINISHED", {}, "val_loss is not finite"),
        (0.5, "FAILED", {"rlsched.message": "it crashed"}, "it crashed"),
        (0.5, "KILLED", {}, "cancelled"),
        (0.5, "FINISHED", {"rlsched.effective": '{"lr": 7.0}'}, "lr is outside 0.0001 to 1"),
    ],
)
def test_a_run_that_teaches_nothing_is_a_failed_trial(
    search: Search,
    past_run: PastRun,
    client: mlflow.MlflowClient,
    values: float | None,
    status: str,
    tags: dict[str, str],
    why: str,
) -> None:
    run_id = past_run(values, status, tags)
    search._conclude(Running(asked(search), run_id), client.get_run(run_id))
    (trial,) = search.own()
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["rlsched.reason"] == why


def test_a_run_that_was_removed_for_good_is_a_failed_trial(
    search: Search, past_run: PastRun, client: mlflow.MlflowClient
) -> None:
    run_id = past_run(0.4)
    client.delete_run(run_id)
    client._tracking_client.store._hard_delete_run(run_id)  # as `mlflow gc` does
    with closing(open_store(search._plan.store)) as store:
        search._follow(store, Running(asked(search), run_id))
    (trial,) = search.own()
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["rlsched.reason"] == "its run was removed from MLflow for good"


def test_trials_wait_while_mlflow_is_away(
    search: Search, past_run: PastRun, client: mlflow.MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    each = Running(asked(search), past_run(0.4))
    with closing(open_store(search._plan.store)) as store:
        search._client = mlflow.MlflowClient("http://127.0.0.1:1")
        search._follow(store, each)
        search._follow(store, each)
        assert search.own() == []
        search._client = client
        search._follow(store, each)
    assert [trial.value for trial in search.own()] == [0.4]
    assert caplog.text.count("MLflow does not answer, trials wait") == 1


def test_a_trial_that_another_host_put_in_and_we_run_is_ours(search: Search) -> None:
    search.study.enqueue_trial({}, user_attrs={**search._marks, "rlsched.host": "elsewhere"})
    assert search._ask().user_attrs == search._marks
    assert len(search.study.trials) == 1


def test_a_search_whose_parent_was_deleted_has_one_new_one(
    search: Search, past_run: PastRun, client: mlflow.MlflowClient
) -> None:
    first = search._parent()
    past_run(0.4, tags={"rlsched.search": search._id, "rlsched.trial": "0"})
    client.delete_run(first)
    assert search._parent() == search._parent() != first


def test_a_trial_whose_run_is_not_to_be_found_is_asked_for_again(search: Search) -> None:
    asked(search)
    foreign = search.study.ask()
    with closing(open_store(search._plan.store)) as store:
        search._take_up(store)
    lost, other, again = search.study.trials
    assert lost.state is TrialState.FAIL
    assert (other.number, other.state) == (foreign.number, TrialState.RUNNING)
    assert again.state is TrialState.WAITING
    assert search.own() == []
    trial = search.study.ask(search._plan.space.searched)
    assert trial.params == {"lr": 0.01, "batch_size": 64}


def test_a_run_that_was_made_before_its_trial_knew_is_found(
    search: Search, past_run: PastRun
) -> None:
    trial = asked(search)
    tags = {"rlsched.search": search._id, "rlsched.trial": str(trial.number)}
    run_id = past_run(0.5, tags=tags)
    with closing(open_store(search._plan.store)) as store:
        search._take_up(store)
    assert search.running[trial.number].run_id == run_id


def test_a_trial_that_was_told_before_the_search_died_is_told_once(
    search: Search, past_run: PastRun, client: mlflow.MlflowClient
) -> None:
    run_id = past_run(0.4, tags={"rlsched.effective": '{"lr": 0.025}'})
    trial = asked(search, **{"rlsched.run_id": run_id})
    search.study.add_trial(
        optuna.trial.create_trial(
            params={"lr": 0.025, "batch_size": 64},
            distributions=search._plan.space.searched,
            value=0.4,
            user_attrs={**search._marks, "rlsched.run_id": run_id},
        )
    )
    with closing(open_store(search._plan.store)) as store:
        search._take_up(store)
    assert search.study.trials[trial.number].state is TrialState.FAIL
    assert len(search.own()) == 1
