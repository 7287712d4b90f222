from __future__ import annotations

import pickle

import numpy as np
import pytest

from benchmarks import sim_learning
from benchmarks.sim_learning import QUICK, curve_of, from_nothing, learned, others_than, tuned_to
from benchmarks.sim_starts import recurring
from mlflow_rlsched.learning import online
from mlflow_rlsched.learning.evaluation import Played
from mlflow_rlsched.learning.workloads import Workload
from mlflow_rlsched.simulator.run import Runs
from tests.learning.recording import SMALL_BATCH, idle


def played(seconds: list[float]) -> Played:
    values = np.array(seconds, float)
    nothing = np.zeros(len(values))
    return Played(values, values * 2, nothing, nothing == 0, nothing, nothing)


def test_runs_of_a_workload_have_its_character_and_other_starts() -> None:
    first, second = recurring("bert", 4, 0), recurring("bert", 4, 1)
    for name in ("throughput", "noise_scale", "steps", "memory_total"):
        values = np.concatenate([getattr(first.parameters, name), getattr(second.parameters, name)])
        assert (values == values[0]).all()
    assert first.bounds.gpus_max[0] >= 4
    assert first.settings.gpus.tolist() == [1, first.bounds.gpus_max[1]] * 2
    assert (first.advance(first.settings).loss != second.advance(second.settings).loss).any()


@pytest.mark.parametrize(("promoted", "left"), [(True, 0.25), (False, 1.0)])
def test_the_distance_left_open(
    promoted: bool, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_learning, "optimum", lambda runs, budget: played([2, 2, 20]))
    found = {"fixed": played([12, 12, 12]), "before": played([10, 10, 10])}
    if promoted:
        found["after"] = played([4, 4, 10])  # hindsight is never slower than before
    distance, time = tuned_to("bert", Runs(3), found, promoted)
    assert distance.value == pytest.approx(left)
    assert distance.baseline == pytest.approx(0.8 * 2 / 3)
    assert ("not promoted" in distance.note) is not promoted
    assert time.value == pytest.approx(0.6 if promoted else 1.0)


def test_runs_that_are_worse_elsewhere_are_counted() -> None:
    time, worse = others_than("bert", played([10, 10, 10, 10]), played([8, 10, 11, 12]))
    assert time.value == pytest.approx(1.025)
    assert worse.value == 0.25


def test_the_curve_is_beside_goodput() -> None:
    found = {"fixed": played([10, 10]), "goodput": played([5, 7])}
    first, last = curve_of(found | {"0": played([10, 8]), "5": played([5, 5])}, ["0", "5"])
    assert (first.value, last.value) == (0.9, 0.5)
    assert first.goal == last.goal == first.baseline == pytest.approx(0.6)
    assert "the rules decide" in first.note


def test_learning_is_that_of_the_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(count: int, seed: int) -> Runs:
        return Runs(count, seed, ranges=SMALL_BATCH)

    monkeypatch.setattr(sim_learning, "recurring", lambda _, count, seed: short(count, seed))
    monkeypatch.setattr(online, "Runs", short)
    monkeypatch.setattr(Workload, "runs", lambda _, count, seed: short(count, seed))
    version = idle()
    found = learned("bert", version, QUICK)
    assert (found.champion.name == version.name) is not found.promoted
    assert "learning from" in capsys.readouterr().err
    assert pickle.loads(pickle.dumps(found)).champion.name == found.champion.name


def test_the_training_is_shown_from_its_beginning() -> None:
    found = from_nothing(QUICK)
    assert list(found) == list(QUICK.shown)
    assert len({version.name for version in found.values()}) == len(found)
