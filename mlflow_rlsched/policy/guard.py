"""The guard: hard limits that no policy crosses, each with its reason in plain words.

The rules run in the order of ``RULES``. Each sees the setting that is left of the proposal and
may take back or clip a part of it; none makes a change larger. They run twice: what a batch may be
rests on the devices, which a later rule may take back, so the first time settles the devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, Action, Setting, apply, resize
from mlflow_rlsched.policy.draft import Draft
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval, bounded
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.memory import OOM_FACTOR, SHARE, bytes_per_sample, memory_limit, worst
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.policy.stability import bad_losses, unrest

NOISE = 0.02
"""Relative change of the batch size or the learning rate below which there is none."""

NOISE_MARGIN = 2.0
"""Predicted gain over the usual difference between two intervals of the same setting."""

REVERSAL = 10.0
"""Time, in restarts, that must pass before a change of the devices is taken back."""

_GIGA = 1e9


@dataclass(frozen=True)
class Outcome:
    """What the guard lets through: the setting, the action that is left, and its reasons."""

    setting: Setting
    action: Action
    vetoes: tuple[str, ...]


def guard(proposal: Proposal, interval: Interval, history: History, limits: Limits) -> Outcome:
    """The setting that a proposal leads to, inside every limit.

    Args:
        proposal: What the policy wants.
        interval: What was measured, with the setting in force.
        history: What is remembered, the interval included.
        limits: The run's limits.
    """
    before = interval.setting
    wanted = apply(proposal.action, before, limits.batch_initial, limits.optimizer)
    first = _ruled(wanted, proposal, interval, history, limits)
    draft = _ruled(replace(wanted, gpus=first.gpus), proposal, interval, history, limits)
    setting = _settled(draft)
    return Outcome(setting, _action(before, setting), (*first.gpu_vetoes, *draft.vetoes))


def _ruled(
    wanted: Setting, proposal: Proposal, interval: Interval, history: History, limits: Limits
) -> Draft:
    draft = Draft(
        wanted.gpus,
        wanted.batch_size,
        wanted.lr_factor,
        interval.setting,
        proposal,
        interval,
        history,
        limits,
    )
    for rule in RULES:
        rule(draft)
    return draft


def within_configuration(draft: Draft) -> None:
    """Bounds of the configuration: devices and batch size (those of the rate: ``_settled``)."""
    limits = draft.limits
    gpus = min(max(draft.gpus, limits.gpus_min), limits.gpus_max)
    draft.set_gpus(gpus, "gpus.max" if gpus < draft.gpus else "gpus.min")
    if draft.batch_size is None:
        return
    draft.batch_low = min(max(limits.batch_min, gpus), limits.batch_max)
    draft.batch_high = limits.batch_max
    low, high = draft.batch_low, draft.batch_high
    size = min(max(draft.batch_size, low), high)
    bound = f"the largest allowed is {high}" if size == high else f"the smallest allowed is {low}"
    draft.set_batch(size, bound)


def within_abilities(draft: Draft) -> None:
    """What the training can do, and whether it has done what it was asked last."""
    can = draft.interval.can
    if not draft.limits.gpus_are_live:
        draft.keep_gpus("it cannot change while a run is going on")
    elif "resume" not in can:
        draft.keep_gpus("the training cannot resume from a checkpoint")
    if "batch_size" not in can:
        draft.keep_batch("the training cannot change its batch size")
        if draft.batch_size is not None and draft.gpus > draft.batch_size:
            draft.keep_gpus(f"the batch of {draft.batch_size} cannot grow with it")
    if "learning_rate" not in can:
        draft.keep_rate("the training does not let its learning rate be changed")
    if not draft.interval.acknowledged:
        why = "the training has not yet applied the last change"
        draft.keep_gpus(why)
        draft.keep_batch(why)
        draft.keep_rate(why)


def within_share(draft: Draft) -> None:
    """Shares and quotas."""
    free, budget = draft.interval.free_gpus, draft.interval.budget
    if free is not None and draft.gpus - draft.before.gpus > free:
        why = f"only {free} more are free" if free > 0 else "none more is free"
        draft.set_gpus(draft.before.gpus + max(0, free), f"{why} for this run")
    if budget is None or draft.gpus <= budget.gpus:
        return
    limits = draft.limits
    if limits.gpus_are_live and "resume" in draft.interval.can:
        draft.set_gpus(max(budget.gpus, limits.gpus_min), budget.why)


def within_memory(draft: Draft) -> None:
    """Predicted memory at most 92 % of the device or the cap; never back where it ran out."""
    running = draft.before.batch_size
    if draft.batch_size is None or running is None:
        return
    oom = draft.history.oom_batch
    if oom is not None:
        _bound_batch(
            draft,
            running,
            lambda devices: math.floor(oom * devices * OOM_FACTOR),
            lambda _, devices: f"memory ran out at {round(oom * devices)}",
        )
    each = _fitting(draft)
    if each is not None:
        held = max(1, draft.before.gpus)
        _bound_batch(
            draft,
            running,
            # What runs on a device shows by running that it fits.
            lambda devices: max(int(each * devices), running * devices // held),
            partial(_need, draft),
        )


def _bound_batch(
    draft: Draft,
    running: int,
    largest: Callable[[int], int],
    why: Callable[[int, int], str],
) -> None:
    """Keep the devices that the batch needs, then clip the batch.

    What must fit is the smallest batch that one decision leads to: it is clipped to what fits, and
    no later rule takes it back above that.

    Args:
        draft: What is left of the proposal.
        running: The batch in force, samples.
        largest: Largest batch that so many devices hold.
        why: The reason against a batch on so many devices.
    """
    changes = "batch_size" in draft.interval.can and draft.interval.acknowledged
    least = max(math.ceil(FACTOR_MIN * running), draft.batch_low) if changes else running
    wanted, held = max(1, draft.gpus), draft.before.gpus
    if wanted < held and largest(wanted) < least:
        enough = (devices for devices in range(wanted, held) if largest(devices) >= least)
        draft.set_gpus(next(enough, held), f"on {wanted}, {why(least, wanted)}")
    if draft.batch_size is None or "batch_size" not in draft.interval.can:
        return
    devices = max(1, draft.gpus)
    draft.batch_high = min(draft.batch_high, max(largest(devices), draft.batch_low))
    if draft.batch_size > draft.batch_high:
        draft.set_batch(draft.batch_high, why(draft.batch_size, devices))


def _fitting(draft: Draft) -> float | None:
    """Most samples of a device whose predicted memory is allowed; None when it is unknown."""
    limit = memory_limit(draft.history, draft.limits)
    each = _bytes_per_sample(draft)
    if limit is None or each is None:
        return None
    room = min(SHARE * limit, limit / worst(draft.history, 1.0)) - _peak(draft)
    return draft.history.memory[-1].batch + room / each


def _bytes_per_sample(draft: Draft) -> float | None:
    """Measured, else the most it can be: all of the memory grows with the batch."""
    measured = bytes_per_sample(draft.history)
    if measured is not None or not draft.history.memory:
        return measured
    now = draft.history.memory[-1]
    return now.peak / now.batch if now.peak > 0 else None


def _peak(draft: Draft) -> float:
    """Peak of the fullest device: what the training allocated may be less than what is used."""
    used = [bounded(device.memory_used) for device in draft.interval.devices]
    return max([draft.history.memory[-1].peak, *(value for value in used if value is not None)])


def _need(draft: Draft, size: int, devices: int) -> str:
    limit = memory_limit(draft.history, draft.limits) or 0.0
    more = size / devices - draft.history.memory[-1].batch
    needed = _peak(draft) + (_bytes_per_sample(draft) or 0.0) * more
    why = f"more than {SHARE:.0%}" if needed > SHARE * limit else "and that varies"
    return f"{size} would need about {needed / _GIGA:.1f} GB of {limit / _GIGA:.1f} GB, {why}"


def worth_a_restart(draft: Draft) -> None:
    """A change of the devices must pay for its own restart; nor is it taken back at once."""
    change = draft.gpus - draft.before.gpus
    if not change:
        return
    cost, left, last = draft.limits.restart_cost_s, _time_left(draft), draft.history.gpus_changed_at
    pays = _saved(draft, left) > cost
    if last is not None and change * draft.history.gpus_change < 0 and not (change < 0 and pays):
        rests = last + REVERSAL * cost - draft.interval.elapsed_s
        if rests > 0:
            draft.keep_gpus(f"the last change of them is not taken back for another {rests:.0f} s")
            return
    if change < 0:
        if left is not None and left <= cost:
            draft.keep_gpus(f"the run ends in about {left:.0f} s, a restart takes {cost:.0f} s")
        elif not _saves_devices(draft, left):
            draft.keep_gpus("it would save no device time, its restart included")
        return
    if draft.proposal.predicted_gain is None or left is None:
        draft.keep_gpus("it is not known whether the change would pay for its restart")
    elif not pays:
        saved = _saved(draft, left)
        draft.keep_gpus(f"it would save {saved:.0f} s, its restart costs {cost:.0f} s")


def _saved(draft: Draft, left: float | None) -> float:
    """Time that the change saves until the end, its restart left out; 0 where it is unknown."""
    gain = draft.proposal.predicted_gain
    if gain is None or left is None or gain <= 0:
        return 0.0
    return left * gain / (1 + gain)


def _saves_devices(draft: Draft, left: float | None) -> bool:
    """Whether fewer devices that the policy wants take less device time until the end.

    A run whose end is unknown is taken to go on for as long as it has.
    """
    gain, cost = draft.proposal.predicted_gain, draft.limits.restart_cost_s
    if gain is None or gain <= -1 or draft.proposal.action.gpu_delta >= 0:
        return True
    rest = draft.interval.elapsed_s if left is None else left
    return draft.gpus * (rest / (1 + gain) + cost) < draft.before.gpus * rest


def _time_left(draft: Draft) -> float | None:
    progress = draft.history.progress
    if not progress:
        return None
    return draft.interval.elapsed_s * (1 - progress) / progress


def calm_before_growth(draft: Draft) -> None:
    """No growth while the loss oscillates or is not finite."""
    why = unrest(draft.history)
    if why is None and any(map(bad_losses, draft.interval.reports)):
        why = "a loss was not finite"
    if why is None:
        return
    if draft.gpus > draft.before.gpus:
        draft.keep_gpus(why)
    if draft.batch_grows:
        draft.keep_batch(why)
    if draft.lr_factor > draft.before.lr_factor:
        draft.keep_rate(why)


def no_last_batch_of_one(draft: Draft) -> None:
    """A new batch size never leaves a device with one sample in an epoch's last batch."""
    size, limits = draft.batch_size, draft.limits
    running = draft.before.batch_size
    if size is None or running is None or size == running or limits.drop_last is not False:
        return
    if limits.dataset_size is None or not _leaves_one(draft, size):
        return
    why = f"{size} would leave a last batch of {limits.dataset_size % size}"
    smaller = range(size - 1, draft.batch_low - 1, -1)
    larger = range(size + 1, min(draft.batch_high, limits.dataset_size) + 1)
    for other in chain(smaller, larger):
        if other == running or not _leaves_one(draft, other):
            draft.set_batch(other, why)
            return
    if not draft.batch_low <= running <= draft.batch_high:
        draft.keep_gpus(why)
    draft.keep_batch(why)


