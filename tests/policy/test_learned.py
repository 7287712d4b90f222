from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.action import NO_CHANGE, Setting
from mlflow_rlsched.policy.advice import ENOUGH, Knowledge
from mlflow_rlsched.policy.baselines import Rules
from mlflow_rlsched.policy.checkpoint import HEADS, Version
from mlflow_rlsched.policy.ddpg import Learner
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import INPUTS, STATE
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.measuring import observe
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.rate import rate_proposal
from mlflow_rlsched.policy.state import build_state
from tests.policy.builders import interval, report, reports
from tests.policy.toy import train

LIMITS = Limits(batch_initial=64, batch_max=4096, gpus_max=4, gpus_are_live=True)


def version(*, seen: float = 2.0, optional: tuple[str, ...] = STATE) -> Version:
    """An actor that lowers the learning rate, trained on inputs up to ``seen``."""
    learner = Learner(seed=1)
    learner.observe(np.full((4, len(INPUTS)), seen, np.float32))
    learner.observe(np.full((4, len(INPUTS)), -seen, np.float32))
    arrays = learner.arrays()
    arrays["actor.body.4.bias"][-1] = -0.5
    return Version(arrays, optional=optional)


def propose(
    policy: Ddpg, told: Interval | None = None, history: History | None = None
) -> tuple[Proposal, Interval, History]:
    told = told or interval(reports=reports([1.0, 0.9, 0.8, 0.8, 0.7, 0.7]))
    observed = observe(history or History(), told, LIMITS)
    state = build_state(observed, told, LIMITS)
    return policy.propose(state, told, observed, LIMITS), told, observed


def test_it_does_what_the_actor_says(tmp_path: Path) -> None:
    trained = version()
    trained.save(tmp_path / "policy")
    policy = Ddpg(Version.read(tmp_path / "policy"))
    proposal, *_ = propose(policy)
    assert policy.name == "ddpg"
    assert policy.version == trained.name
    assert proposal.action.lr_factor == pytest.approx(1 - 0.2 * np.tanh(0.5), abs=0.02)
    assert proposal.action.gpu_delta == 0
    assert "learning rate times 0.9" in proposal.reason


def test_the_rules_set_the_rate_where_the_actor_was_not_taught_to(tmp_path: Path) -> None:
    taught = replace(version(), heads=("gpus", "batch_size"))
    taught.arrays["actor.body.4.bias"][-2] = 0.5
    taught.save(tmp_path / "policy")
    policy = Ddpg(Version.read(tmp_path / "policy"), explores="a run")
    proposal, told, observed = propose(policy)
    rules = rate_proposal(told, observed)
    assert proposal.action.lr_factor == rules.action.lr_factor
    assert proposal.action.batch_factor > 1.03
    assert proposal.reason.endswith(f"; {rules.reason}")
    assert proposal.notes.items() >= rules.notes.items()
    assert proposal.noise[1] == 0.0 != proposal.noise[0]


@pytest.mark.parametrize("bias", [0.5, -0.5])
def test_the_batch_rests_while_a_rate_is_tried(bias: float) -> None:
    trained = replace(version(), heads=("gpus", "batch_size"))
    trained.arrays["actor.body.4.bias"][-2] = bias
    trial = {"good": 1.0, "last": 1.0, "size": 1.2**4, "expected": 0.1, "error": 0.1}
    proposal, *_ = propose(Ddpg(trained), history=History(notes=trial))
    assert proposal.action.lr_factor == 1.2
    assert proposal.action.batch_factor == 1.0
    assert proposal.predicted_gain is None


def test_devices_that_the_run_has_shown_to_cost_speed_are_given_back() -> None:
    """Steps of 64 samples took 0.16 s on one device, and take 0.64 s on three."""
    known = Knowledge.of({})
    for gpus, seconds in [(1, 0.16)] * ENOUGH + [(3, 0.64)] * 10:
        told = interval(setting=Setting(gpus, 64), reports=[report(samples=100.0, time=1.0)])
        known = known.with_interval(told, History(throughput=64 / seconds), float("inf"))
    history = History(notes=known.notes())
    told = interval(setting=Setting(3, 64), reports=reports([1.0, 0.9, 0.8, 0.8, 0.7, 0.7]))
    proposal, *_ = propose(Ddpg(version()), told, history)
    assert proposal.action.gpu_delta == -2
    assert "on fewer devices" in proposal.reason
    kept = replace(told, can=told.can - {"resume"})
    assert "on fewer devices" not in propose(Ddpg(version()), kept, history)[0].reason


def test_no_batch_is_set_against_what_the_run_has_shown() -> None:
    """All steps take as long, and the gradients' noise is not known: a smaller batch is slower."""
    trained = replace(version(), heads=("gpus", "batch_size"))
    trained.arrays["actor.body.4.bias"][-2] = -0.5
    proposal, told, observed = propose(Ddpg(trained))
    proposal, *_ = propose(Ddpg(trained), told, replace(observed, notes=proposal.notes))
    assert proposal.action.batch_factor == 1.0
    assert "learned: no change" in proposal.reason


