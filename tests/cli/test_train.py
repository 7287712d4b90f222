from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from mlflow_rlsched.cli.train import EVERY
from mlflow_rlsched.daemon import home
from mlflow_rlsched.learning.pretraining import Pretraining
from mlflow_rlsched.registry import MODEL
from mlflow_rlsched.versions import Versions
from tests.cli.conftest import Rlsched
from tests.world import wait_for

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
    again = train("--workers", "2")
    assert again.exit_code == 0, again.output
    assert "going on after round 10" in again.output
    (name,) = Versions().names()
    assert Versions().read(name).card["workers"] == 2


@pytest.mark.parametrize("end", ["interrupt", "terminate", "a worker is killed"])
def test_whatever_ends_it_no_process_is_left_and_what_is_kept_goes_on(
    train: Rlsched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # refuses at once
    folder = tmp_path / "training"
    options = ["--rounds=500", "--runs=8", "--workers=2", f"--folder={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow_rlsched", "policy", "train", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert wait_for((folder / "state.pt").exists, 120)
        children = psutil.Process(process.pid).children()
        assert len(children) == 3  # with the one that looks after what the two share
        if end == "a worker is killed":
            next(child for child in children if "spawn_main" in " ".join(child.cmdline())).kill()
        else:
            process.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "Traceback" not in output
    why = "ended (signal 9)" if end == "a worker is killed" else "Error: stopped"
    assert why in output
    kept = int(re.search(rf"; (\d+) of 500 rounds are kept in {folder}: the same", output)[1])
    assert kept >= EVERY
    assert wait_for(lambda: not any(child.is_running() for child in children), 60)
    state = torch.load(folder / "state.pt", weights_only=True)
    assert state["round"] == kept
    assert [file.name for file in folder.iterdir()] == ["state.pt"]


@pytest.mark.parametrize("workers", ["0", "-1", "1.5", "many"])
def test_a_number_of_processes_that_is_none_is_refused(train: Rlsched, workers: str) -> None:
    found = train("--workers", workers)
    assert found.exit_code == 2
    assert "--workers" in found.output


@pytest.mark.parametrize("content", [b"", b"no training", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused_in_words(train: Rlsched, content: bytes) -> None:
    folder = home() / "policies" / "training"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(content)
    found = train()
    assert found.exit_code == 2
    assert "holds no training that can go on" in found.output
    assert (folder / "state.pt").read_bytes() == content
