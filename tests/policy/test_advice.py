from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.advice import ENOUGH, Goodput, Knowledge
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.goodput import SLOTS
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import Advice
from mlflow_rlsched.policy.limits import Limits
from tests.policy.builders import interval, report

LIMITS = Limits(batch_initial=32, batch_max=4096, gpus_max=4, gpus_are_live=True)
INF = float("inf")


def seen(seconds: float, setting: Setting, **changes: object) -> tuple:
    """An interval of steps that took so long, and the history that measured it."""
    told = interval(setting=setting, reports=[report(samples=100.0, time=1.0)], **changes)
    return told, History(throughput=(setting.batch_size or 1) / seconds)


def taught(*timings: tuple[float, int, int]) -> Knowledge:
    known = Knowledge.of({})
    for seconds, gpus, batch in timings:
        known = known.with_interval(*seen(seconds, Setting(gpus, batch)), INF)
    return known


def test_knowledge_goes_through_the_notes() -> None:
    many = [(0.1 + 0.001 * b, 1 + b % 3, 10 + 7 * b) for b in range(SLOTS + 5)]
    for timings in ([], [(0.2, 1, 64)], many):
        known = taught(*timings)
        again = Knowledge.of(json.loads(json.dumps(known.notes())))
        assert again.notes() == known.notes()
        assert (again.parameters == known.parameters).all()
        assert (again.timings.count == known.timings.count).all()


@pytest.mark.parametrize(
    "spoilt",
    [
        {"goodput.gamma": float("nan")},
        {"goodput.seconds.0": -1.0},
        {"goodput.batch.0": 0.0},
        {"goodput.settings": 2.0},
    ],
)
def test_notes_that_are_not_whole_teach_nothing(spoilt: dict[str, float]) -> None:
    known = Knowledge.of(taught((0.2, 1, 64)).notes() | spoilt)
    assert known.timings.settings[0] == 0
    assert known.notes() == {**Knowledge.of({}).notes()}


def test_an_interval_leaves_what_was_known_before_as_it_was() -> None:
    known = taught((0.2, 1, 64))
    before = known.notes()
    known.with_interval(*seen(0.4, Setting(2, 64)), INF)
    assert known.notes() == before


@pytest.mark.parametrize(
    ("changes", "history"),
    [
        ({"reports": ()}, {}),
        ({"acknowledged": False}, {}),
        ({"setting": Setting(1, None)}, {}),
        ({}, {"action": Action(gpu_delta=1)}),  # the restart was part of the interval
        ({}, {"throughput": None}),
        ({}, {"throughput": 0.0}),
    ],
)
def test_an_interval_that_measured_no_setting_teaches_nothing(
    changes: dict[str, object], history: dict[str, object]
) -> None:
    told, remembered = seen(0.2, Setting(1, 64))
    known = Knowledge.of({}).with_interval(
        replace(told, **changes), replace(remembered, **history), INF
    )
    assert known.timings.settings[0] == 0


def test_surprise_is_the_error_of_what_was_predicted_before() -> None:
    known = taught((0.2, 1, 64), (0.2, 1, 64), (0.2, 1, 64))
    assert known.surprise < 0.02
    known = known.with_interval(*seen(2.0, Setting(1, 64)), INF)
    assert known.surprise == pytest.approx(0.3 * np.log(10), rel=0.1)


def test_no_model_no_advice() -> None:
    told, history = seen(0.2, Setting(1, 64))
    assert Knowledge.of({}).advice(told, history, LIMITS, Weights(), INF) == Advice()
    assert Knowledge.of({}).gain(Action(1), told, history, LIMITS, INF) is None


def test_a_device_more_is_advised_and_its_gain_is_predicted() -> None:
    known = taught((1.0, 1, 64), (1.9, 1, 128), (0.52, 2, 64), (1.0, 2, 128))
    told, history = seen(1.0, Setting(2, 128))
    advice = known.advice(told, history, LIMITS, Weights(), INF)
    assert advice.gpu_delta == 2
    assert advice.batch_factor == 1  # nothing is known of the gradient noise
    assert advice.error < 0.1
    assert advice.gain == known.gain(Action(2), told, history, LIMITS, INF)
    assert 0.3 < advice.gain <= 1.1


@pytest.mark.parametrize(
    ("limits", "changes"),
    [({"gpus_are_live": False}, {}), ({"gpus_max": 2}, {}), ({}, {"free_gpus": 0})],
)
def test_devices_that_cannot_be_had_are_not_advised(
    limits: dict[str, object], changes: dict[str, object]
) -> None:
    known = taught((1.0, 1, 64), (1.9, 1, 128), (0.52, 2, 64), (1.0, 2, 128))
    told, history = seen(1.0, Setting(2, 128), **changes)
    advice = known.advice(told, history, replace(LIMITS, **limits), Weights(), INF)
    assert advice.gpu_delta == 0


def test_goodput_raises_a_batch_that_is_far_too_small() -> None:
    """A training whose step time hardly depends on the batch, with very noisy gradients."""
    decider = Decider(LIMITS, Goodput())
    setting, samples, clock = Setting(1, 32), 0.0, 0.0
    decisions = []
    for _ in range(25):
        told = []
        batch = setting.batch_size or 1
        for _ in range(5):
            clock += 1.0
            samples += batch / (0.1 + 1e-4 * batch)
            told.append(
                report(
                    time=clock, samples=samples, loss=1.0, grad_sqr=1.0, grad_var=1e5, step=clock
                )
            )
        decisions.append(
            decider.decide(interval(reports=told, setting=setting, elapsed_s=clock, pressure=0.0))
        )
        setting = decisions[-1].setting
    assert (setting.batch_size or 0) > 8 * 32
    assert "the goodput model (error" in decisions[3].proposal.reason
    assert decisions[3].proposal.predicted_gain == pytest.approx(0.18, abs=0.05)


def back(known: Knowledge, **changes: object) -> tuple[Action, float] | None:
    told = interval(setting=Setting(3, 64), **changes)
    return known.way_back(told, History(), LIMITS, INF)


SLOWER = [(1.0, 1, 32)] * ENOUGH + [(4.0, 3, 64)] * ENOUGH
"""32 samples a second on one device, and 16 on three."""


def test_what_more_devices_did_not_bring_is_taken_back() -> None:
    found = back(taught(*SLOWER))
    assert found is not None
    action, gain = found
    assert action == Action(-2, 0.8)
    assert gain == pytest.approx(1.0, abs=0.1)
    fixed_batch = back(taught(*SLOWER), can=frozenset({"resume"}))
    assert fixed_batch is not None
    assert fixed_batch[0] == Action(-2, 1.0)


@pytest.mark.parametrize(
    "timings",
    [
        [],
        SLOWER[1:],
        SLOWER[:-1],
        [(1.0, 1, 32)] * ENOUGH + [(1.9, 3, 64)] * ENOUGH,  # hardly slower
        [(1.0, 4, 32)] * ENOUGH + [(4.0, 3, 64)] * ENOUGH,  # more devices were faster
    ],
    ids=["nothing", "too little before", "too little after", "no matter", "more devices"],
)
def test_only_what_was_measured_to_be_better_is_gone_back_to(
    timings: list[tuple[float, int, int]],
) -> None:
    assert back(taught(*timings)) is None
