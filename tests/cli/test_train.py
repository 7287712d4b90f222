from __future__ import annotations

import json
from typing import Any

import pytest

from mlflow_rlsched.daemon import home
from mlflow_rlsched.learning.pretraining import Pretraining
from mlflow_rlsched.registry import MODEL
from mlflow_rlsched.versions import Versions
from tests.cli.conftest import Rlsched

SMALL = ["--rounds", "11", "--runs", "8"]


pytestmark = pytest.mark.usefixtures("no_versions")


@pytest.fixture(autouse=True)
def _unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The critics have a test of their own, and take long."""
    monkeypatch.setattr(Pretraining, "judge", lambda self: 0.5)


@pytest.fixture
def train(rlsched: Rlsched) -> Rlsched:
    return lambda *args: rlsched("policy", "train", *SMALL, *args)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """An interrupt in the middle of a round."""
    whole = Pretraining.rounds

    def rounds(self: Pretraining) -> Any:
        for loss in whole(self):
            yield loss
            if self.round == last:
                raise KeyboardInterrupt

    monkeypatch.setattr(Pretraining, "rounds", rounds)


def test_a_training_ends_in_a_version_and_is_logged(train: Rlsched) -> None:
    from mlflow import MlflowClient

    found = train("--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout[found.stdout.index("{") :])
    (name,) = Versions().names()
    assert told["version"] == name
    version = Versions().read(name)
    assert version.heads == ("batch_size", "gpus")
    assert version.card["plan"]["rounds"] == 11
    client = MlflowClient()
    experiment = client.get_experiment_by_name(MODEL)
    run = client.get_run(told["run_id"])
    assert run.info.experiment_id == experiment.experiment_id
    assert run.info.status == "FINISHED"
    assert len(client.get_metric_history(told["run_id"], "imitation/loss")) == 11


def test_an_interrupted_training_goes_on(train: Rlsched, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        interrupt_at(patched, 10)
        stopped = train()
    assert stopped.exit_code == 1
    assert "10 of 11 rounds are kept" in stopped.output
    other = train("--seed", "1")
    assert other.exit_code == 2
    assert "other settings" in other.output
    again = train()
    assert again.exit_code == 0, again.output
    assert "going on after round 10" in again.output
    assert len(Versions().names()) == 1


@pytest.mark.parametrize("content", [b"", b"no training", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused_in_words(train: Rlsched, content: bytes) -> None:
    folder = home() / "policies" / "training"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(content)
    found = train()
    assert found.exit_code == 2
    assert "holds no training that can go on" in found.output
    assert (folder / "state.pt").read_bytes() == content
