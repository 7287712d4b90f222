"""The learning-rate rule of ``rules``: down when the loss is not calm, up as far as it pays.

Whether a rate is too small cannot be read off a training: a loss falls by the same law, only
slower. So the rule *tries*: it raises the rate by four steps of 20 % (by eight while the loss does
not fall at all), compares how fast the loss falls with what was to be expected, and goes on from
there or takes it all back. What was taken back is not tried again for a while that doubles every
time.

A loss falls about as a power of the samples seen (Hestness et al. 2017, "Deep Learning Scaling
is Predictable, Empirically"), so its speed is that power, -d log(loss) / d log(samples). With a
rate that is too small the power itself falls: what is expected of the next window is the speed of
the last one times its ratio to the one before.

Nothing is risked where nothing is to be gained: not before the loss has begun to fall (a warm-up
is the user's), not when little of it is left, not near the end, and not while consecutive gradients
are opposed, which says that a larger step would overshoot (see ``stability.alignment``); that they
point the same way proves nothing where momentum carries on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.loss import Signals, signals
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.stability import alignment, unrest

TRIAL = FACTOR_MAX**4
FLAT_TRIAL = FACTOR_MAX**8
"""Factor on the learning rate that is tried at once; and while the loss does not fall."""

UNMOVED = 0.9
"""Level of the loss over its first value above which the training has not really begun."""

LITTLE_LEFT = 0.05
"""Level of the loss over its first value below which nothing is risked any more."""

LATE = 0.8
"""Progress from which nothing is risked any more."""

HOPELESS = 4
"""Losses after a cut, none of them finite, from which the weights themselves must be spoilt."""

FIRST_WAIT = 4
LONGEST_WAIT = 64
"""Decisions after a setback before the learning rate goes up again: doubled every time."""

CLEAR = 3.0
"""Standard deviations of the loss's trend from which there is something to compare with."""

RESTLESS = 6.0
"""Range of the newest losses, in usual spreads, from which one that does not fall is not calm."""

PAYING = 1.0
"""Standard deviations of the loss's trend from which a trial may have paid."""

SURE = 2.0
"""Standard errors from which the direction of consecutive gradients is believed."""

_NEWEST = 5
_CLOSE = 1.001  # factors are products of roundings


def rate_proposal(interval: Interval, history: History) -> Proposal:
    """What to do with the learning rate.

    The notes hold, while a trial runs: ``good``, the factor to return to; ``size``, the factor
    that is tried; ``speed``, how fast the loss fell there; ``expected``, how fast it would go on
    to fall; ``since``, the samples seen when half of the trial was done; ``last``, the
    factor at the last decision; ``asked``, 1 once a step was asked for; ``back``, 1 once it is
    being taken back. And always: ``failed``, trials that did not pay, and ``until``, the decision
    before which there is no other.
    """
    notes = dict(history.notes)
    if "learning_rate" not in interval.can:
        return Proposal(Action(), "the training's learning rate cannot be changed", None, notes)
    if not interval.acknowledged:
        return Proposal(Action(), "the last change has not been applied yet", None, notes)
    factor = interval.setting.lr_factor
    if history.setbacks and not history.losses and len(history.nonfinite) >= HOPELESS:
        # The history of losses began anew with the last cut.
        text = "no loss is finite any more, and no learning rate mends that: stop the run"
        return Proposal(Action(), text, None, _at_rest(notes))
    why = unrest(history)
    if why is not None:
        return _change(FACTOR_MIN, f"{why}: a lower learning rate", _at_rest(notes))
    if "good" in notes:
        return _go_on(factor, history, notes)
    wait = max(_wait_after_setback(history), int(notes.get("until", 0)) - history.decisions)
    if wait > 0:
        until = history.decisions + wait
        return Proposal(Action(), f"calm; no higher rate before decision {until}", None, notes)
    if factor < 1 / _CLOSE:
        return _back_up(factor, history, notes)
    return _start(factor, history, notes)


