"""Past runs as trials: real MLflow, real Optuna."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import mlflow
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from mlflow_rlsched.search import Seeded, SeedingError, seed_study
from mlflow_rlsched.search.history import STEPS
from mlflow_rlsched.studies import existing_study, open_storage
from tests.search.conftest import SPACE, PastRun
from tests.world import ROOT

SEED_IT = """
import sys
from mlflow_rlsched.search import seed_study
from mlflow_rlsched.studies import existing_study
from tests.search.conftest import SPACE
study = existing_study("s", sys.argv[1])
seed_study(study, experiment="Default", params=SPACE, tracking_uri=sys.argv[2])
"""


def seeded(study: optuna.Study) -> Seeded:
    return seed_study(study, experiment="Default", params=SPACE)


def test_runs_become_trials_of_their_kind_once(past_run: PastRun, tmp_path: Path) -> None:
    finished = past_run([0.9, 0.5, 0.3], lr="1e-3", batch_size="32")
    pruned = past_run([0.9, 0.8], "KILLED", {"rlsched.pruned": "true"}, lr="'0.1'")
    past_run(None, "FAILED")
    url = f"sqlite:///{tmp_path}/studies.db"
    study = optuna.create_study(storage=open_storage(url), study_name="s")
    assert seeded(study) == Seeded(complete=1, pruned=1, failed=1)
    assert seeded(study) == Seeded(known=3)
    trials = existing_study("s", url).trials  # as another process loads it
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "FAIL"]
    assert trials[0].params == {"lr": 0.001, "batch_size": 32}
    assert trials[0].value == 0.3
    assert trials[0].intermediate_values == {0: 0.9, 1: 0.5, 2: 0.3}
    assert [trial.user_attrs["rlsched.run_id"] for trial in trials[:2]] == [finished, pruned]
    assert study.best_params == {"lr": 0.001, "batch_size": 32}


def test_what_makes_no_trial_is_counted_by_its_reason(
    past_run: PastRun, client: mlflow.MlflowClient
) -> None:
    study = optuna.create_study()
    past_run(0.4)
    client.delete_run(past_run(0.4))
    past_run(None)
    past_run(math.nan)
    past_run(math.inf)
    past_run(0.4, "RUNNING")
    past_run(0.4, "KILLED")
    past_run(0.4, lr="fast")
    past_run(0.4, lr="7")
    past_run(0.4, lr=None)
    past_run(0.4, lr="0" * 6000)
    past_run(0.4, tags={"rlsched.tuned": "true"})
    past_run(0.4, tags={"rlsched.search": "abc"})
    past_run(None, "FAILED", {"rlsched.exit_reason": "submission_failed"})
    other = client.create_experiment("somebody else's")
    past_run(0.1, experiment_id=other)
    found = seeded(study)
    assert found.added == found.complete == 1
    assert found.left_out == {
        "deleted in MLflow": 1,
        "has no metric val_loss": 1,
        "val_loss is not finite": 2,
        "not over yet": 1,
        "cancelled": 1,
        "lr is no number": 1,
        "lr is outside 0.0001 to 1": 1,
        "has no parameter lr": 1,
        "lr was cut at 6,000 characters": 1,
        "was tuned while it ran, and does not tell to what": 1,
        "is the parent run of a search": 1,
        "never began to train": 1,
    }


def test_a_study_learns_from_what_was_trained_with(past_run: PastRun) -> None:
    tags = {"rlsched.tuned": "true", "rlsched.effective": '{"lr": 0.025, "batch_size": 181}'}
    past_run(0.4, tags=tags)
    study = optuna.create_study()
    seeded(study)
    assert study.trials[0].params == {"lr": 0.025, "batch_size": 181}


def test_outliers_and_runs_of_other_trainings_are_left_out(past_run: PastRun) -> None:
    study = optuna.create_study()
    for n in range(8):
        past_run(0.4 + 0.01 * n, epochs="30")
    past_run(1e30, epochs="30")
    past_run(-50.0, epochs="30.0")
    past_run(0.41, epochs="3")
    found = seed_study(study, experiment="Default", params=SPACE, fixed={"epochs": "30"})
    left_out = {"val_loss is an outlier": 2, "epochs is not 30": 1}
    assert found == Seeded(complete=8, left_out=left_out)
    again = seed_study(study, experiment="Default", params=SPACE, fixed={"epochs": "30"})
    assert again == Seeded(known=8, left_out=left_out), "they are outliers for good"


def test_runs_of_other_projects_are_left_out_where_one_is_named(past_run: PastRun) -> None:
    def tags(name: str, **more: str) -> dict[str, str]:
        return {"mlflow.source.type": "PROJECT", "mlflow.source.name": name} | more

    past_run(0.4)  # a script: it says nothing of a project
    past_run(0.4, tags=tags("file:///home/other/mono#projects/digits"))
    past_run(0.4, tags=tags("https://example.org/digits.git"))
    past_run(0.4, tags=tags("https://example.org/language.git"))
    past_run(0.4, tags=tags("/home/me/digits", **{"mlflow.project.entryPoint": "big"}))
    found = seed_study(
        optuna.create_study(),
        experiment="Default",
        params=SPACE,
        project="/home/me/digits/",
        entry_point="main",
    )
    assert found == Seeded(
        complete=3,
        left_out={"is of another project, language": 1, "is of another entry point, big": 1},
    )
    assert seeded(optuna.create_study()).complete == 5


def test_two_processes_at_once_add_each_run_once(
    past_run: PastRun, client: mlflow.MlflowClient, tmp_path: Path
) -> None:
    runs = {past_run(0.1 * n) for n in range(1, 6)}
    url = f"journal:///{tmp_path}/studies.journal"
    study = optuna.create_study(storage=open_storage(url), study_name="s")
    command = [sys.executable, "-c", SEED_IT, url, client.tracking_uri]
    for process in [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]:
        assert process.wait(timeout=120) == 0
    added = [trial.user_attrs["rlsched.run_id"] for trial in study.trials]
    assert sorted(added) == sorted(runs)


def test_any_sampler_goes_on_from_it(past_run: PastRun) -> None:
    past_run(0.5)
    for sampler in (optuna.samplers.RandomSampler(0), optuna.samplers.TPESampler()):
        study = optuna.create_study(sampler=sampler)
        seeded(study)
        study.tell(study.ask(SPACE), 0.4)
        assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2


def test_wrong_studies_and_experiments_are_said(client: mlflow.MlflowClient) -> None:
    two = optuna.create_study(directions=["minimize", "minimize"])
    with pytest.raises(SeedingError, match="more than one objective"):
        seeded(two)
    study = optuna.create_study()
    with pytest.raises(SeedingError, match="no experiment 'nothing'"):
        seed_study(study, experiment="nothing", params=SPACE)
    study.tell(study.ask({"lr": CategoricalDistribution(["a"])}), 1.0)
    with pytest.raises(SeedingError, match="has lr as CategoricalDistribution"):
        seeded(study)


def test_curves_of_any_length_have_the_same_steps() -> None:
    assert sorted(STEPS)[:26] == [*range(16), *range(16, 32, 2), 32, 36]
    assert sorted(STEPS)[-1] > 1e12
    assert len(STEPS) < 330