def _leaves_one(draft: Draft, size: int) -> bool:
    assert draft.limits.dataset_size is not None
    rest = draft.limits.dataset_size % size
    return 0 < rest < 2 * max(1, draft.gpus)


def above_the_noise(draft: Draft) -> None:
    """Changes under the noise are no changes."""
    before = draft.before
    if draft.batch_size is not None and before.batch_size is not None:
        small = abs(draft.batch_size / before.batch_size - 1) < NOISE
        if small and draft.batch_low <= before.batch_size <= draft.batch_high:
            draft.keep_batch("the change would be under the noise")
    if abs(draft.lr_factor / before.lr_factor - 1) < NOISE:
        draft.keep_rate("the change would be under the noise")
    gain, noise = draft.proposal.predicted_gain, draft.history.throughput_noise
    if gain is None or noise is None or gain >= NOISE_MARGIN * noise:
        return
    why = f"the predicted gain of {gain:.1%} is under the noise of {noise:.1%}"
    if draft.gpus > before.gpus:
        draft.keep_gpus(why)
    if draft.batch_grows:
        draft.keep_batch(why)


RULES: tuple[Callable[[Draft], None], ...] = (
    within_configuration,
    within_abilities,
    within_share,
    within_memory,
    worth_a_restart,
    calm_before_growth,
    no_last_batch_of_one,
    above_the_noise,
)