def _start(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    points = [point for point in history.losses if point[0] > history.lr_changed_at]
    earlier, later = signals(points[: len(points) // 2]), signals(points[len(points) // 2 :])
    seen = signals(points)
    if seen is None or earlier is None or later is None:
        return Proposal(Action(), "too few losses since the last change to judge by", None, notes)
    reason = _why_not(seen, history)
    if reason is not None:
        return Proposal(Action(), f"calm; {reason}", None, notes)
    notes |= {"good": factor, "last": factor, "since": history.samples or 0.0}
    if seen.trend < -CLEAR:
        before, speed = _speed(earlier, history), _speed(later, history)
        notes |= {"size": TRIAL, "speed": speed, "expected": _expected(before, speed)}
        return _change(FACTOR_MAX, "calm: trying a higher learning rate", notes)
    notes |= {"size": FLAT_TRIAL, "speed": 0.0, "expected": 0.0}
    return _change(FACTOR_MAX, "the loss does not fall: trying a higher learning rate", notes)


def _why_not(seen: Signals, history: History) -> str | None:
    """Why no trial begins although the training is calm, if so."""
    first = history.loss_first or 0.0
    if seen.level < LITTLE_LEFT * first:
        return "little of the loss is left"
    if seen.trend > -CLEAR:
        newest = [loss for _, loss in history.losses[-_NEWEST:]]
        if seen.level > UNMOVED * first:
            return "the loss has not begun to fall"
        if max(newest) - min(newest) > RESTLESS * (history.spread_usual or math.inf):
            return "the loss varies more than usual"
    if history.progress is not None and history.progress > LATE:
        return "the run is near its end"
    if _opposed(history):
        return "the learning rate fits: consecutive gradients are opposed"
    return None


def _expected(before: float, speed: float) -> float:
    """Speed in the next window, after those of the last two."""
    speed = max(speed, 0.0)
    return speed * min(1.0, speed / before) if before > 0 else speed


def _go_on(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    """The next decision of a trial."""
    good = notes["good"]
    if notes.get("back"):
        return _return(factor, notes, "going back to the learning rate before the trial")
    if _opposed(history):
        return _take_back(factor, history, notes, "consecutive gradients are opposed")
    top = good * notes["size"]
    stuck = factor == notes["last"] and factor < top / _CLOSE
    if stuck and history.action.lr_factor == 1 and notes.get("asked"):
        return _take_back(factor, history, notes, "it cannot go higher")
    notes["last"] = factor
    if factor < top / FACTOR_MAX**2 * _CLOSE:
        notes["since"] = history.samples or 0.0
    if factor < top / _CLOSE:
        step = min(FACTOR_MAX, top / factor)
        return _change(step, "trying a higher learning rate", notes | {"asked": 1.0})
    seen = _since(history, notes["since"])
    if seen is None:
        return Proposal(Action(), "waiting for what the higher learning rate does", None, notes)
    speed, expected = _speed(seen, history), notes["expected"]
    told = f"the loss falls with power {speed:.2f} of the samples, expected {expected:.2f}"
    if seen.trend > -PAYING:
        told += ", and not clearly"
    if speed < expected or seen.trend > -PAYING:
        return _take_back(factor, history, notes, told)
    notes |= {"good": factor, "expected": _expected(notes["speed"], speed), "speed": speed}
    notes |= {"size": TRIAL}
    if _why_not(seen, history) is not None:
        return Proposal(Action(), f"the higher learning rate pays ({told})", None, _at_rest(notes))
    return _change(FACTOR_MAX, f"the higher learning rate pays ({told})", notes)


def _take_back(factor: float, history: History, notes: dict[str, float], why: str) -> Proposal:
    failed = notes.get("failed", 0) + 1
    wait = min(FIRST_WAIT * 2**failed, LONGEST_WAIT)
    notes |= {"back": 1.0, "failed": failed, "until": history.decisions + wait}
    return _return(factor, notes, f"the higher learning rate does not pay ({why}): taken back")


def _return(factor: float, notes: dict[str, float], why: str) -> Proposal:
    good = notes["good"]
    if factor <= good * _CLOSE:
        return Proposal(Action(), "calm at the learning rate before", None, _at_rest(notes))
    return _change(max(FACTOR_MIN, good / factor), why, notes)


def _back_up(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    if _opposed(history):
        return Proposal(Action(), "calm at the lowered learning rate", None, notes)
    step = min(FACTOR_MAX, 1 / factor)
    return _change(step, "calm: the learning rate goes back up", notes)


def _change(step: float, why: str, notes: Mapping[str, float]) -> Proposal:
    return Proposal(Action(lr_factor=step), why, None, notes)


def _at_rest(notes: Mapping[str, float]) -> dict[str, float]:
    return {name: notes[name] for name in ("failed", "until") if name in notes}


def _since(history: History, samples: float) -> Signals | None:
    """Statistics of the losses after so many samples; None for too few."""
    return signals([point for point in history.losses if point[0] > samples])


def _speed(seen: Signals, history: History) -> float:
    """The power of the samples seen with which the loss falls."""
    return -seen.slope * (history.samples or 0.0) / max(abs(seen.level), 1e-12)


def _opposed(history: History) -> bool:
    """Whether gradients say that the steps overshoot; a loss that falls knows better."""
    seen = signals(history.losses)
    return alignment(history.gradients)[1] < -SURE and not (seen is not None and seen.falls)


def _wait_after_setback(history: History) -> int:
    if history.setback_at is None or not history.setbacks:
        return 0
    wait = min(FIRST_WAIT << min(history.setbacks - 1, 16), LONGEST_WAIT)
    return history.setback_at + wait - history.decisions
