"""The learning-rate rule on a closed-form training with a simulated clock."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from mlflow_rlsched.policy.action import NO_CHANGE
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.rate import FEWEST, FURTHER, LONGEST, SURE, TRIAL, rate_proposal
from mlflow_rlsched.policy.speed import speed_of
from tests.policy.builders import SETTING, Series, interval, reports
from tests.policy.toy import train

CALM = [1.0, 1.01, 0.99, 1.0, 1.01]

SEEDS = range(4)


def samples(policy: Fixed | Rules, rate: float) -> float:
    """Mean samples to the target; a run that did not get there counts what it saw."""
    runs = [train(policy, rate, seed, most_s=1500)[0] for seed in SEEDS]
    return fmean(run.samples_to_target or run.samples for run in runs)


@pytest.mark.parametrize(("rate", "ratio"), [(0.003, 0.3), (0.01, 0.5), (0.03, 0.8)])
def test_a_rate_that_is_too_small_is_raised(rate: float, ratio: float) -> None:
    assert samples(Rules(), rate) < ratio * samples(Fixed(), rate)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_a_good_rate_is_not_spoilt(rate: float) -> None:
    assert samples(Rules(), rate) < 1.05 * samples(Fixed(), rate)


@pytest.mark.parametrize(("rate", "ratio"), [(1.7, 0.7), (2.5, 0.5)])
def test_a_rate_that_is_too_high_is_lowered(rate: float, ratio: float) -> None:
    assert samples(Rules(), rate) < ratio * samples(Fixed(), rate)


def test_what_did_not_pay_is_taken_back_and_tried_ever_more_rarely() -> None:
    _, decisions = train(Rules(), 0.3, seed=1, target=0.0, most_s=2000)
    factors = [decision.setting.lr_factor for decision in decisions]
    raises = [
        place
        for place, (a, b) in enumerate(pairwise(factors))
        if b > a and a == pytest.approx(1, rel=0.01)
    ]
    assert max(factors) < 3
    assert len(raises) < 8
    assert 0.4 < factors[-1] < 2.2  # a trial may be under way


def test_losses_that_stay_wild_after_a_cut_are_not_met_with_cut_after_cut() -> None:
    series = Series()
    series.decide(CALM)
    decisions = [series.decide([math.nan] * 5) for _ in range(10)]
    factors = [decision.setting.lr_factor for decision in decisions]
    assert factors[0] == 0.8
    assert min(factors) >= 0.8**2
    assert "no learning rate mends that" in decisions[-1].reason
    assert "calm" in [series.decide(CALM) for _ in range(4)][-1].reason


@pytest.mark.parametrize(("level", "kept"), [(1.0, True), (0.05, False)])
def test_a_loss_that_only_comes_down_from_a_raise_does_not_pay(level: float, kept: bool) -> None:
    """Losses that fall fast and surely, from 1.0 on; before the raise they were at ``level``."""
    points = [(0.1 * n, 1 - 0.1 * n) for n in range(LONGEST)]
    trial = {"good": 1.0, "last": TRIAL, "size": TRIAL, "expected": 0.1, "error": 0.01}
    notes = trial | sums_of(points) | {"speed.x0": math.log(1000.0), "speed.y0": 1.0}
    notes |= {"level": level, "samples": 1000.0, "speed.changed": History().lr_changed_at}
    setting = replace(SETTING, lr_factor=TRIAL, lr_scale=TRIAL)
    history = History(notes=notes, samples=1000.0 * math.exp(points[-1][0]))
    proposal = rate_proposal(interval(setting=setting), history)
    assert ("pays (" in proposal.reason) == kept
    assert ("not as low as it would be): taken back" in proposal.reason) != kept


@pytest.mark.parametrize(
    ("losses", "usual", "over"),
    [
        ([1.3], 0.01, True),
        ([0.5, 9.0, 0.5], 0.01, False),
        ([1.3], 0.5, False),
        ([1.3], None, False),
        ([], 0.01, False),
    ],
    ids=["exploded", "one bad batch", "within its usual spread", "no usual spread", "none told"],
)
def test_a_trial_whose_loss_explodes_is_taken_back_before_there_is_a_trend(
    losses: list[float], usual: float | None, over: bool
) -> None:
    trial = {"good": 1.0, "last": 1.2, "size": TRIAL, "expected": 0.1, "error": 0.01}
    history = History(
        notes=trial | {"asked": 1.0, "speed.changed": History().lr_changed_at},
        loss_first=2.0,
        loss_best=0.5,
        spread_usual=usual,
    )
    setting = replace(SETTING, lr_factor=1.44, lr_scale=1.44)
    proposal = rate_proposal(interval(setting=setting, reports=reports(losses)), history)
    assert (proposal.action.lr_factor < 1) == over
    assert ("climbed from 0.5 to 1.3): taken back" in proposal.reason) == over
    assert proposal.notes.get("ceiling") == (1.44 if over else None)


def sums_of(points: list[tuple[float, float]]) -> dict[str, float]:
    """What the notes hold of such (x, y)."""
    return {
        "speed.n": float(len(points)),
        "speed.x": sum(x for x, _ in points),
        "speed.y": sum(y for _, y in points),
        "speed.xx": sum(x * x for x, _ in points),
        "speed.xy": sum(x * y for x, y in points),
        "speed.yy": sum(y * y for _, y in points),
    }


@pytest.mark.parametrize(("bad", "lowered"), [(1, False), (2, True)])
def test_a_loss_that_explodes_is_met_before_there_is_a_trend(bad: int, lowered: bool) -> None:
    losses = tuple((float(n), loss) for n, loss in enumerate(CALM + [9.0] * bad))
    history = History(losses=losses, loss_first=2.0, loss_best=1.0, spread_usual=0.01)
    proposal = rate_proposal(interval(), history)
    assert ("has climbed from 1 to 9: a lower" in proposal.reason) == lowered
    assert (proposal.action.lr_factor < 1) == lowered


def test_a_trial_that_seems_to_pay_is_given_time_to_be_sure() -> None:
    """Six losses that fall four times as fast as before, give or take a half of that."""
    errors = [0.05, -0.06, 0.0, 0.06, -0.06, 0.02]
    points = [(0.1 * n, 1 - 0.04 * n + error) for n, error in enumerate(errors)]
    trial = {"good": 1.0, "last": TRIAL, "size": TRIAL, "expected": 0.1, "error": 0.01}
    notes = trial | sums_of(points)
    speed = speed_of(notes)
    assert 0.1 + speed.error < speed.value < SURE * speed.error
    setting = replace(SETTING, lr_factor=TRIAL, lr_scale=TRIAL)
    history = History(notes=notes | {"speed.changed": History().lr_changed_at})
    proposal = rate_proposal(interval(setting=setting), history)
    assert proposal.action == NO_CHANGE
    assert "waiting" in proposal.reason
    late = replace(history, notes=history.notes | {"speed.n": float(LONGEST)})
    assert "taken back" in rate_proposal(interval(setting=setting), late).reason


def test_a_trial_goes_on_after_its_attempt_was_killed() -> None:
    decider = Decider(Limits(batch_initial=64), Rules())
    trial = {"good": 1.0, "last": 1.2, "since": 0.0, "size": 2.07, "speed": 0.1, "expected": 0.1}
    decider.history = History(notes={**trial, "asked": 1.0})
    decider.policy = Fixed("attempt 1 ended (killed)", Rules())
    ended = decider.decide(interval(setting=replace(SETTING, lr_factor=1.44, lr_scale=1.44)))
    assert ended.history.notes["good"] == 1.0


@pytest.mark.parametrize(("progress", "near"), [(0.5, False), (0.99, True), (1.0, False)])
def test_nothing_is_tried_near_the_end_but_beyond_a_plan_no_end_is_known(
    progress: float, near: bool
) -> None:
    points = [(0.1 * n, 1 - 0.1 * n) for n in range(LONGEST)]
    notes = sums_of(points) | {"speed.x0": math.log(1000.0), "speed.y0": 1.0}
    history = History(
        notes=notes | {"speed.changed": History().lr_changed_at},
        samples=1000.0 * math.exp(points[-1][0]),
        losses=tuple((1000.0 * math.exp(x), y) for x, y in points),
        loss_first=2.0,
        decisions=100,
        progress=progress,
    )
    proposal = rate_proposal(interval(), history)
    assert ("near its end" in proposal.reason) == near
    assert ("trying a higher" in proposal.reason) != near


def falling(level: float, spread: float, **changes: object) -> History:
    """Losses round ``level`` of the first one, none of which is clearly below the one before."""
    losses = [2 * level + spread * (-1) ** n for n in range(LONGEST)]
    points = [(0.1 * n, loss / losses[0]) for n, loss in enumerate(losses)]
    notes = sums_of(points) | {"speed.x0": math.log(1000.0), "speed.y0": losses[0]}
    values: dict[str, object] = {
        "notes": notes | {"speed.changed": History().lr_changed_at},
        "samples": 1000.0 * math.exp(points[-1][0]),
        "losses": tuple(
            (1000.0 * math.exp(x), y) for (x, _), y in zip(points, losses, strict=True)
        ),
        "loss_first": 2.0,
        "decisions": 100,
        "progress": 0.5,
    }
    return History(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "progress", "says"),
    [
        (0.3, 0.5, "the loss no longer clearly falls"),
        (1.0, 0.05, "the loss has not begun to fall"),
        (1.0, 0.5, "the loss does not fall: trying a lower learning rate"),
        (1.0, None, "the loss does not fall: trying a lower learning rate"),
    ],
)
def test_what_has_learnt_and_no_longer_does_is_left_alone(
    level: float, progress: float | None, says: str
) -> None:
    history = falling(level, 0.01, progress=progress)
    assert says in rate_proposal(interval(), history).reason


@pytest.mark.parametrize(("size", "judged"), [(TRIAL, True), (1 / TRIAL, False)])
def test_a_lower_rate_is_judged_at_the_end_of_its_trial_only(size: float, judged: bool) -> None:
    """Losses that fall fast and surely from the first one on."""
    points = [(0.1 * n, 1 - 0.1 * n) for n in range(FEWEST)]
    trial = {"good": 1.0, "last": size, "size": size, "expected": 0.1, "error": 0.01}
    notes = trial | sums_of(points) | {"speed.changed": History().lr_changed_at}
    notes |= {"speed.x0": math.log(1000.0), "speed.y0": 1.0}
    losses = tuple((1000.0 * math.exp(x), y) for x, y in [(0.0, 1.0)] * 3 + points)
    history = History(notes=notes, samples=1500.0, losses=losses, loss_first=2.0)
    setting = replace(SETTING, lr_factor=size, lr_scale=size)
    proposal = rate_proposal(interval(setting=setting), history)
    assert ("pays (" in proposal.reason) == judged
    assert ("waiting" in proposal.reason) != judged
    assert proposal.notes.get("size") == (FURTHER if judged else size)


@pytest.mark.parametrize(("failed", "until"), [(0.0, 108), (1.0, 150), (3.0, 164)])
def test_trials_in_vain_become_rarer(failed: float, until: int) -> None:
    trial = {"good": 1.0, "last": 1.2, "size": TRIAL, "expected": 0.1, "error": 0.01, "asked": 1.0}
    notes = trial | {"failed": failed, "speed.changed": History().lr_changed_at}
    setting = replace(SETTING, lr_factor=1.2, lr_scale=1.2)
    history = History(notes=notes, decisions=100)
    proposal = rate_proposal(interval(setting=setting), history)
    assert "it cannot go further" in proposal.reason
    assert proposal.notes["until"] == until
