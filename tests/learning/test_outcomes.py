"""How runs went under policy versions, and when the champion is rolled back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import mannwhitneyu

from mlflow_rlsched import versions as module
from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.learning.outcomes import (
    FALSE_ALARM,
    NAME,
    Outcome,
    chance_of_so_low,
    fall,
    outcome_of,
    review,
)
from mlflow_rlsched.policy.reward import Scales, Terms
from mlflow_rlsched.store import Transition
from mlflow_rlsched.versions import Versions, champions
from tests.policy.trained import trained

LOW, HIGH = trained(0.9), trained(1.1)
SCALES = Scales(throughput_max=100, cost_max=4, total_s=1000, interval_s=10)


def run(
    throughputs: Sequence[float],
    version: str = LOW.name,
    run_id: str = "run",
    ending: str | None = None,
    weights: Weights | None = None,
    **data: Any,
) -> list[Transition]:
    """A run that had these throughputs, one an interval of 10 s, on two of four devices."""
    found = []
    for number, throughput in enumerate(throughputs, 1):
        last = ending if number == len(throughputs) else None
        terms = Terms(10, throughput, cost=20, ending=last, scales=SCALES)
        told = {
            "terms": asdict(terms),
            "policy": "ddpg",
            "version": version,
            "weights": (weights or Weights()).model_dump(),
        }
        found.append(Transition(run_id, number, told | data))
    return found


def test_the_gain_is_that_over_the_first_interval() -> None:
    found = outcome_of(run([20] + [60] * 9), 5.0)
    assert found == Outcome("run", LOW.name, pytest.approx(0.36 / 2.5), 5.0)
    with_failure = outcome_of(run([20] + [60] * 9, ending="diverged"), 5.0)
    assert with_failure is not None
    assert with_failure.gain == pytest.approx((0.36 - 1) / 2.5)


def test_what_runs_hold_and_how_they_weigh_it_is_not_the_policys_doing() -> None:
    heavy = Weights(alpha=2, beta=1, gamma=2)
    gains = [
        outcome_of(run([20] + [60] * 9, weights=weights), 0.0) for weights in (Weights(), heavy)
    ]
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[0].gain == pytest.approx(gains[1].gain)


@pytest.mark.parametrize(
    "transitions",
    [
        [],
        run([20] * 9),
        run([20] * 5) + run([20] * 5, HIGH.name),
        run([20] * 10, policy="rules"),
        run([20] * 10, weights=Weights(alpha=0, beta=0, gamma=0)),
    ],
)
def test_runs_that_say_nothing_of_one_version(transitions: list[Transition]) -> None:
    assert outcome_of(transitions, 0.0) is None


def test_the_chance_agrees_with_another_implementation() -> None:
    noise = random.Random(0)
    for _ in range(20):
        a = [round(noise.gauss(0, 1), 1) for _ in range(noise.randint(8, 30))]
        b = [round(noise.gauss(0.5, 1), 1) for _ in range(noise.randint(8, 30))]
        other = mannwhitneyu(a, b, alternative="less", method="asymptotic").pvalue
        assert chance_of_so_low(a, b) == pytest.approx(other, rel=1e-6)
    assert chance_of_so_low([1.0] * 8, [1.0] * 8) == 1.0


GOOD = [0.10, 0.12, 0.09, 0.11, 0.13, 0.10, 0.08, 0.12]


def test_a_clear_fall_is_seen_from_eight_runs_on() -> None:
    bad = [gain - 0.08 for gain in GOOD]
    assert fall(bad[:7], GOOD) is None
    assert fall(bad, GOOD[:7]) is None
    reason = fall(bad, GOOD)
    assert reason is not None
    assert reason.startswith("the reward of real runs fell: median gain +0.025 in 8 runs, +0.105")


def test_what_is_no_worse_or_hardly_so_stays() -> None:
    assert fall([gain + 0.05 for gain in GOOD], GOOD) is None
    assert fall(GOOD, GOOD) is None
    assert fall([gain - 0.009 for gain in GOOD * 8], GOOD * 8) is None


def test_one_run_that_failed_does_not_decide() -> None:
    assert fall([*GOOD[:-1], -5.0], GOOD) is None


def test_between_looks_nothing_changes() -> None:
    """Otherwise every run would be another chance for a false alarm."""
    fair = [gain - 0.025 for gain in GOOD]
    assert fall([*fair, *[-1.0] * 7], GOOD) is None
    assert fall([*fair, *[-1.0] * 8], GOOD) is not None


def test_false_alarms_are_as_rare_as_promised() -> None:
    noise = random.Random(1)
    alarms = 0
    for _ in range(300):
        before = [noise.gauss(0.1, 0.05) for _ in range(32)]
        champion = [noise.gauss(0.1, 0.05) for _ in range(64)]
        alarms += any(fall(champion[:n], before) for n in (8, 16, 32, 64))
    assert alarms / 300 <= FALSE_ALARM


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    HIGH.save(tmp_path / "shipped.safetensors")
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "shipped.safetensors")
    return HIGH.name


def test_a_worse_champion_is_rolled_back_with_its_reason(shipped: str) -> None:
    versions = Versions()
    for number in range(8):
        assert review(versions, run([20] + [60 + number] * 9, shipped, f"before{number}")) is None
    versions.promote(LOW)
    for number in range(7):
        assert review(versions, run([20] + [25 + number] * 9, run_id=f"run{number}")) is None
    assert versions.champion().version.name == LOW.name
    reason = review(versions, run([20] + [32] * 9, run_id="run7"))
    assert reason is not None
    assert versions.champion().version.name == shipped
    assert versions.changes()[-1].reason == reason
    # Promoted again, it has another chance: what was is not counted twice.
    versions.promote(LOW)
    assert review(versions, run([20] + [25] * 9, run_id="run8")) is None
    assert champions(versions.changes()) == [LOW.name]


@pytest.mark.usefixtures("shipped")
def test_a_run_counts_once_and_torn_lines_do_not() -> None:
    versions = Versions()
    versions.promote(LOW)
    for _ in range(20):
        assert review(versions, run([20] + [25] * 9)) is None
    path = versions.folder / NAME
    path.write_bytes(path.read_bytes() + b'{"run_id": "a"}\n{"torn\n')
    assert review(versions, run([20] + [25] * 9, run_id="another")) is None


def test_runs_under_other_versions_are_kept_for_later() -> None:
    versions = Versions()
    assert review(versions, run([20] * 10, HIGH.name)) is None
    assert (versions.folder / NAME).read_text().count("\n") == 1
    assert review(versions, []) is None
    assert (versions.folder / NAME).read_text().count("\n") == 1
