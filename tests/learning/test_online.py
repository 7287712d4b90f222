"""Learning from recorded runs: what is better is promoted, whatever dies in between."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mlflow_rlsched import protocol
from mlflow_rlsched.learning import online
from mlflow_rlsched.learning.evaluation import Estimate
from mlflow_rlsched.learning.mlflow_log import Log
from mlflow_rlsched.learning.online import NothingToLearnError, OnlineLearning, Plan, Verdict
from mlflow_rlsched.learning.workloads import Workload
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.store import Store, open_store
from mlflow_rlsched.training import attach
from mlflow_rlsched.versions import Versions, champions
from tests.learning.learning_task import PLAN, TINY
from tests.learning.recording import SMALL_BATCH, Record, growing, idle, keep
from tests.policy.trained import trained
from tests.world import ROOT

IDLE = idle()


@pytest.fixture(scope="module")
def decided() -> dict[str, list[Record]]:
    return growing()


@pytest.fixture
def store(tmp_path: Path, decided: dict[str, list[Record]]) -> Iterator[Store]:
    """A store with recorded runs."""
    opened = open_store(f"sqlite:///{tmp_path}/rlsched.db")
    keep(opened, tmp_path / "runs", decided)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Workload.runs
    monkeypatch.setattr(online, "Runs", partial(Runs, ranges=SMALL_BATCH))
    monkeypatch.setattr(Workload, "runs", lambda *args: whole(*args, SMALL_BATCH))


def learning(store: Store, plan: Plan = TINY) -> OnlineLearning:
    return OnlineLearning(store, Versions(), attach(), plan, Log())


def test_a_better_candidate_becomes_the_champion(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The champion never changes anything; the runs had better ones too."""
    versions = Versions()
    versions.promote(IDLE)
    assert learning(store, PLAN).run()
    champion = versions.champion().version
    assert champion.name != IDLE.name
    change = versions.changes()[-1]
    assert change.figures["fitted"]["low"] > 0
    assert change.figures["fit"]["step_time_error"] < 0.05
    assert "faster" in change.reason
    assert champion.card["continued"]["from"] == IDLE.name
    assert champion.card["is"] == "idle"
    assert set(champion.optional) == set(IDLE.optional)
    said = capsys.readouterr().out
    assert f"version {champion.name}, learned from" in said
    assert "is the champion now" in said


def test_one_that_is_not_better_is_kept_and_not_promoted(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an improvement the candidate acts as the champion does."""
    versions = Versions()
    versions.promote(IDLE)
    assert not learning(store, Plan(evaluation=1, improvement=0, updates=50, runs=4)).run()
    assert versions.champion().version.name == IDLE.name
    assert len(versions.names()) == 2
    assert "is not promoted: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fitted", "general", "better"),
    [(0.01, 0.0, True), (0.0, 0.0, False), (0.01, -0.009, True), (0.01, -0.011, False)],
)
def test_better_on_runs_like_yours_and_not_worse_on_others(
    fitted: float, general: float, better: bool
) -> None:
    verdict = Verdict(Estimate(0.1, fitted, 0.2), Estimate(0.1, general, 0.2))
    assert verdict.better is better
    assert str(Verdict(Estimate(0.0, -0.0101, 0.1), Estimate(0.1, 0.0, 0.2))).startswith(
        "+0.0% faster (-1.0% to +10.5%) on runs like yours, +10.5% faster"
    )


def test_the_same_seed_makes_the_same_candidate(store: Store) -> None:
    Versions().promote(IDLE)
    names = []
    for seed in (0, 0, 1):
        learner = learning(store, Plan(evaluation=2, improvement=1, updates=50, seed=seed))
        learner._learn()
        names.append(learner._candidate().name)
    assert names[0] == names[1] != names[2]


def test_another_champion_meanwhile_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions()
    versions.promote(IDLE)
    learner = learning(store)
    versions.promote(trained(0.9))
    monkeypatch.setattr(Verdict, "better", True)
    assert not learner.run()
    assert versions.champion().version.name == trained(0.9).name


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, "there is no policy to continue from: there is no trained policy yet"),
        (trained(0.9), "nobody can continue its training"),
    ],
)
def test_what_cannot_be_continued_is_said(
    store: Store, version: Version | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow_rlsched.versions.SHIPPED", Path("/absent"))
    if version is not None:
        Versions().promote(version)
    with pytest.raises(NothingToLearnError, match=says):
        learning(store)


def test_without_transitions_there_is_nothing_to_learn(tmp_path: Path) -> None:
    empty = open_store(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(NothingToLearnError, match="no decision on a run can be learned from yet"):
        learning(empty)
    empty.close()


# As an attempt of a task


def attempt(root: Path, number: int) -> dict[str, str]:
    """The variables of an attempt, which is asked to go on."""
    folder = protocol.attempt_dir(root, number)
    folder.mkdir(parents=True)
    protocol.Directive(number).write(folder)
    return {
        "RLSCHED_RUN_DIR": str(root),
        "RLSCHED_ATTEMPT": str(number),
        "RLSCHED_ATTEMPT_DIR": str(folder),
        "RLSCHED_CHECKPOINT_DIR": str(root / "checkpoints"),
        "RLSCHED_NUM_GPUS": "0",
    }


def test_asked_to_stop_it_saves_and_the_next_attempt_goes_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Versions().promote(IDLE)
    root = tmp_path / "run"
    for name, value in attempt(root, 1).items():
        monkeypatch.setenv(name, value)
    protocol.Directive(1, 1, action="stop").write(protocol.attempt_dir(root, 1))
    with pytest.raises(SystemExit) as left:
        learning(store).run()
    assert left.value.code == protocol.EXIT_RESUME
    for name, value in attempt(root, 2).items():
        monkeypatch.setenv(name, value)
    Versions().promote(trained(0.9))  # it goes on from the version that it began with
    again = learning(store)
    assert again._state["round"] == 1
    assert again._champion.name == IDLE.name
    assert again._learner.updates == TINY.updates
    again.run()
    assert len(again._state["general"]) == TINY.runs


def test_killed_at_any_moment_it_leaves_whole_versions_and_goes_on(
    store: Store, tmp_path: Path, decided: dict[str, list[Record]]
) -> None:
    versions = Versions()
    versions.promote(IDLE)
    known = len(store.transitions())
    moments, root = random.Random(5), tmp_path / "run"
    argv = [
        sys.executable,
        "-m",
        "tests.learning.learning_task",
        f"sqlite:///{tmp_path}/rlsched.db",
    ]
    checkpoints, ended = root / "checkpoints", 1
    for number in range(1, 30):
        environ = {**os.environ, **attempt(root, number)}
        process = subprocess.Popen(argv, env=environ, cwd=ROOT)
        if number <= 3:
            deadline = time.monotonic() + 60
            # Killed a moment after it has saved something, however slow the machine is.
            while process.poll() is None and not list(checkpoints.glob(f"{number:06d}-*")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.3))
            process.kill()
        ended = process.wait(120)
        for name in versions.names():
            assert Version.read(versions.path(name)).name == name
        assert Versions().champion().trouble == ""
        if ended == 0:
            break
    assert ended == 0
    assert len(store.transitions()) == known
    assert 2 <= len(versions.names()) <= 3
    assert champions(versions.changes())[0] == IDLE.name
