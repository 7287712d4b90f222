"""``rlsched policy evaluate``: what it shows, where runs come from, and how it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from mlflow_rlsched.learning import comparison
from mlflow_rlsched.versions import Versions
from tests.cli.conftest import Rlsched
from tests.learning.experiments import damage, decided, publish, tracking
from tests.learning.recording import Record
from tests.learning.test_comparison import short
from tests.policy.trained import trained
from tests.world import wait_for

RAISES = trained(1.1)

pytestmark = pytest.mark.usefixtures("no_versions")


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few decisions."""
    monkeypatch.setattr(comparison, "novice", lambda count, seed, apps: short(count, seed))


@pytest.fixture(scope="module")
def records() -> list[list[Record]]:
    return decided()


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    return tracking(tmp_path)


@pytest.mark.usefixtures("_short")
def test_the_champion_beside_the_others(rlsched: Rlsched) -> None:
    Versions().promote(RAISES)
    result = rlsched("policy", "evaluate", "--runs=4")
    assert result.exit_code == 0
    first, _, *lines = result.stdout.splitlines()
    assert first.startswith(f"ddpg {RAISES.name} on 4 simulated runs of bert, deepspeech2")
    names = [line[: line.index("  ")] for line in lines[:9] if line]
    assert names == [
        *("OVER FIXED", "fixed", "rules", "goodput", f"ddpg {RAISES.name}"),
        *(f"ddpg {RAISES.name}", "over rules", "over goodput"),
    ]
    assert "All of this is simulated" in lines[-1]
    assert not result.stderr


@pytest.mark.usefixtures("_short")
def test_as_json(rlsched: Rlsched, tmp_path: Path) -> None:
    RAISES.save(tmp_path / "raises.safetensors")
    asked = ("policy", "evaluate", "./raises.safetensors", "--json", "--seed=7", "--apps=ncf,bert")
    told = json.loads(rlsched(*asked, "--runs=3").stdout)
    assert told["policy"] == f"ddpg {RAISES.name}"
    assert (told["simulated"], told["runs"], told["seed"]) == (True, 3, 7)
    assert told["apps"] == ["ncf", "bert"]
    assert list(told["over_fixed"]) == ["fixed", "rules", "goodput", told["policy"]]
    assert told["over_fixed"]["fixed"]["pairs"] + told["over_fixed"]["fixed"]["lost"] == 3
    assert list(told["over_others"]) == ["rules", "goodput"]


@pytest.mark.usefixtures("_short")
def test_a_policy_that_needs_no_training(rlsched: Rlsched) -> None:
    told = json.loads(rlsched("policy", "evaluate", "rules", "--runs=2", "--json").stdout)
    assert list(told["over_fixed"]) == ["fixed", "rules", "goodput"]
    assert list(told["over_others"]) == ["goodput"]


def test_runs_like_those_of_an_experiment(
    rlsched: Rlsched, client: MlflowClient, tmp_path: Path, records: list[list[Record]]
) -> None:
    for each in records:
        publish(client, tmp_path, "mine", each)
    broken = publish(client, tmp_path, "mine", [])
    damage(client, tmp_path, broken, '{"number": 1}\n')
    asked = ("policy", "evaluate", "rules", "--from-experiment=mine", "--runs=2")
    result = rlsched(*asked)
    assert result.exit_code == 0
    assert f"Warning: run {broken} is left out: its artifact" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "rules on 2 simulated runs like those of mine\nfitted to 2 of them; " in result.stdout
    assert "step times off by" in result.stdout
    told = json.loads(rlsched(*asked, "--json").stdout)
    assert (told["experiment"], told["fit"]["runs"]) == ("mine", 2)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 1, "no trained policy yet: write the policy rules or goodput, or train one by"),
        (["nothing"], 2, "no version 'nothing'"),
        (["rules", "--apps=bert,gpt"], 2, "--apps: no measured application 'gpt', only bert, "),
        (["rules", "--apps=bert", "--from-experiment=mine"], 2, "either --apps or --from-exp"),
        (["rules", "--from-experiment=mine"], 2, "there is no tracking store sqlite:///"),
    ],
)
def test_what_cannot_be_evaluated(
    rlsched: Rlsched, arguments: list[str], code: int, says: str
) -> None:
    result = rlsched("policy", "evaluate", *arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_an_experiment_that_tells_nothing(
    rlsched: Rlsched, client: MlflowClient, tmp_path: Path, records: list[list[Record]]
) -> None:
    asked = ("policy", "evaluate", "rules", "--from-experiment=mine")
    result = rlsched(*asked)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "there is no experiment 'mine' at sqlite:///" in result.stderr
    publish(client, tmp_path, "mine", [])
    result = rlsched(*asked)
    assert result.exit_code == 2
    assert "is left out: it has no artifact rlsched/decisions.jsonl (yet)" in result.stderr
    assert "Error: no decisions of the experiment 'mine' can be used" in result.stderr
    publish(client, tmp_path, "mine", records[0][:1])
    assert "Error: none of 1 runs tells how long its steps take" in rlsched(*asked).stderr


def test_a_tracking_server_that_does_not_answer_is_said(
    rlsched: Rlsched, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{silent_server}")
    result = rlsched("policy", "evaluate", "rules", "--from-experiment=mine")
    assert result.exit_code == 1
    assert f"http://…@{silent_server}: no answer within 0 s; start or mend" in result.stderr
    assert "secret" not in result.output


def test_a_file_that_is_no_tracking_store(rlsched: Rlsched, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("x" * 5000)
    result = rlsched("policy", "evaluate", "rules", "--from-experiment=mine")
    assert result.exit_code == 1
    assert "Error: sqlite:///" in result.stderr
    assert "Traceback" not in result.output


WITHOUT_TORCH = """
import sys
from mlflow_rlsched.cli import main
from mlflow_rlsched.learning import comparison
from tests.learning.test_comparison import short
comparison.novice = lambda count, seed, apps: short(count, seed)
main(["policy", "evaluate", "raises.safetensors", "--runs=1"], standalone_mode=False)
assert "torch" not in sys.modules
"""


def test_deciding_needs_no_torch(tmp_path: Path) -> None:
    RAISES.save(tmp_path / "raises.safetensors")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"ddpg {RAISES.name}" in done.stdout


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill"])
def test_an_interrupt_ends_all_processes_quietly(whole_group: bool) -> None:
    command = [sys.executable, "-m", "mlflow_rlsched", "policy", "evaluate", "rules"]
    process = subprocess.Popen(
        [*command, "--runs=100000", "--workers=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        me = psutil.Process(process.pid)
        # The two workers, and the process that looks after what these share.
        children = wait_for(lambda: len(found := me.children()) == 3 and found, 60)
        assert children
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output.strip()) == (1, "Aborted!")
        wait_for(lambda: not any(child.is_running() for child in children), 60)
    finally:
        process.kill()