@pytest.mark.parametrize(
    ("gpus", "noise", "changes"),
    [(1, None, False), (1, 0.5, False), (1, 0.001, True), (4, None, True), (4, 0.5, True)],
)
def test_another_batch_alone_has_to_pay_clearly(
    gpus: int, noise: float | None, changes: bool
) -> None:
    """The gradients are so noisy that a larger batch costs nothing; steps take as long."""
    trained = replace(version(), heads=("gpus", "batch_size"))
    trained.arrays["actor.body.4.bias"][-2] = 0.5
    limits = replace(LIMITS, gpus_max=gpus)
    told = interval(reports=reports([1.0] * 6, grad_sqr=1.0, grad_var=1e6))
    known = replace(observe(History(), told, limits), throughput_noise=noise)
    state = build_state(known, told, limits)
    proposal = Ddpg(trained).propose(state, told, known, limits)
    assert (proposal.action.batch_factor != 1.0) == changes


@pytest.mark.parametrize(
    ("head", "bias"), [("gpus", (-3, 9.0)), ("batch_size", (-2, 1.0)), ("learning_rate", (-1, 1.0))]
)
def test_it_leaves_what_it_has_no_head_for(head: str, bias: tuple[int, float]) -> None:
    trained = replace(version(), heads=tuple(set(HEADS) - {head}))
    trained.arrays["actor.body.4.bias"][bias[0]] = bias[1]
    action = propose(Ddpg(trained))[0].action
    changed = {
        "gpus": action.gpu_delta != 0,
        "batch_size": action.batch_factor != 1,
        "learning_rate": action.lr_factor > 1.1,
    }
    assert not changed[head]


def test_what_the_training_cannot_do_is_not_proposed() -> None:
    told = interval(reports=reports([1.0] * 6), can=frozenset())
    proposal, *_ = propose(Ddpg(version()), told)
    assert proposal.action == NO_CHANGE


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            Ddpg(version(optional=tuple(set(STATE) - {"power"}))),
            "power is not known, and the policy was trained with it",
        ),
        (
            Ddpg(version(), Weights(alpha=3)),
            "alpha is 3, and the policy was trained on -2 to 2",
        ),
    ],
)
def test_the_rules_decide_where_it_was_not_trained(policy: Ddpg, says: str) -> None:
    proposal, told, observed = propose(policy)
    state = build_state(observed, told, LIMITS)
    rules = Rules().propose(state, told, observed, LIMITS)
    assert proposal.action == rules.action
    assert proposal.reason == f"the rules decide, as {says}: {rules.reason}"
    assert proposal.notes.items() >= rules.notes.items()


def test_the_rules_decide_once_its_predictions_are_wrong() -> None:
    policy = Ddpg(version())
    history, reasons = History(), []
    for place in range(8):
        # The speed changes by ten times from one interval to the next, at one setting.
        pace = 10.0 if place % 2 else 1.0
        told = reports([1.0] * 6, 6 * place)
        told = [
            replace(r, numbers={**r.numbers, "samples": 1e4 * place + pace * 100 * k})
            for k, r in enumerate(told)
        ]
        proposal, _, observed = propose(policy, interval(reports=told), history)
        history = replace(observed, notes=proposal.notes)
        reasons.append(proposal.reason)
    assert reasons[0].startswith("learned")
    assert "its predictions of the step time were off by" in reasons[-1]


def test_the_reward_weights_reach_the_actor() -> None:
    trained = version()
    trained.arrays["actor.body.0.weight"][0, INPUTS.index("beta")] = 5
    trained.arrays["actor.body.2.weight"][0, 0] = 5
    trained.arrays["actor.body.4.weight"][-1, 0] = 1
    low, high = (
        propose(Ddpg(trained, Weights(beta=beta)))[0].action.lr_factor for beta in (0.1, 1.5)
    )
    assert high > low


def test_it_drives_a_training_through_the_guard() -> None:
    _, decisions = train(Ddpg(version()), 0.3, seed=0, most_s=100, target=0.0)
    assert len(decisions) == 20
    assert all(np.isfinite(d.setting.lr_scale) for d in decisions)
    assert any(d.reason.startswith("learned") for d in decisions)


def test_the_same_record_gives_the_same_proposal() -> None:
    decider = Decider(LIMITS, Ddpg(version()))
    for place in range(4):
        decider.decide(interval(reports=reports([1.0, 0.9] * 3, 6 * place)))
    told = interval(reports=reports([0.5] * 6, 24))
    again = History.from_json(decider.history.to_json())
    first = propose(Ddpg(version()), told, decider.history)[0]
    assert propose(Ddpg(version()), told, again)[0] == first
