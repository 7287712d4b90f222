from __future__ import annotations

import json
from dataclasses import astuple
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mlflow_rlsched.simulator import fit as fit_command
from mlflow_rlsched.simulator.models import GAMMA_MAX, Throughput, efficiency, fit, gain

MODEL = Throughput(0.1, 0.01, 0.5, 0.02, 0.2, 0.01, 1.0)
APPS = json.loads((files("mlflow_rlsched.simulator") / "apps.json").read_text())


@pytest.mark.parametrize(
    ("nodes", "gpus", "local_batch", "accumulation", "seconds"),
    [
        (1, 1, 10, 0, 0.2),  # nothing to synchronise
        (1, 2, 10, 0, 0.2 + 0.2),
        (1, 4, 10, 0, 0.2 + 0.2 + 2 * 0.01),
        (2, 4, 10, 0, 0.2 + 0.5 + 2 * 0.02),
        (1, 2, 10, 3, 3 * 0.2 + 0.4),
    ],
)
def test_the_time_of_a_step(
    nodes: int, gpus: int, local_batch: int, accumulation: int, seconds: float
) -> None:
    assert MODEL.step_time(nodes, gpus, local_batch, accumulation) == pytest.approx(seconds)


def test_overlap_hides_the_shorter_part() -> None:
    hidden = Throughput(*astuple(MODEL)[:6], GAMMA_MAX)
    assert hidden.step_time(1, 2, 100) == pytest.approx(1.1, rel=1e-3)


def test_a_step_of_any_size_is_finite() -> None:
    model = Throughput(1e-200, 0.0, 1e200, 0.0, 0.0, 0.0, GAMMA_MAX)
    assert np.isfinite(model.step_time([1, 2], [1, 2], 1)).all()


def test_runs_are_computed_side_by_side() -> None:
    both = Throughput(*(np.array([value, 2 * value]) for value in astuple(MODEL)[:6]), 1.0)
    assert both.step_time(2, [2, 3], 10) == pytest.approx([0.7, 1.44])


def test_a_larger_batch_is_worth_as_much_as_its_noise_says() -> None:
    assert gain(1.0, 3.0, 1) == 1
    assert gain(1.0, 3.0, 3) == 2
    assert efficiency(1.0, 3.0, 3) == pytest.approx(2 / 3)
    assert gain(0.0, 1.0, 8) == 8  # noise alone: samples are all that counts
    assert gain(1.0, 0.0, 8) == 1  # no noise: steps are all that counts


def test_the_fit_finds_the_model_behind_measurements() -> None:
    nodes, gpus = np.array([[1, 1], [1, 2], [1, 4], [2, 4], [4, 16], [3, 3]], float).T
    local = np.array([8.0, 16, 32, 64])
    rows = [(n, g, b) for n, g in zip(nodes, gpus, strict=True) for b in local]
    n, g, b = np.array(rows).T
    true = Throughput(0.1, 0.01, 0.5, 0.02, 0.2, 0.01, 1.7)
    steps = true.step_time(n, g, b)
    found = fit(n, g, b, steps, steps - true.gradient_time(b))
    assert found.median_error < 0.005
    assert astuple(found.throughput) == pytest.approx(astuple(true), rel=0.05)


def test_a_single_measurement_can_be_fitted() -> None:
    one = np.ones(1)
    found = fit(one, one, 8 * one, 0.5 * one, 0 * one)
    assert found.throughput.step_time(1, 1, 8) == pytest.approx(0.5, rel=0.01)


def test_the_shipped_applications_name_their_source_and_fit() -> None:
    assert "adaptdl" in APPS["source"]
    assert len(APPS["apps"]) == 6
    for app in APPS["apps"].values():
        assert app["median_error"] < 0.08
        assert app["progress"] == sorted(app["progress"])
        assert app["progress"][-1] == 1
        assert len(app["progress"]) <= 30
        assert len(app["progress"]) == len(app["grad_sqr"]) == len(app["grad_var"])
        assert min(app["grad_sqr"] + app["grad_var"] + list(app["throughput"].values())) > 0


def test_the_command_prints_such_a_table(profiles: Path) -> None:
    result = CliRunner().invoke(fit_command.main, [str(profiles)])
    assert result.exit_code == 0
    assert "toy" in result.stderr
    app = json.loads(result.stdout)["apps"]["toy"]
    assert (app["batch"], app["local_batch"], app["steps"]) == ([10, 20], [5, 20], 100)
    assert app["progress"] == [0.5, 1]


@pytest.mark.parametrize("folder", ["", "missing"])
def test_a_folder_without_applications_is_named(tmp_path: Path, folder: str) -> None:
    result = CliRunner().invoke(fit_command.main, [str(tmp_path / folder)])
    assert result.exit_code == 1
    assert str(tmp_path / folder) in result.output
