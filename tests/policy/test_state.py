from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.fields import FIELDS
from mlflow_rlsched.policy.history import Gradient, History
from mlflow_rlsched.policy.interval import DeviceUse
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.state import build_state, document
from tests.policy.builders import interval, report

LIMITS = Limits(gpus_max=4, batch_initial=64)
DEVICES = [
    DeviceUse(0.9, 4e9, 16e9, 150.0, 300.0),
    DeviceUse(0.5, 12e9, 16e9, 75.0, 300.0),
]
FALLING = tuple((100.0 * i, 1.0 - 0.05 * i) for i in range(9))  # 1 to 0.6, last five around 0.7
GRADIENTS = (Gradient(1.0, 300.0, 0.1), Gradient(3.0, 500.0, 0.1))  # 400 / 2

# name, interval, history, raw value, normalised value
CASES: list[tuple[str, dict[str, Any], dict[str, Any], float, float]] = [
    ("gpu_utilisation", {"devices": DEVICES}, {}, 0.7, 0.4),
    ("gpu_utilisation_spread", {"devices": DEVICES}, {}, 0.4, -0.2),
    ("memory_used", {}, {"memory_fraction": 0.75}, 0.75, 0.5),
    ("memory_slope", {}, {"memory_slope": 0.05}, 0.05, 0.5),
    ("power", {"devices": DEVICES}, {}, 0.375, -0.25),
    ("network_rate", {"network_rate": 3e6}, {"network_max": 4e6}, 0.75, 0.5),
    ("input_wait", {"reports": [report(input_wait=0.2), report(input_wait=0.4)]}, {}, 0.3, -0.4),
    ("input_wait", {"host_cpu": 0.9}, {}, 0.9, 0.8),
    ("progress", {}, {"progress": 0.25}, 0.25, -0.5),
    ("loss", {}, {"losses": FALLING, "loss_first": 1.4}, 0.5, -0.5),
    ("loss_slope", {}, {"losses": FALLING}, -0.4 / 0.7, -0.4 / 0.7),
    ("noise_scale", {}, {"gradients": GRADIENTS}, math.log10(200), math.log10(200) / 3 - 1),
    ("gradient_variance_trend", {}, {"gradients": GRADIENTS, "var_usual": 200.0}, 1, 0.5),
    ("throughput", {}, {"throughput": 80.0, "throughput_best": 100.0}, 0.8, 0.6),
    ("throughput_trend", {}, {"throughput": 80.0, "throughput_before": 100.0}, -0.2, -0.4),
    ("gpus", {"setting": Setting(1, 64)}, {}, 0.25, -0.5),
    ("batch_size", {"setting": Setting(1, 512)}, {}, 3, 0.5),
    ("lr_scale", {"setting": Setting(1, 64, 0.25, 0.25)}, {}, -2, -0.2),
    ("last_gpu_delta", {}, {"action": Action(gpu_delta=-1)}, -1, -0.5),
    ("last_batch_factor", {}, {"action": Action(batch_factor=1.1)}, 1.1, 0.5),
    ("last_lr_factor", {}, {"action": Action(lr_factor=0.8)}, 0.8, -1),
    ("since_gpu_change", {"elapsed_s": 400.0}, {"gpus_changed_at": 250.0}, 150, -0.5),
    ("pressure", {"pressure": 3.0}, {}, 3, 0.5),
]


@pytest.mark.parametrize(("name", "seen", "known", "value", "normalised"), CASES)
def test_each_field_by_hand(
    name: str, seen: dict[str, Any], known: dict[str, Any], value: float, normalised: float
) -> None:
    state = build_state(History(**known), interval(**seen), LIMITS)
    told = state.to_json()[name]
    assert told["value"] == pytest.approx(value)
    assert told["normalised"] == pytest.approx(normalised)
    assert told["missing"] is False


def test_the_oscillation_is_the_spread_over_the_usual_one() -> None:
    # deviations from a level line: all 0.1, so a standard deviation of 0.14826, for so few 0.1779
    losses = tuple((100.0 * i, 1.0 + 0.1 * (-1) ** i) for i in range(12))
    history = History(losses=losses, spread_usual=0.1779 / 4)
    state = build_state(history, interval(), LIMITS)
    assert state.values["loss_oscillation"] == pytest.approx(2, abs=0.1)


def test_every_field_is_covered_by_hand() -> None:
    assert {case[0] for case in CASES} | {"loss_oscillation"} == {field.name for field in FIELDS}


def test_there_are_23_in_three_groups() -> None:
    groups = [field.group for field in FIELDS]
    assert [groups.count(group) for group in ("hardware", "task", "setting")] == [7, 8, 8]
    assert len({field.name for field in FIELDS}) == 23


def test_what_is_missing_is_named_and_has_its_value() -> None:
    bare = interval(setting=Setting(1, None), pressure=None)
    state = build_state(History(), bare, LIMITS)
    present = {
        "gpus", "lr_scale", "last_gpu_delta", "last_batch_factor", "last_lr_factor"
    }  # fmt: skip
    assert state.missing == {field.name for field in FIELDS} - present
    for field in FIELDS:
        if field.name in state.missing:
            assert state.values[field.name] == field.missing
            assert field.low <= field.missing <= field.high


def test_values_out_of_range_are_clipped() -> None:
    state = build_state(History(), interval(pressure=1e9), LIMITS)
    assert state.values["pressure"] == 1e9
    assert state.vector[-1] == 1


def test_the_document_is_that_of_the_definition() -> None:
    committed = Path(__file__).parents[2] / "docs" / "state.md"
    told = "python -m mlflow_rlsched.policy.state > docs/state.md"
    assert committed.read_text(encoding="utf-8") == document(), told
