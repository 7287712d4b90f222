"""Whole decisions: scenarios, and properties that hold for anything that is measured."""

from __future__ import annotations

import json
import math
import random
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import DeviceUse, Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.state import State
from mlflow_rlsched.protocol import NUMBERS, Report
from tests.policy.builders import ALL, SETTING, Series, interval, report, reports

CALM = [1.0, 1.01, 0.99, 1.0, 1.01]
LIMITS = Limits(batch_initial=64)


def test_fixed_changes_nothing() -> None:
    decision = Decider(LIMITS, Fixed()).decide(interval(reports=reports([math.nan] * 5)))
    assert not decision.changed
    assert decision.setting == SETTING
    assert decision.reason == "the setting is fixed"


# The three scenarios


def test_a_planted_oscillation_lowers_the_rate_within_two_decisions() -> None:
    series = Series()
    for _ in range(4):
        assert not series.decide(CALM).changed
    decisions = [series.decide([0.5, 1.6, 0.4, 1.5, 0.6]), series.decide([1.6, 0.4, 1.5, 0.5, 1.7])]
    lowered = next(d for d in decisions if d.changed)
    assert lowered.setting.lr_factor == 0.8
    assert lowered.setting.lr_scale == pytest.approx(0.8)
    assert "oscillates" in lowered.reason


def test_planted_losses_that_are_not_finite_lower_the_rate_within_two_decisions() -> None:
    series = Series()
    series.decide(CALM)
    first = series.decide([1.0, 1.0, math.nan, 1.0, 1.0])
    second = series.decide([1.0, math.inf, 1.0, 1.0, 1.0])
    assert not first.changed
    assert second.setting.lr_factor == 0.8
    assert "2 losses were not finite" in second.reason


def test_the_rate_goes_back_up_when_it_is_calm_by_at_most_a_fifth_and_not_further() -> None:
    series = Series()
    series.decide([*CALM, math.nan, math.nan])
    assert series.setting.lr_factor == 0.8
    factors = [series.decide(CALM).setting.lr_factor for _ in range(12)]
    assert factors[:3] == [0.8] * 3
    assert max(b / a for a, b in pairwise(factors)) <= 1.2
    assert factors[-1] == pytest.approx(1)


def test_after_each_setback_it_waits_longer() -> None:
    series = Series()
    waits = []
    for _ in range(3):
        series.decide([*CALM, math.nan, math.nan])
        lowered = series.setting.lr_factor
        waited = 0
        while series.decide(CALM).setting.lr_factor == lowered:
            waited += 1
        waits.append(waited)
    assert waits[0] < waits[1] < waits[2]


def test_out_of_memory_makes_the_batch_smaller() -> None:
    decision = Series().decide(CALM, oom_batch=64)
    assert decision.setting.batch_size == 54
    assert decision.proposal.action.batch_factor == 0.85
    assert decision.history.ooms == 1
    assert decision.reward.penalty == -10


def test_what_the_recovery_has_made_smaller_stays() -> None:
    decider = Decider(LIMITS, Rules())
    decision = decider.decide(interval(setting=Setting(1, 54), oom_batch=64))
    assert decision.setting.batch_size == 54


def idle(seconds: float = 5.0, **changes: Any) -> Interval:
    values: dict[str, Any] = {
        "duration_s": seconds,
        "setting": Setting(4, 64),
        "devices": [DeviceUse(utilisation=0.1)] * 4,
        "pressure": 0.5,
    }
    return interval(**(values | changes))


LIVE = Limits(gpus_max=4, gpus_are_live=True, batch_initial=64)


def test_idle_devices_are_released_within_two_decisions() -> None:
    decider = Decider(LIVE, Rules())
    assert not decider.decide(idle()).changed
    decision = decider.decide(idle())
    assert decision.setting.gpus == 2
    assert decision.action.gpu_delta == -2
    assert "idle for 10 s" in decision.reason


def test_while_counts_cannot_change_the_guard_says_so() -> None:
    decider = Decider(Limits(gpus_max=4, batch_initial=64), Rules())
    decider.decide(idle())
    decision = decider.decide(idle())
    assert decision.setting.gpus == 4
    assert "cannot change while a run is going on" in decision.reason


