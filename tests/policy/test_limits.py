from __future__ import annotations

import pytest

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.policy.limits import LR_SCALE_MAX, LR_SCALE_MIN, limits_of


def config(**values: object) -> RunConfig:
    return RunConfig.model_validate(values)


def test_bounds_of_the_rate_become_bounds_of_the_scale() -> None:
    limits = limits_of(config(learning_rate={"min": 0.001, "max": 0.4}), learning_rate=0.1)
    assert limits.lr_scale_min == pytest.approx(0.01)
    assert limits.lr_scale_max == pytest.approx(4)


def test_without_a_base_rate_only_the_general_bounds_hold() -> None:
    limits = limits_of(config(learning_rate={"min": 0.001, "max": 0.4}))
    assert (limits.lr_scale_min, limits.lr_scale_max) == (LR_SCALE_MIN, LR_SCALE_MAX)


def test_a_base_rate_outside_its_bounds_leaves_one_rate() -> None:
    limits = limits_of(config(learning_rate={"min": 0.2, "max": 0.4}), learning_rate=0.8)
    assert limits.lr_scale_max == pytest.approx(0.5)
    assert limits.lr_scale_min == pytest.approx(0.25)


def test_a_batch_is_at_most_the_dataset() -> None:
    limits = limits_of(config(batch_size={"min": 16}), batch_size=32, dataset_size=1000)
    assert (limits.batch_initial, limits.batch_min, limits.batch_max) == (32, 16, 1000)


def test_the_configurations_values_arrive() -> None:
    limits = limits_of(
        config(
            gpus={"initial": 2, "min": 1, "max": 4},
            batch_size={"min": 16, "max": 512},
            memory_cap_gb=2,
            objective={"mode": "max", "target": 0.9},
            decision_interval_s=7,
        ),
        optimizer="sgd",
        drop_last=False,
        price=3.0,
    )
    assert (limits.gpus_min, limits.gpus_max, limits.batch_min, limits.batch_max) == (1, 4, 16, 512)
    assert limits.memory_cap_bytes == 2e9
    assert (limits.objective_mode, limits.objective_target) == ("max", 0.9)
    assert (limits.interval_s, limits.optimizer, limits.drop_last) == (7, "sgd", False)
    assert limits.price == 3
    assert limits_of(config()).interval_s is None
