"""The guard of many runs at once: ``policy.guard`` on arrays, without its words.

The rules have the names and the order of ``policy.guard.RULES``; a test holds both against each
other. What no simulated run can show is left out: training that cannot change a knob, a cap of
the memory below the device's, and a last batch that is not left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN, GPU_DELTAS
from mlflow_rlsched.policy.guard import NOISE, NOISE_MARGIN, REVERSAL
from mlflow_rlsched.policy.memory import OOM_FACTOR, SHARE, VARIES
from mlflow_rlsched.simulator.histories import Histories
from mlflow_rlsched.simulator.measured import Bounds, Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.windows import Flags


@dataclass
class Actions:
    """``policy.action.Action`` of many runs, and the gain that goes with it.

    Attributes:
        gpu_delta: Devices more or fewer, whole numbers from -2 to 2.
        batch_factor: Factor on the batch size, 0.8 to 1.2.
        lr_factor: Factor on the learning rate, 0.8 to 1.2.
        predicted_gain: ``Proposal.predicted_gain``, NaN for none.
    """

    gpu_delta: Floats
    batch_factor: Floats
    lr_factor: Floats
    predicted_gain: Floats

    def encoded(self) -> Floats:
        """Runs x 3, each part mapped to [-1, 1] (``Action.encoded``)."""
        half = (FACTOR_MAX - FACTOR_MIN) / 2
        parts = self.gpu_delta / GPU_DELTAS[-1], self.batch_factor - 1, self.lr_factor - 1
        return np.stack([parts[0], parts[1] / half, parts[2] / half], axis=1)


def batch_rule(batch: Floats, bounds: Bounds) -> Floats:
    """Factor on the learning rate that goes with a batch size (``policy.action.batch_rule``)."""
    ratio = batch / bounds.batch_initial
    return np.where(bounds.sgd, ratio, np.sqrt(ratio))


def moved(batch: Floats, factor: Floats) -> Floats:
    """Batch sizes after a factor, moved by at least one sample (``policy.action.apply``)."""
    rounded = np.rint(batch * factor)
    grown = np.maximum(rounded, batch + 1)
    shrunk = np.maximum(np.minimum(rounded, batch - 1), 1)
    return np.where(factor == 1, batch, np.where(factor > 1, grown, shrunk))


def guard(
    actions: Actions, seen: Measured, history: Histories, bounds: Bounds
) -> tuple[Settings, Floats]:
    """The settings that proposals lead to, inside every limit, and the actions left, encoded.

    Args:
        actions: What is proposed; inside its ranges.
        seen: What was measured, with the settings in force.
        history: What is remembered, the interval included.
        bounds: The limits of each run.
    """
    before = seen.settings
    wanted = np.maximum(before.gpus + actions.gpu_delta, 0)
    first = _ruled(wanted, actions, seen, history, bounds)
    draft = _ruled(first.gpus, actions, seen, history, bounds)
    after = _settled(draft, bounds)
    return after, left_of(before, after)


def _ruled(
    gpus: Floats, actions: Actions, seen: Measured, history: Histories, bounds: Bounds
) -> _Draft:
    before = seen.settings
    draft = _Draft(
        gpus,
        moved(before.batch, actions.batch_factor),
        before.lr_factor * actions.lr_factor,
        before,
    )
    draft.within_configuration(bounds)
    draft.within_abilities(seen)
    draft.within_share(seen)
    draft.within_memory(seen, history)
    draft.worth_a_restart(actions, seen, history, bounds)
    draft.calm_before_growth(history.unrest | seen.loss_bad.any(axis=1))
    draft.above_the_noise(actions, history)
    return draft


class _Draft:
    """What is left of the proposals: ``policy.draft.Draft`` on arrays."""

    def __init__(self, gpus: Floats, batch: Floats, lr_factor: Floats, before: Settings) -> None:
        self.gpus = gpus
        self.batch = batch
        self.lr_factor = lr_factor
        self.before = before
        self.batch_low = np.ones_like(batch)
        self.batch_high = np.full_like(batch, np.inf)

    def keep_gpus(self, where: Flags) -> None:
        self.gpus = np.where(where, self.before.gpus, self.gpus)

    def keep_batch(self, where: Flags) -> None:
        self.batch = np.where(where, self.before.batch, self.batch)

    def keep_rate(self, where: Flags) -> None:
        self.lr_factor = np.where(where, self.before.lr_factor, self.lr_factor)

    def within_configuration(self, bounds: Bounds) -> None:
        self.gpus = np.clip(self.gpus, bounds.gpus_min, bounds.gpus_max)
        self.batch_low = np.minimum(np.maximum(bounds.batch_min, self.gpus), bounds.batch_max)
        self.batch_high = bounds.batch_max
        self.batch = np.clip(self.batch, self.batch_low, self.batch_high)

    def within_abilities(self, seen: Measured) -> None:
        waiting = ~seen.acknowledged
        self.keep_gpus(waiting)
        self.keep_batch(waiting)
        self.keep_rate(waiting)

    def within_share(self, seen: Measured) -> None:
        most = self.before.gpus + np.maximum(seen.free_gpus, 0)
        self.gpus = np.minimum(self.gpus, most)

    def within_memory(self, seen: Measured, history: Histories) -> None:
        peak = np.fmax(history.memory_peak, seen.memory_used)
        noise = np.nan_to_num(history.memory_noise)
        total = history.memory_total
        room = np.minimum(SHARE * total, total / (1 + VARIES * noise)) - peak
        each = history.memory_batch + room / _bytes_per_sample(history)
        running = self.before.batch
        self._bound_batch(lambda gpus: np.floor(history.oom_batch * gpus * OOM_FACTOR))
        self._bound_batch(
            lambda gpus: np.maximum(np.trunc(each * gpus), running * gpus // self.before.gpus)
        )

    def _bound_batch(self, largest: Callable[[Floats], Floats]) -> None:
        least = np.maximum(np.ceil(FACTOR_MIN * self.before.batch), self.batch_low)
        for _ in range(GPU_DELTAS[-1]):
            short = (self.gpus < self.before.gpus) & (largest(self.gpus) < least)
            self.gpus = self.gpus + short
        most = np.maximum(largest(self.gpus), self.batch_low)
        self.batch_high = np.fmin(self.batch_high, most)
        self.batch = np.minimum(self.batch, self.batch_high)

    def worth_a_restart(
        self, actions: Actions, seen: Measured, history: Histories, bounds: Bounds
    ) -> None:
        elapsed, progress = seen.elapsed, history.progress
        left = np.divide(
            elapsed * (1 - progress),
            progress,
            out=np.full(len(elapsed), np.nan),
            where=progress > 0,
        )
        gain, cost = actions.predicted_gain, bounds.restart_s
        saved = np.where(gain > 0, left * gain / (1 + gain), np.where(np.isnan(gain), gain, 0.0))
        pays = saved > cost  # false where either is unknown
        change = self.gpus - self.before.gpus
        back = (change * history.gpus_change < 0) & ~((change < 0) & pays)
        self.keep_gpus(back & (elapsed - history.gpus_changed_at < REVERSAL * cost))
        fewer = self.gpus < self.before.gpus
        rest = np.where(np.isnan(left), elapsed, left)
        after = self.gpus * (np.divide(rest, 1 + gain, where=gain > -1, out=rest.copy()) + cost)
        vain = (actions.gpu_delta < 0) & (gain > -1) & (after >= self.before.gpus * rest)
        self.keep_gpus(fewer & ((left <= cost) | vain))
        self.keep_gpus((self.gpus > self.before.gpus) & ~pays)

    def calm_before_growth(self, restless: Flags) -> None:
        self.keep_gpus(restless & (self.gpus > self.before.gpus))
        self.keep_batch(restless & (self.batch > self.before.batch))
        self.keep_rate(restless & (self.lr_factor > self.before.lr_factor))

    def above_the_noise(self, actions: Actions, history: Histories) -> None:
        batch = self.before.batch
        inside = (self.batch_low <= batch) & (batch <= self.batch_high)
        self.keep_batch(inside & (np.abs(self.batch / batch - 1) < NOISE))
        self.keep_rate(np.abs(self.lr_factor / self.before.lr_factor - 1) < NOISE)
        vain = actions.predicted_gain < NOISE_MARGIN * history.throughput_noise
        self.keep_gpus(vain & (self.gpus > self.before.gpus))
        self.keep_batch(vain & (self.batch > batch))


def _bytes_per_sample(history: Histories) -> Floats:
    """Measured, else the most that it can be (``policy.memory``, ``policy.guard``)."""
    batch, peak = history.memory_batch, history.memory_peak
    with np.errstate(invalid="ignore", divide="ignore"):
        between = (peak - history.memory_peak_before) / (batch - history.memory_batch_before)
        above = (peak - history.memory_base) / batch
        most = peak / batch
    return np.where(between > 0, np.minimum(between, most), np.where(above > 0, above, most))


def _settled(draft: _Draft, bounds: Bounds) -> Settings:
    rule = batch_rule(draft.batch, bounds)
    scale = rule * draft.lr_factor
    bounded = np.clip(scale, bounds.lr_scale_min, bounds.lr_scale_max)
    factor = np.where(scale == bounded, draft.lr_factor, bounded / rule)
    return Settings(draft.gpus, draft.batch, factor, bounded)


def left_of(before: Settings, after: Settings) -> Floats:
    """The actions that lead from settings to others, encoded."""
    return Actions(
        np.clip(after.gpus - before.gpus, GPU_DELTAS[0], GPU_DELTAS[-1]),
        np.clip(after.batch / before.batch, FACTOR_MIN, FACTOR_MAX),
        np.clip(after.lr_factor / before.lr_factor, FACTOR_MIN, FACTOR_MAX),
        np.full(len(after.gpus), np.nan),
    ).encoded()