@pytest.mark.parametrize(
    "second",
    [
        idle(pressure=0.0),  # nobody waits
        idle(devices=[DeviceUse(utilisation=0.2)] * 4),  # busy enough
        idle(devices=[DeviceUse()] * 4),  # not measured
        idle(seconds=1.0),  # not for long
        idle(setting=Setting(1, 64)),  # no more than it must have
    ],
)
def test_devices_are_kept_otherwise(second: Interval) -> None:
    decider = Decider(LIVE, Rules())
    decider.decide(idle())
    decision = decider.decide(second)
    assert decision.setting.gpus == second.setting.gpus
    assert decision.proposal.action.gpu_delta == 0


def test_a_noisy_throughput_causes_no_flapping() -> None:
    noise = random.Random(0)
    decider = Decider(LIMITS, Rules())
    samples, seconds = 0.0, 0.0
    for _ in range(60):
        told = []
        for _ in range(5):
            seconds += 1
            samples += 1000 * noise.uniform(0.95, 1.05)
            told.append(report(time=seconds, samples=samples, loss=1 + noise.gauss(0, 0.02)))
        can = ALL - {"learning_rate"}
        decision = decider.decide(interval(reports=told, elapsed_s=seconds, can=can))
        assert not decision.changed, decision.reason
    assert 0.01 < (decision.history.throughput_noise or 0) < 0.05


# The record


def test_the_record_holds_everything_and_is_json() -> None:
    decision = Series().decide(CALM)
    line = json.loads(json.dumps(decision.to_json(), allow_nan=False))
    assert line["number"] == 1
    assert len(line["state"]) == 23
    assert line["before"] == {"gpus": 1, "batch_size": 64, "lr_factor": 1.0, "lr_scale": 1.0}
    assert set(line["reward"]) == {
        "throughput", "cost", "progress", "smoothness", "penalty", "total"
    }  # fmt: skip
    assert line["policy"] == "rules"
    assert line["proposal"]["reason"]
    assert line["terms"]["scales"]["interval_s"] == 5


def test_the_history_survives_a_file_and_decides_alike() -> None:
    noise = random.Random(3)
    losses = [
        [2 * 0.97**i + noise.gauss(0, 0.01) for i in range(5 * n, 5 * n + 5)] for n in range(20)
    ]
    through, anew = Series(), Series()
    for some in losses:
        history = json.loads(json.dumps(anew.decider.history.to_json()))
        anew.decider = Decider(LIMITS, Rules(), history=History.from_json(history))
        assert through.decide(some).to_json() == anew.decide(some).to_json()
    assert through.setting.lr_factor != 1  # something was decided at all


@pytest.mark.parametrize("value", [{}, {"losses": 3}, {**History().to_json(), "memory": [1]}])
def test_what_is_no_history_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no history"):
        History.from_json(value)


def test_throughput_progress_and_cost_are_those_of_the_interval() -> None:
    decider = Decider(Limits(batch_initial=64, price=2.0), Fixed())
    first = [report(time=1.0, samples=0.0, progress=0.0), report(time=2.0, samples=100.0)]
    decider.decide(interval(reports=first))
    second = [report(time=7.0, samples=1100.0, progress=0.05)]
    terms = decider.decide(interval(reports=second)).terms
    assert terms.throughput == pytest.approx(200)
    assert terms.progress == pytest.approx(0.05)
    assert terms.cost == pytest.approx(10)
    assert terms.scales.total_s == pytest.approx(100 / 0.05)


def test_with_a_target_progress_is_the_way_to_it() -> None:
    limits = Limits(objective_mode="max", objective_target=0.9)
    decider = Decider(limits, Fixed())
    decider.decide(interval(objective=[0.5]))
    decision = decider.decide(interval(objective=[0.6, 0.7]))
    assert decision.terms.progress == pytest.approx(0.5)
    assert decision.state.values["progress"] == pytest.approx(0.5)


def test_a_resumed_training_that_went_back_has_no_negative_throughput() -> None:
    decider = Decider(LIMITS, Fixed())
    decider.decide(
        interval(reports=[report(time=1.0, samples=900.0), report(time=2.0, samples=1e3)])
    )
    back = [report(time=60.0, samples=500.0), report(time=62.0, samples=700.0)]
    assert decider.decide(interval(reports=back)).terms.throughput == pytest.approx(100)


def test_memory_is_measured_at_two_batch_sizes() -> None:
    decider = Decider(LIMITS, Fixed())
    for batch, peak in ((64, 5e9), (64, 6e9), (64, 5.5e9), (80, 7e9)):
        told = [report(memory_bytes=peak)]
        decision = decider.decide(interval(setting=Setting(1, batch), reports=told))
    assert [(m.batch, m.peak) for m in decision.history.memory] == [(64, 6e9), (80, 7e9)]
    assert decision.history.memory_base == 5e9


