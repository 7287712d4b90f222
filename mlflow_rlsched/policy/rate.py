"""The learning-rate rule of ``rules``: down when the loss is not calm, up as far as it pays.

Whether a rate is too small cannot be read off a training: a loss falls by the same law, only
slower. So the rule *tries*: it raises the rate by two steps of 20 %, compares how fast the loss
falls with what was to be expected, and goes on from there by four steps, or takes it all back. What
was taken back is not tried again for a while that grows every time, and the next trial goes the
other way. A rate at which the loss was not calm is a ceiling: nothing is tried near it any more,
and a raise that met it is taken back as a whole, since just below it a training may hardly learn.

The first steps are small since most users' rates are not far off: from a good rate a small raise
costs little and meets no edge. A loss that falls at once when the rate is lowered is no proof, as
there is less noise at a lower rate: such a trial always lasts to its end.

How fast a loss falls, and how sure that is, is said by ``speed``; a trial goes on until the
difference is clear, or for ``LONGEST`` intervals.

Nothing is risked where nothing is to be gained: not before the loss has begun to fall (a warm-up
is the user's), not once it has fallen and no longer clearly does, not when little of it is left,
and not near the end. A lower rate is tried only where there is a reason: near a ceiling, above the
user's own rate, or when the loss has not begun to fall for long, as what never learnt may have too
high a rate as well as too low a one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.loss import Signals, signals
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.speed import Speed, heard, level_of, speed_of
from mlflow_rlsched.policy.stability import climbed, unrest, unstable

TRIAL = FACTOR_MAX**2
FURTHER = FACTOR_MAX**4
RESCUE = FACTOR_MAX**8
"""Factor on the learning rate that is tried first; after a trial that paid, or upwards while the
loss has not begun to fall; and downwards then, as a rate at which nothing is learnt may be far too
high."""

UNMOVED = 0.9
"""Level of the loss over its first value above which the training has not really begun."""

LITTLE_LEFT = 0.005
"""Level of the loss over its first value below which nothing is risked any more."""

TIME_TO_TRY = 25
"""Decisions that must be left to the end: for a trial, its judgement and the way back."""

HOPELESS = 4
"""Losses after a cut, none of them finite, from which the weights themselves must be spoilt."""

FIRST_WAIT = 4
LONGEST_WAIT = 64
"""Decisions after a setback before the learning rate goes up again: doubled every time."""

RARER = 0.5
"""Part of all decisions so far that is waited at least after the second trial in vain."""

CLEAR = 2.0
"""Standard errors from which the loss clearly falls."""

SURE = 3.0
"""The same of a loss that is to fall at another rate."""

FEWEST = 5
LONGEST = 10
"""Intervals that a speed rests on, at least and at most."""

PATIENCE = 30
EARLY = 0.1
"""Decisions, and progress where it is known, until a loss that has not begun to fall may need
another rate."""

RESTLESS = 6.0
"""Range of the newest losses, in usual spreads, from which one that does not fall is not calm."""

CLEARANCE = FACTOR_MAX**3
"""Factor by which the learning rate stays below one at which the loss was not calm."""

NEAR = FACTOR_MAX**6
"""Factor below the highest rate that may be tried from which a lower one is no longer tried."""

LOWER_PAYS = 1.3
"""Speed over what is expected from which a lower learning rate pays."""

_NEWEST = 5
_FEW = 3  # of which one bad batch may be one
_KEPT = ("failed", "until", "down", "home", "ceiling")
_CLOSE = 1.001  # factors are products of roundings


def rate_proposal(interval: Interval, history: History) -> Proposal:
    """What to do with the learning rate.

    The notes hold, while a trial runs: ``good``, the factor to return to; ``size``, the factor
    that is tried; ``expected`` and ``error``, how fast the loss fell there and how sure that is;
    ``level`` and ``samples``, where it was then; ``last``, the factor at the last decision;
    ``asked``, 1 once a step was asked for; ``back``, 1 once it is being taken back. And always:
    ``failed``, trials that did not pay; ``until``, the decision before which there is no other;
    ``down``, 1 when the next one lowers the rate; ``home``, the factor to come back to when calm;
    ``ceiling``, the lowest at which the loss was not calm.
    """
    notes = heard(interval, history)
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
    if why is None and "good" not in notes:
        why = _shoots_up([loss for _, loss in history.losses[-_FEW:]], history)
    if why is not None:
        return _lower(factor, why, history, notes)
    if "good" in notes:
        return _go_on(factor, interval, history, notes)
    wait = max(_wait_after_setback(history), int(notes.get("until", 0)) - history.decisions)
    if wait > 0:
        until = history.decisions + wait
        return Proposal(Action(), f"calm; no other rate before decision {until}", None, notes)
    home = min(notes.get("home", 1.0), _highest(notes))
    if factor < home / _CLOSE:
        return _back_up(factor, home, notes)
    return _start(factor, history, notes)


def with_rate(action: Action, rate: Proposal) -> Action:
    """Devices and batch of one proposal with the learning rate of this rule's.

    The batch rests during a trial: each change of it moves the learning rate too, by the scaling
    rule, and what is tried could not be judged.
    """
    batch = 1.0 if "good" in rate.notes else action.batch_factor
    return Action(action.gpu_delta, batch, rate.action.lr_factor)


def _highest(notes: Mapping[str, float]) -> float:
    """Largest factor that is far enough from the ceiling."""
    return notes.get("ceiling", math.inf) / CLEARANCE


def _lower(factor: float, why: str, history: History, notes: dict[str, float]) -> Proposal:
    """What to do while the loss is not calm."""
    # The user's own rate is doubted only when the loss was not calm more than once.
    if factor > _CLOSE or (history.setbacks > 1 and unstable(history)):
        notes["ceiling"] = min(notes.get("ceiling", math.inf), factor)
    if factor <= notes.get("good", math.inf) * _CLOSE:
        return _change(FACTOR_MIN, f"{why}: a lower learning rate", _at_rest(notes))
    if notes.get("back"):
        return _return(factor, notes, f"{why}: a lower learning rate")
    return _take_back(factor, history, notes, why)


def _start(factor: float, history: History, notes: dict[str, float]) -> Proposal:
    seen, speed = signals(history.losses), speed_of(notes)
    clear = speed.value > CLEAR * speed.error
    if seen is None or speed.intervals < (FEWEST if clear else LONGEST):
        return Proposal(Action(), "too few losses since the last change to judge by", None, notes)
    unmoved = seen.level > UNMOVED * (history.loss_first or 0.0) and not clear
    reason = _why_not(seen, clear, history)
    if reason is None and not clear:
        reason = _why_not_unclear(unmoved, history)
    if reason is not None:
        return Proposal(Action(), f"calm; {reason}", None, notes)
    raised, lowered = (FURTHER, RESCUE) if unmoved else (TRIAL, TRIAL)
    near = factor * raised > _highest(notes)
    # Lower first: it does no harm to what has not learnt.
    down = near or (notes.get("down", float(unmoved)) and (unmoved or factor > _CLOSE))
    if near and factor * NEAR < _highest(notes):
        return Proposal(Action(), "calm below a rate at which the loss was not", None, notes)
    notes |= {"good": factor, "last": factor, "size": 1 / lowered if down else raised}
    notes |= _known(speed, notes, history)
    told = "calm" if clear else "the loss does not fall"
    text = f"{told}: trying a {'lower' if down else 'higher'} learning rate"
    return _change(FACTOR_MIN if down else FACTOR_MAX, text, notes)


def _why_not(seen: Signals, clear: bool, history: History) -> str | None:
    """Why no trial begins although the training is calm, if so."""
    if seen.level < LITTLE_LEFT * (history.loss_first or 0.0):
        return "little of the loss is left"
    newest = [loss for _, loss in history.losses[-_NEWEST:]]
    varies = max(newest) - min(newest) > RESTLESS * (history.spread_usual or math.inf)
    if not clear and varies:
        return "the loss varies more than usual"
    progress = history.progress or 0.0
    # Beyond its plan nothing is known of a run's end.
    if 0 < progress < 1 and history.decisions * (1 / progress - 1) < TIME_TO_TRY:
        return "the run is near its end"
    return None


def _why_not_unclear(unmoved: bool, history: History) -> str | None:
    """Why no trial begins while the loss does not clearly fall, if so."""
    if not unmoved:
        return "the loss no longer clearly falls"
    if history.decisions < PATIENCE or 0 < (history.progress or 0.0) < EARLY:
        return "the loss has not begun to fall"
    return None


def _go_on(
    factor: float, interval: Interval, history: History, notes: dict[str, float]
) -> Proposal:
    """The next decision of a trial."""
    good, size = notes["good"], notes["size"]
    if notes.get("back"):
        return _return(factor, notes, "going back to the learning rate before the trial")
    if size > 1 and (why := _shoots_up(interval.losses(), history)) is not None:
        notes["ceiling"] = min(notes.get("ceiling", math.inf), factor)
        return _take_back(factor, history, notes, why)
    left = good * size / factor  # factor that is left to go
    there = left < _CLOSE if size > 1 else left > 1 / _CLOSE
    stuck = factor == notes["last"] and not there
    if stuck and history.action.lr_factor == 1 and notes.get("asked"):
        return _take_back(factor, history, notes, "it cannot go further")
    notes["last"] = factor
    if not there:
        step = min(max(left, FACTOR_MIN), FACTOR_MAX)
        text = f"trying a {'higher' if size > 1 else 'lower'} learning rate"
        return _change(step, text, notes | {"asked": 1.0})
    speed = speed_of(notes)
    more = speed.value - notes["expected"] * (1 if size > 1 else LOWER_PAYS)
    unsure = math.hypot(speed.error, notes["error"])
    clear = speed.value > SURE * speed.error
    sure = clear and _as_low(notes, history)
    open_yet = abs(more) < unsure or (more > 0 and not sure)
    fewest = FEWEST if size > 1 else LONGEST
    if speed.intervals < fewest or (open_yet and speed.intervals < LONGEST):
        return Proposal(Action(), "waiting for what the other learning rate does", None, notes)
    told = (
        f"the loss falls with power {speed.value:.2f} of the samples,"
        f" {notes['expected']:.2f} before"
    )
    if not sure:
        told += ", but is not as low as it would be" if clear else ", and not clearly"
    if more < 0 or not sure:
        return _take_back(factor, history, notes, told)
    text = f"the {'higher' if size > 1 else 'lower'} learning rate pays ({told})"
    notes |= {"good": factor, "home": factor, "down": float(size < 1)}
    notes |= _known(speed, notes, history)
    notes["size"] = FURTHER if size > 1 else 1 / FURTHER
    seen = signals(history.losses)
    why_not = seen is None or _why_not(seen, True, history) is not None
    if why_not or factor * notes["size"] > _highest(notes):
        return Proposal(Action(), text, None, _at_rest(notes))
    return _change(FACTOR_MAX if size > 1 else FACTOR_MIN, text, notes)


def _shoots_up(losses: Sequence[float], history: History) -> str | None:
    """Whether the newest losses alone say that the rate is too high.

    Beyond some rate a loss explodes within a few steps, before there are enough for a trend.
    """
    return climbed(median(losses), math.inf, history) if losses else None


def _known(speed: Speed, notes: Mapping[str, float], history: History) -> dict[str, float]:
    """What a trial is compared with: how fast the loss falls, and where it is now."""
    samples = history.samples or 0.0
    return {
        "expected": max(speed.value, 0.0),
        "error": speed.error,
        "level": level_of(notes, samples),
        "samples": samples,
    }


def _as_low(notes: Mapping[str, float], history: History) -> bool:
    """Whether the loss is as low as the rate before would have brought it by now.

    After a raise the loss goes up and comes down again: the way down alone says nothing.
    """
    if "level" not in notes or not history.samples:
        return True
    expected = notes["level"] * (history.samples / notes["samples"]) ** -notes["expected"]
    return bool(level_of(notes, history.samples) <= expected)


def _take_back(factor: float, history: History, notes: dict[str, float], why: str) -> Proposal:
    failed = notes.get("failed", 0) + 1
    wait = min(FIRST_WAIT * 2**failed, LONGEST_WAIT)
    if failed > 1:
        wait = max(wait, math.ceil(RARER * history.decisions))
    notes |= {"back": 1.0, "failed": failed, "until": history.decisions + wait}
    notes["down"] = float(notes["size"] > 1)
    which = "higher" if notes["size"] > 1 else "lower"
    return _return(factor, notes, f"the {which} learning rate does not pay ({why}): taken back")


def _return(factor: float, notes: dict[str, float], why: str) -> Proposal:
    left = min(notes["good"], _highest(notes)) / factor
    if 1 / _CLOSE <= left <= _CLOSE:
        return Proposal(Action(), "calm at the learning rate before", None, _at_rest(notes))
    return _change(min(max(left, FACTOR_MIN), FACTOR_MAX), why, notes)


def _back_up(factor: float, home: float, notes: dict[str, float]) -> Proposal:
    step = min(FACTOR_MAX, home / factor)
    return _change(step, "calm: the learning rate goes back up", notes)


def _change(step: float, why: str, notes: Mapping[str, float]) -> Proposal:
    return Proposal(Action(lr_factor=step), why, None, notes)


def _at_rest(notes: Mapping[str, float]) -> dict[str, float]:
    return {name: note for name, note in notes.items() if name in _KEPT or "." in name}


def _wait_after_setback(history: History) -> int:
    if history.setback_at is None or not history.setbacks:
        return 0
    wait = min(FIRST_WAIT << min(history.setbacks - 1, 16), LONGEST_WAIT)
    return history.setback_at + wait - history.decisions
