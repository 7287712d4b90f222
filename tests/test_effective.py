"""What a run trained with, all in all."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_rlsched.effective import effective, of_tag

ASKED = {"bs": "64", "lr": "0.1", "epochs": "3"}


def setting(batch_size: int | None = 64, lr_scale: float = 1.0) -> dict[str, Any]:
    return {"gpus": 1, "batch_size": batch_size, "lr_factor": lr_scale, "lr_scale": lr_scale}


def record(
    elapsed_s: float, before: dict[str, Any], after: dict[str, Any], ended: bool = False
) -> dict[str, Any]:
    return {"elapsed_s": elapsed_s, "before": before, "setting": after, "ended": ended}


def test_each_value_counts_by_how_long_it_was_in_force() -> None:
    small, large = setting(64, 1.0), setting(256, 2.0)
    found = effective(
        [record(10, small, large), record(40, large, large, ended=True)], ASKED, "bs", "lr"
    )
    assert found["bs"] == round(64 * 4**0.75)
    assert found["lr"] == pytest.approx(0.1 * 2**0.75)


def test_what_was_never_changed_is_what_was_asked_for() -> None:
    same = setting()
    assert effective([record(10, same, same, ended=True)], ASKED, "bs", "lr") == {}
    assert effective([], ASKED, "bs", "lr") == {}


def test_after_out_of_memory_a_silent_script_trains_with_the_smaller_batch() -> None:
    records = [record(0.1, setting(), setting(54), ended=True)]
    assert effective(records, ASKED, "bs", None) == {"bs": 54}


def test_only_parameters_that_are_knobs_are_told() -> None:
    records = [record(5, setting(), setting(128, 2.0)), record(9, setting(128, 2.0), setting())]
    assert effective(records, ASKED, None, None) == {}
    assert set(effective(records, ASKED, None, "lr")) == {"lr"}
    assert effective(records, {**ASKED, "lr": "fast"}, None, "lr") == {}


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"lr": "x"}', '{"lr": NaN}', '{"lr": -1}'])
def test_a_damaged_tag_tells_nothing(text: str | None) -> None:
    assert of_tag(text) == {}
