"""The learning-rate rule of ``rules``: down when the loss is not calm, up as far as it pays.

Whether a rate is too small cannot be read off a training: a loss falls by the same law, only
slower. So the rule *tries*: it raises the rate in four steps of 20 %, compares how fast the loss
falls with before, and goes on from there or takes it all back. What was taken back is not tried
again for a while that doubles every time.

A loss falls about as a power of the samples seen (Hestness et al. 2017, "Deep Learning Scaling
is Predictable, Empirically"), so its speed is that power, -d log(loss) / d log(samples): it stays
the same while nothing changes, and rises when a higher rate pays.

Consecutive gradients that are opposed say that a larger rate would overshoot (see
``stability.alignment``); that they point the same way proves nothing where momentum carries on.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.loss import Signals, signals
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.stability import alignment, unrest

TRIAL = FACTOR_MAX**4
"""Factor on the learning rate that is tried at once."""

PAID = 1.15
"""Speed after a trial over the speed before from which it has paid."""

FIRST_WAIT = 4
LONGEST_WAIT = 64
"""Decisions after a setback before the learning rate goes up again: doubled every time."""

CLEAR = 3.0
"""Standard deviations of the loss's trend from which there is something to compare with."""

SURE = 2.0
"""Standard errors from which the direction of consecutive gradients is believed."""

_CLOSE = 1.001  # factors are products of roundings


def rate_proposal(interval: Interval, history: History) -> Proposal:
    """What to do with the learning rate.

    The notes hold, while a trial runs: ``good``, the factor to return to; ``speed``, how fast
    the loss fell there; ``since``, the samples seen when half of the trial was done; ``last``, the
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
    why = unrest(history)
    if why is not None:
        return _change(FACTOR_MIN, f"{why}: a lower learning rate", _without_trial(notes))
    if "good" in notes:
        return _go_on(factor, history, notes)
    wait = max(_wait_after_setback(history), int(notes.get("until", 0)) - history.decisions)
    if wait > 0:
        return Proposal(Action(), f"calm; no higher rate for {wait} decisions", None, notes)
    if factor < 1 / _CLOSE:
        return _back_up(factor, history, notes)
    return _start(factor, history, notes)


def _start(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    seen = _since(history, history.lr_changed_at)
    if seen is None:
        return Proposal(Action(), "too few losses were reported to judge by", None, notes)
    if _opposed(history):
        return Proposal(
            Action(), "calm; the learning rate fits: consecutive gradients are opposed", None, notes
        )
    if seen.trend > -CLEAR:
        return Proposal(Action(), "calm; the loss does not fall enough to compare", None, notes)
    notes |= {"good": factor, "speed": _speed(seen, history)}
    notes |= {"last": factor, "since": history.samples or 0.0}
    return _change(FACTOR_MAX, "calm: trying a higher learning rate", notes)


def _go_on(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    """The next decision of a trial."""
    good = notes["good"]
    if notes.get("back"):
        return _return(factor, notes, "going back to the learning rate before the trial")
    if _opposed(history):
        return _take_back(factor, history, notes, "consecutive gradients are opposed")
    stuck = factor == notes["last"] and factor < good * TRIAL / _CLOSE
    if stuck and history.action.lr_factor == 1 and notes.get("asked"):
        return _take_back(factor, history, notes, "it cannot go higher")
    notes["last"] = factor
    if factor < good * FACTOR_MAX**2 * _CLOSE:
        notes["since"] = history.samples or 0.0
    if factor < good * TRIAL / _CLOSE:
        step = min(FACTOR_MAX, good * TRIAL / factor)
        return _change(step, "trying a higher learning rate", notes | {"asked": 1.0})
    seen = _since(history, notes["since"])
    if seen is None:
        return Proposal(Action(), "waiting for what the higher learning rate does", None, notes)
    speed, before = _speed(seen, history), notes["speed"]
    if speed < PAID * before or not seen.falls:
        return _take_back(factor, history, notes, _told(speed, before))
    notes |= {"good": factor, "speed": speed}
    return _change(FACTOR_MAX, f"the higher learning rate pays ({_told(speed, before)})", notes)


def _take_back(factor: float, history: History, notes: dict[str, float], why: str) -> Proposal:
    failed = notes.get("failed", 0) + 1
    wait = min(FIRST_WAIT * 2**failed, LONGEST_WAIT)
    notes |= {"back": 1.0, "failed": failed, "until": history.decisions + wait}
    return _return(factor, notes, f"the higher learning rate does not pay ({why}): taken back")


def _return(factor: float, notes: dict[str, float], why: str) -> Proposal:
    good = notes["good"]
    if factor <= good * _CLOSE:
        return Proposal(Action(), "calm at the learning rate before", None, _without_trial(notes))
    return _change(max(FACTOR_MIN, good / factor), why, notes)


def _back_up(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    if _opposed(history):
        return Proposal(Action(), "calm at the lowered learning rate", None, notes)
    step = min(FACTOR_MAX, 1 / factor)
    return _change(step, "calm: the learning rate goes back up", notes)


def _change(step: float, why: str, notes: Mapping[str, float]) -> Proposal:
    return Proposal(Action(lr_factor=step), why, None, notes)


def _without_trial(notes: Mapping[str, float]) -> dict[str, float]:
    return {name: notes[name] for name in ("failed", "until") if name in notes}


def _told(speed: float, before: float) -> str:
    return f"the loss falls with power {speed:.2f} of the samples, before {before:.2f}"


def _since(history: History, samples: float) -> Signals | None:
    """Statistics of the losses after so many samples; None for too few."""
    return signals([point for point in history.losses if point[0] > samples])


def _speed(seen: Signals, history: History) -> float:
    """The power of the samples seen with which the loss falls."""
    return -seen.slope * (history.samples or 0.0) / max(abs(seen.level), 1e-12)


def _opposed(history: History) -> bool:
    return alignment(history.gradients)[1] < -SURE


def _wait_after_setback(history: History) -> int:
    if history.setback_at is None or not history.setbacks:
        return 0
    wait = min(FIRST_WAIT << min(history.setbacks - 1, 16), LONGEST_WAIT)
    return history.setback_at + wait - history.decisions
