"""``rlsched replay``: what is foretold of runs whose step times are known, and where it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mlflow_rlsched.analysis.model import ModelError, fit
from mlflow_rlsched.analysis.recorded import RunRecord
from mlflow_rlsched.analysis.replay import Outcome, happened, play, policies_for
from mlflow_rlsched.policy.goodput import step_seconds
from tests.analysis.conftest import Lived, Rlsched, document
from tests.analysis.records import launch, run, trained

BOUNDS = {"initial_batch_size": 64, "batch_size": {"min": 32, "max": 512}}


def step_s(batch: int) -> float:
    """Half of the first step does not depend on the batch."""
    return 0.05 + 0.05 * batch / 64


def outcomes(record: RunRecord, *names: str) -> dict[str, Outcome]:
    found = play(record, fit(record), policies_for(record, names))
    return {outcome.policy: outcome for outcome in found}


def test_a_fixed_run_is_foretold_as_it_was() -> None:
    record = trained([(64, 60)], step_s, **BOUNDS, objective={"target": 0.8})
    (fixed,) = outcomes(record).values()
    real = happened(record)
    assert real.seconds == 67
    assert fixed.seconds is not None
    assert fixed.target_s is not None
    assert fixed.seconds.value == pytest.approx(67, rel=0.03)
    assert fixed.seconds.low < 67 < fixed.seconds.high
    # 640 samples a second: 25,000 of them, and five seconds of start.
    assert real.target_s == pytest.approx(5 + 40, abs=1)
    assert fixed.target_s.value == pytest.approx(real.target_s, rel=0.05)
    assert fixed.metric == pytest.approx(real.metric)


def test_a_batch_that_was_never_tried_is_refused_and_one_that_was_is_not() -> None:
    thin = trained([(64, 400)], step_s, noise_scale=1e5, **BOUNDS)
    found = outcomes(thin, "goodput")
    assert found["fixed"].refused == ""
    assert found["goodput"].seconds is None
    assert "the fit is too thin" in found["goodput"].refused
    assert "measured were 1 x 64 alone" in found["goodput"].refused
    known = trained([(64, 40), (128, 40), (256, 40), (512, 40)], step_s, 1e5, **BOUNDS)
    model = fit(known)
    assert model.foretold_error is not None
    assert model.foretold_error < 0.1
    found = outcomes(known, "goodput")
    fixed, goodput = found["fixed"].seconds, found["goodput"].seconds
    assert fixed is not None
    assert goodput is not None
    # At 64 samples a step all would have taken so long, and at 512 so much less.
    assert fixed.value == pytest.approx(model.samples / 640 + 7, rel=0.05)
    assert model.samples * step_s(512) / 512 < goodput.value < fixed.value
    assert (found["goodput"].batch or 0) > 100


def test_steps_that_scatter_take_as_long_as_they_took_and_leave_wide_intervals() -> None:
    """The settings that were trained at last, and longest, were slowed down by something else."""

    def slowed(batch: int) -> float:
        return step_s(batch) * (2 if batch > 64 else 1)

    record = trained([(64, 20), (72, 60), (80, 60), (88, 60)], slowed, **BOUNDS)
    model = fit(record)
    assert model.step_error > 0.1
    took = sum(step.seconds for step in model.measured)
    settings = [(1.0, step.batch, step.samples / step.batch) for step in model.measured]
    gpus, batch, count = (np.array([each]) for each in zip(*settings, strict=True))
    by_draw = (step_seconds(model.draws(200), gpus, batch, math.inf) * count).sum(1)
    assert np.median(by_draw) == pytest.approx(took, rel=0.03)
    low, high = np.quantile(by_draw, (0.05, 0.95))
    assert high / low > 1 + 2 * model.step_error


def test_what_a_learning_rate_was_worth_is_not_guessed() -> None:
    record = trained([(64, 60)], step_s, **BOUNDS, objective={"target": 0.8})
    record.decisions[-1]["setting"]["lr_factor"] = 1.2
    (fixed,) = outcomes(record).values()
    assert fixed.seconds is not None
    assert (fixed.target_s, fixed.metric) == (None, None)


def test_an_unfinished_run_goes_by_its_progress() -> None:
    record = trained([(64, 60)], step_s, **BOUNDS)
    for decision in record.decisions:
        decision["history"]["progress"] /= 2
    object.__setattr__(record.task, "exit_reason", "cancelled")
    assert fit(record).samples == pytest.approx(2 * 60 * 640)
    assert not happened(record).is_whole
    record.decisions[-1]["history"]["progress"] = None
    with pytest.raises(ModelError, match="does not tell its progress"):
        fit(record)


def test_runs_without_records() -> None:
    with pytest.raises(ModelError, match="never started"):
        fit(run())
    with pytest.raises(ModelError, match="told nothing"):
        fit(run(launch(1, 0, 5), ended=5))


def test_a_real_run_from_the_command_line(lived: Lived, rlsched: Rlsched) -> None:
    found: Any = document(rlsched("replay", lived.recovered, "--policy", "goodput", "--json"))
    assert [each["policy"] for each in found["policies"]] == ["fixed", "goodput"]
    fixed, real = found["policies"][0]["seconds"], found["happened"]["seconds"]
    # What was done twice, and the restart, would not have been.
    assert 0.5 * real < fixed["value"] < real
    text = rlsched("replay", lived.recovered, "--policy", "rules").stdout
    assert "happened (goodput)" in text
    assert "One setting does not say how step times change with the batch" in text


def test_runs_that_cannot_be_replayed_are_refused_with_a_sentence(
    lived: Lived, rlsched: Rlsched
) -> None:
    for run_id, why in (
        (lived.waited, "never started"),
        (lived.silent, "told nothing"),
        (lived.crashed, "step times"),
    ):
        result = rlsched("replay", run_id)
        assert result.exit_code == 1, result.output
        assert why in result.stderr
    assert rlsched("replay", "feedbeef").exit_code == 2
    assert rlsched("replay", lived.recovered, "--policy", "luck").exit_code == 2
