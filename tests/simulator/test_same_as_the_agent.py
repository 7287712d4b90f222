"""The arrays of the simulator against the code that the agent runs, on random runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import Action, Setting
from mlflow_rlsched.policy.decision import Decider, Decision
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.reward import absorbing, discount
from mlflow_rlsched.policy.state import State
from mlflow_rlsched.simulator.environment import RunEnvironment
from mlflow_rlsched.simulator.guards import Actions
from mlflow_rlsched.simulator.parameters import Ranges

RUNS = 20
STEPS = 120
WEIGHTS = (0.7, 0.4, 3.0, 0.2)
# Short runs with rates and batches near their limits, so that all that can happen does.
RANGES = Ranges(
    decisions=(20, 60),
    length_s=(100, 3000),
    memory_use=(0.2, 0.9),
    gpus_max=(2, 8),
    failures=(1e-3, 1e-2),
    unread=(0.1, 0.5),
)


@dataclass
class Told:
    """Proposes what it was told to."""

    name: str = "told"
    version: str = "1"
    proposal: Proposal = field(default_factory=lambda: Proposal(Action(), "a test"))

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        return self.proposal


@dataclass(frozen=True)
class Case:
    """An interval of a run, and what both ways made of it and of the decision at its end."""

    interval: Interval
    decision: Decision
    state: np.ndarray
    reward: float | None  # None for a run's first interval
    noise: float
    step_rate: float
    restless: bool
    horizon: float
    action: np.ndarray | None  # None for a run's last interval
    followed_by: Setting


def random_actions(random: np.random.Generator) -> Actions:
    def factor() -> Any:
        return np.where(random.random(RUNS) < 0.3, 1.0, random.uniform(0.8, 1.2, RUNS))

    gain = np.where(random.random(RUNS) < 0.2, np.nan, random.normal(0.3, 0.5, RUNS))
    return Actions(random.integers(-2, 3, RUNS) * 1.0, factor(), factor(), gain)


def proposal(actions: Actions, run: int) -> Proposal:
    gain = float(actions.predicted_gain[run])
    action = Action(
        int(actions.gpu_delta[run]),
        float(actions.batch_factor[run]),
        float(actions.lr_factor[run]),
    )
    return Proposal(action, "a test", None if np.isnan(gain) else gain)


def weights() -> Weights:
    names = ("alpha", "beta", "gamma", "smoothness")
    return Weights(**dict(zip(names, WEIGHTS, strict=True)))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Random decisions, made on all runs at once and on each one by the agent's ``Decider``."""
    environment = RunEnvironment(RUNS, seed=3, ranges=RANGES, weights=WEIGHTS)
    runs, history = environment.runs, environment.history
    deciders = [Decider(runs.bounds.of(run), Told(), weights()) for run in range(RUNS)]
    random = np.random.default_rng(4)
    over = new = np.zeros(RUNS, bool)
    states, rewards = environment.states, np.full(RUNS, np.nan)
    found = []
    for _ in range(STEPS):
        actions = random_actions(random)
        intervals = [environment.seen.interval(run) for run in range(RUNS)]
        horizons = runs.parameters.horizon_s.copy()
        noise, restless = history.throughput_noise.copy(), history.unrest.copy()
        step_rates = history.step_rate.copy()
        decisions = []
        for run, decider in enumerate(deciders):
            decider.policy = Told(proposal=proposal(actions, run))
            decisions.append(decider.decide(intervals[run]))
        step = environment.decide(actions)
        found += [
            Case(
                intervals[run],
                decisions[run],
                states[run],
                None if new[run] or np.isnan(rewards[run]) else float(rewards[run]),
                float(noise[run]),
                float(step_rates[run]),
                bool(restless[run]),
                float(horizons[run]),
                None if over[run] else history.action[run].copy(),
                runs.settings.of(run),
            )
            for run in range(RUNS)
        ]
        for run in np.flatnonzero(over):
            deciders[run] = Decider(runs.bounds.of(run), Told(), weights())
        states, rewards = step.states, step.rewards
        over, new = step.terminated | step.truncated, over
    return found


def test_the_states_are_the_same(cases: list[Case]) -> None:
    for case in cases:
        assert case.state == pytest.approx(case.decision.state.vector, abs=1e-9)


def test_what_the_guard_leaves_is_the_same(cases: list[Case]) -> None:
    decided = [case for case in cases if case.action is not None]
    for case in decided:
        assert case.action == pytest.approx(case.decision.action.encoded(), abs=1e-9)
    assert {case.decision.action.gpu_delta for case in decided} == {-2, -1, 0, 1, 2}
    vetoes = " ".join(veto for case in decided for veto in case.decision.vetoes)
    for words in (
        "gpus.max",
        "free",
        "GB",
        "memory ran out",
        ": on ",
        "restart",
        "noise",
        "not yet",
    ):
        assert words in vetoes


def test_the_settings_are_the_same(cases: list[Case]) -> None:
    # A run that ran out of memory or lost a device goes on with less than was decided.
    kept = [
        (case.decision.setting, case.followed_by)
        for case in cases
        if case.action is not None
        and case.followed_by.gpus == case.decision.setting.gpus
        and case.followed_by.batch_size == case.decision.setting.batch_size
    ]
    assert len(kept) > 0.9 * len(cases)
    for decided, followed_by in kept:
        assert followed_by.lr_scale == pytest.approx(decided.lr_scale)
        assert followed_by.lr_factor == pytest.approx(decided.lr_factor)


def test_the_histories_agree_on_what_the_state_does_not_show(cases: list[Case]) -> None:
    for case in cases:
        history = case.decision.history
        for told, known in (
            (case.noise, history.throughput_noise),
            (case.step_rate, history.step_rate),
        ):
            assert told == pytest.approx(np.nan if known is None else known, nan_ok=True)
    assert {case.restless for case in cases} == {True, False}


def test_the_rewards_are_the_same(cases: list[Case]) -> None:
    endings = set()
    for case in cases:
        if case.reward is None:
            continue
        expected = case.decision.reward.total
        if case.interval.ending == "done":
            scales = case.decision.terms.scales
            rest = absorbing(case.horizon - case.interval.elapsed_s, weights(), scales)
            expected += discount(case.interval.duration_s, scales) * rest
        assert case.reward == pytest.approx(expected, abs=1e-9)
        endings.add(case.interval.ending)
    assert endings >= {None, "done", "oom", "diverged"}


def test_all_that_can_happen_happened(cases: list[Case]) -> None:
    intervals = [case.interval for case in cases]
    assert any(not interval.acknowledged for interval in intervals)
    assert any(not interval.reports for interval in intervals)
    assert any(report.nonfinite for interval in intervals for report in interval.reports)
    missing = {name for case in cases for name in case.decision.state.missing}
    assert {"noise_scale", "progress", "gpu_utilisation", "loss_oscillation"} <= missing
