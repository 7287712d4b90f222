"""``rlsched search``: what is said before anything is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mlflow
import pytest

from mlflow_rlsched import studies
from mlflow_rlsched.backend import RlschedBackend
from mlflow_rlsched.config import store_url
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.search.plan import planned
from mlflow_rlsched.search.space import parse
from mlflow_rlsched.store import open_store
from mlflow_rlsched.submission import Request
from tests.cli.conftest import Rlsched
from tests.world import make_tracking_database

optuna = pytest.importorskip("optuna")
PROJECT = str(Path(__file__).parent.parent / "search" / "project")
RATE = ("-P", "lr=loguniform(1e-4,1)")


@pytest.fixture(autouse=True)
def _tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/mlruns/0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


def test_without_optuna_it_says_what_to_install(
    rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = rlsched("search", PROJECT, "--study", "s", *RATE)
    assert result.exit_code == 1
    assert "pip install 'mlflow-rlsched[search]'" in result.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-P", "lr=unifrom(0,1)"), "did you mean uniform"),
        (("-P", "lr=0.1"), "nothing is searched"),
        (("-P", "lrr=uniform(0,1)"), "no parameter 'lrr' (did you mean 'lr'?)"),
        ((*RATE, "-P", "steps=many"), "wants a number (int)"),
        ((*RATE, "--backend-config", "{"), "--backend-config is no JSON"),
        ((*RATE, "--backend-config", "[]"), "must be a JSON object"),
        ((*RATE, "--backend-config", '{"objectiv": {}}'), "did you mean 'objective'"),
        ((*RATE, "--storage", "nosql://x"), "the storage nosql://x cannot be used"),
        ((*RATE, "--storage", "journal:////proc/none/s"), "the storage journal:////proc/none/s"),
        ((*RATE, "--storage", "postgresql://me:secret@127.0.0.1:1/s"), "postgresql://…@127.0.0.1"),
        ((*RATE, "--storage", "redis://:secret@127.0.0.1:1"), "redis://…@127.0.0.1:1"),
        ((*RATE, "--jobs", "0"), "0 is not in the range"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    rlsched: Rlsched, arguments: tuple[str, ...], why: str
) -> None:
    result = rlsched("search", PROJECT, "--study", "s", *arguments)
    assert result.exit_code in (1, 2)
    assert why in result.output
    assert "secret" not in result.output
    assert mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"]).search_runs(["0"]) == []


def test_a_study_has_one_search_at_a_time_and_one_direction(rlsched: Rlsched) -> None:
    url = studies.default_storage()
    optuna.create_study(study_name="s", storage=studies.open_storage(url), direction="maximize")
    result = rlsched("search", PROJECT, "--study", "s", *RATE)
    assert result.exit_code == 2
    assert "wants to maximize" in result.output
    lock = FileLock(studies.lock_path("s", url))
    assert lock.acquire()
    result = rlsched("search", PROJECT, "--study", "s", *RATE)
    assert result.exit_code == 1
    assert "another `rlsched search` works on the study 's'" in result.output
    lock.release()
    folder = Path(url.removeprefix(studies.JOURNAL)).parent
    other = f"{studies.JOURNAL}{folder}/../{folder.name}/studies.journal"
    assert studies.lock_path("s", other) == studies.lock_path("s", url)


def test_knobs_stay_inside_the_space_and_runs_are_alike() -> None:
    config = {"batch_size": {"max": 1024}, "objective": {"metric": "accuracy", "mode": "max"}}
    request = Request(PROJECT, "main", {}, None, config, "", "0", None)
    plan = planned(request, parse(["lr=uniform(0,1)", "batch_size=int(16,512,log)", "steps=5"]))
    assert plan.request.backend_config["batch_size"] == {"max": 1024, "min": 16}
    assert plan.request.backend_config["learning_rate"] == {"max": 1.0}
    assert plan.alike == {"steps": "5", "gate": "/"}
    assert (plan.metric, plan.direction) == ("accuracy", "maximize")


def start_of(reference: str, params: dict[str, str]) -> dict[str, str]:
    """Parameters of a run that begins with the best of a study."""
    uri = os.environ["MLFLOW_TRACKING_URI"]
    config = {"learning_rate": {"start": reference}, "wait": False}
    run = RlschedBackend().run(PROJECT, "main", params, None, config, uri, "0")
    found: dict[str, str] = mlflow.MlflowClient(uri).get_run(run.run_id).data.params
    return found


def test_a_run_begins_with_the_best_of_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_rlsched.backend.call_agent", lambda _: None)
    study = optuna.create_study(
        study_name="s", storage=studies.open_storage(studies.default_storage())
    )
    with pytest.raises(mlflow.exceptions.ExecutionException, match="no best trial yet"):
        start_of("study:s", {})
    space = {"lr": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)}
    for rate, value in ((0.5, 2.0), (0.012, 1.0)):
        study.add_trial(
            optuna.trial.create_trial(params={"lr": rate}, distributions=space, value=value)
        )
    assert start_of("study:s", {})["lr"] == "0.012"
    assert start_of("study:s", {"lr": "0.3"})["lr"] == "0.3"
    (first, *_) = open_store(store_url(None, os.environ)).tasks()
    assert first.spec.config["learning_rate"]["start"] is None, "it may hold a password"
    with pytest.raises(mlflow.exceptions.ExecutionException, match="there is no study 'other'"):
        start_of("study:other", {})
    with pytest.raises(mlflow.exceptions.ExecutionException) as caught:
        start_of("study:s@redis://:secret@127.0.0.1:1", {})
    assert "secret" not in str(caught.value)