def _settled(draft: Draft) -> Setting:
    """The setting with its learning-rate scale, inside the bounds of the rate."""
    before, limits = draft.before, draft.limits
    setting = Setting(draft.gpus, draft.batch_size, draft.lr_factor)
    setting = resize(setting, draft.batch_size, limits.batch_initial, limits.optimizer)
    if "learning_rate" not in draft.interval.can:
        return Setting(draft.gpus, draft.batch_size, before.lr_factor, before.lr_scale)
    scale = min(max(setting.lr_scale, limits.lr_scale_min), limits.lr_scale_max)
    if scale == setting.lr_scale:
        return setting
    bound = "largest" if scale < setting.lr_scale else "smallest"
    draft.vetoes.append(
        f"the learning rate is scaled by {scale:.4g}, not {setting.lr_scale:.4g}:"
        f" the {bound} that is allowed"
    )
    rule = setting.lr_scale / setting.lr_factor
    return Setting(draft.gpus, draft.batch_size, scale / rule, scale)


def _action(before: Setting, after: Setting) -> Action:
    batch = 1.0
    if before.batch_size and after.batch_size:
        batch = after.batch_size / before.batch_size
    rate = after.lr_factor / before.lr_factor
    return Action(
        after.gpus - before.gpus,
        min(max(batch, FACTOR_MIN), FACTOR_MAX),
        min(max(rate, FACTOR_MIN), FACTOR_MAX),
    ).clipped()
