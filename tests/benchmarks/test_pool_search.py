from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import pool, pool_search
from benchmarks.pool_search import RANGES, decoded, encoded
from mlflow_rlsched.policy.weighing import Weighing


def test_a_place_in_the_ranges_is_the_same_numbers() -> None:
    some = Weighing(patience_s=600.0, growth=4.0, newcomer=0.5)
    assert decoded(encoded(some)).__dict__ == pytest.approx(some.__dict__)
    for place, end in ((0.0, 0), (1.0, 1)):
        found = decoded(encoded(some) * 0 + place)
        for name, values in RANGES.items():
            assert getattr(found, name) == pytest.approx(values[end])


def test_no_workload_is_for_two_things() -> None:
    seeds = [*pool_search.TRAINING, *pool_search.VALIDATION, *pool.SEEDS]
    assert len(set(seeds)) == len(seeds)


def test_what_was_found_is_written_with_its_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRAINING", "VALIDATION"):
        monkeypatch.setattr(pool_search, name, getattr(pool_search, name)[:2])
    file = tmp_path / "found.json"
    result = CliRunner().invoke(pool_search.main, [str(file), "--quick", "--seed", "3"])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert Weighing(**found["weighing"]).growth >= 2
    assert found["made_by"]["seed"] == 3
    assert found["made_by"]["validation_error"] >= 0