def test_a_decision_is_quick() -> None:
    series = Series()
    for _ in range(20):
        series.decide(CALM)
    started = time.process_time()
    for _ in range(50):
        series.decide(CALM)
    assert (time.process_time() - started) / 50 < 0.05  # 5 ms are the goal; this is its order


# Properties

ANY = st.floats() | st.none()
SIZED = st.floats(-1e308, 1e308) | st.sampled_from([0.0, math.inf, -math.inf, math.nan])
DEVICE = st.builds(DeviceUse, ANY, ANY, ANY, ANY, ANY)
TOLD = st.builds(
    Report,
    numbers=st.dictionaries(
        st.sampled_from(NUMBERS), st.floats(allow_nan=False, allow_infinity=False), max_size=9
    ),
    nonfinite=st.sets(st.sampled_from(["loss", "grad_sqr"])).map(frozenset),
)
WILD = st.fixed_dictionaries(
    {
        "duration_s": SIZED,
        "elapsed_s": SIZED,
        "devices": st.lists(DEVICE, max_size=3),
        "network_rate": ANY,
        "host_cpu": ANY,
        "reports": st.lists(TOLD, max_size=8),
        "objective": st.lists(st.floats(), max_size=3),
        "can": st.sets(st.sampled_from(sorted(ALL))).map(frozenset),
        "pressure": ANY,
        "free_gpus": st.integers(-1, 9) | st.none(),
        "acknowledged": st.booleans(),
        "oom_batch": st.integers(1, 5000) | st.none(),
        "ending": st.sampled_from(["done", "oom", "failed", None]),
    }
)


class Scripted:
    """Proposes what it is told to."""

    name = "scripted"
    version = "1"

    def __init__(self) -> None:
        self.next = Proposal(Action(), "")

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        return self.next


PROPOSALS = st.builds(
    Proposal,
    st.builds(Action, st.integers(-5, 5), st.floats(), st.floats()),
    st.just("because"),
    ANY,
)
BOUNDED = Limits(
    gpus_min=1,
    gpus_max=4,
    gpus_are_live=True,
    batch_initial=64,
    batch_min=16,
    batch_max=300,
    lr_scale_min=0.1,
    lr_scale_max=10,
    optimizer="sgd",
    dataset_size=1437,
    drop_last=False,
)


@given(st.lists(st.tuples(WILD, PROPOSALS), min_size=1, max_size=8))
def test_no_sequence_of_states_and_actions_passes_a_limit(
    steps: list[tuple[dict[str, Any], Proposal]],
) -> None:
    policy = Scripted()
    decider = Decider(BOUNDED, policy)
    setting = SETTING
    for seen, policy.next in steps:
        decision = decider.decide(Interval(setting=setting, **seen))
        before, setting = setting, decision.setting
        assert 1 <= setting.gpus <= 4
        assert setting.batch_size is not None
        assert 16 <= setting.batch_size <= 300
        assert 0.1 <= setting.lr_scale <= 10
        assert 0.8 <= decision.action.lr_factor <= 1.2
        if setting.batch_size != before.batch_size:
            assert not 0 < 1437 % setting.batch_size < 2 * setting.gpus
        if seen["free_gpus"] is not None:
            assert setting.gpus - before.gpus <= max(0, seen["free_gpus"])
        if "batch_size" not in seen["can"]:
            assert setting.batch_size == before.batch_size
        if "learning_rate" not in seen["can"]:
            assert setting.lr_scale == before.lr_scale
        check(decision.to_json(), decision.state)


@given(st.lists(WILD, min_size=1, max_size=8))
def test_rules_and_states_stay_finite_for_any_input(steps: list[dict[str, Any]]) -> None:
    decider = Decider(BOUNDED, Rules())
    setting = SETTING
    for seen in steps:
        decision = decider.decide(Interval(setting=setting, **seen))
        setting = decision.setting
        check(decision.to_json(), decision.state)
        assert History.from_json(decision.history.to_json()) == decision.history


def check(record: dict[str, Any], state: State) -> None:
    assert len(state.vector) == 23
    assert all(-1 <= value <= 1 for value in state.vector)
    del record["proposal"]  # as the policy made it
    json.dumps(record, allow_nan=False)
