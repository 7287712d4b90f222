"""The histories of many runs at once: ``policy.measuring`` on arrays.

What ``History`` holds of one run stands here in arrays with a value a run, NaN for "not yet";
a test holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mlflow_rlsched.policy import measuring, stability
from mlflow_rlsched.policy.reward import Scales
from mlflow_rlsched.simulator.measured import Bounds, Measured, Settings
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.windows import (
    Flags,
    Trends,
    alignment,
    empty,
    level,
    mean,
    push,
    trends,
)


@dataclass
class Histories:
    """``policy.history.History`` of many runs.

    The parts of an action are apart, as encoded in columns (``Action.encoded``); scales are too.
    """

    decisions: Floats
    samples: Floats
    samples_at: Floats
    steps: Floats
    step_rate: Floats
    throughput: Floats
    throughput_before: Floats
    throughput_best: Floats
    throughput_noise: Floats
    network_max: Floats
    memory_batch: Floats
    memory_peak: Floats
    memory_batch_before: Floats
    memory_peak_before: Floats
    memory_base: Floats
    memory_last: Floats
    memory_noise: Floats
    memory_total: Floats
    memory_fraction: Floats
    memory_slope: Floats
    loss_samples: Floats
    losses: Floats
    nonfinite: Floats
    loss_first: Floats
    loss_best: Floats
    spread_usual: Floats
    grad_sqr: Floats
    grad_var: Floats
    cosines: Floats
    var_usual: Floats
    progress: Floats
    idle_s: Floats
    idle_intervals: Floats
    gpus_changed_at: Floats
    gpus_change: Floats
    oom_batch: Floats
    action: Floats
    action_before: Floats
    throughput_max: Floats
    cost_max: Floats
    total_s: Floats
    signals: Trends
    unrest: Flags

    @classmethod
    def new(cls, runs: int) -> Histories:
        """Histories of runs that have just begun."""
        nothing = {f.name: np.full(runs, np.nan) for f in fields(cls)}
        for name in ("decisions", "network_max", "idle_s", "idle_intervals"):
            nothing[name] = np.zeros(runs)
        for name in ("loss_samples", "losses", "grad_sqr", "grad_var", "cosines"):
            nothing[name] = empty(runs)
        nothing["nonfinite"] = np.zeros_like(empty(runs))
        nothing["action"] = np.zeros((runs, 3))
        nothing["action_before"] = np.zeros((runs, 3))
        known: dict[str, Any] = dict(nothing)
        known["signals"] = Trends(*(np.full(runs, np.nan) for _ in range(4)))
        known["unrest"] = np.zeros(runs, bool)
        return cls(**known)

    def restart(self, runs: Flags) -> None:
        """Forget all of some runs: others begin in their place."""
        fresh = Histories.new(len(runs))
        for f in fields(self):
            old, new = getattr(self, f.name), getattr(fresh, f.name)
            if isinstance(old, Trends):
                pairs = zip(old, new, strict=True)
                setattr(self, f.name, Trends(*(np.where(runs, b, a) for a, b in pairs)))
            else:
                old[runs] = new[runs]

    def observe(self, seen: Measured, bounds: Bounds) -> None:
        """Take in what was measured in an interval (``measuring.observe``)."""
        self._rates(seen)
        self._reports(seen)
        self._memory(seen)
        self.progress = _last(seen.progress, self.progress)
        use = seen.mean_use
        idle = use < measuring.IDLE
        self.idle_s = np.where(idle, self.idle_s + seen.duration, 0.0)
        self.idle_intervals = np.where(idle, self.idle_intervals + 1, 0.0)
        self.network_max = np.fmax(self.network_max, seen.network_rate)
        self.oom_batch = np.fmin(self.oom_batch, seen.oom_batch / seen.settings.gpus)
        self.signals = trends(self.loss_samples, self.losses)
        self.unrest = self._unrest()
        self._calm()
        self.unrest = self._unrest()  # what is usual may have changed
        self._fix_scales(seen, bounds)

    def _rates(self, seen: Measured) -> None:
        told = np.isfinite(seen.time)
        some = told.any(axis=1)
        rows = np.arange(len(told))
        first = told.argmax(axis=1)
        last = told.shape[1] - 1 - told[:, ::-1].argmax(axis=1)
        start_at, end_at = seen.time[rows, first], seen.time[rows, last]
        start, end = seen.samples[rows, first], seen.samples[rows, last]
        stepped, steps = seen.step[rows, first], seen.step[rows, last]
        earlier = (self.samples_at < start_at) & (start <= end) & (self.samples <= start)
        start_at = np.where(earlier, self.samples_at, start_at)
        start = np.where(earlier, self.samples, start)
        stepped = np.where(earlier, self.steps, stepped)
        seconds = np.where(end_at > start_at, end_at - start_at, np.nan)
        rate = np.where(end >= start, (end - start) / seconds, np.nan)
        known = np.isfinite(rate)
        step_rate = np.where(known & (steps >= stepped), (steps - stepped) / seconds, np.nan)
        self.step_rate = np.where(np.isfinite(step_rate), step_rate, self.step_rate)
        before = self.throughput
        unchanged = (self.action == 0).all(axis=1) & known & (before > 0) & (rate > 0)
        difference = np.abs(rate - before) / np.fmax(rate, before)
        noise = _averaged(self.throughput_noise, difference, measuring.SMOOTH)
        self.throughput_noise = np.where(unchanged, noise, self.throughput_noise)
        self.throughput_before = before
        self.throughput = np.where(known, rate, before)
        self.throughput_best = np.fmax(self.throughput_best, rate)
        self.samples = np.where(some, end, self.samples)
        self.samples_at = np.where(some, end_at, self.samples_at)
        self.steps = np.where(some, steps, self.steps)

    def _reports(self, seen: Measured) -> None:
        """Losses and gradients, one report after the other."""
        for i in range(seen.time.shape[1]):
            loss, bad = seen.loss[:, i], seen.loss_bad[:, i]
            told = np.isfinite(loss)
            self.nonfinite = push(self.nonfinite, bad.astype(float), told | bad)
            self.losses = push(self.losses, loss, told)
            self.loss_samples = push(self.loss_samples, seen.samples[:, i], told)
            self.loss_first = np.where(np.isnan(self.loss_first), loss, self.loss_first)
            sqr, var, norm = seen.grad_sqr[:, i], seen.grad_var[:, i], seen.grad_norm[:, i]
            told = np.isfinite(var)
            cosine = np.clip(sqr / np.where(told, norm * norm, 1.0), -1, 1)
            self.grad_sqr = push(self.grad_sqr, sqr, told)
            self.grad_var = push(self.grad_var, var, told)
            self.cosines = push(self.cosines, cosine, told)
            usual = _averaged(self.var_usual, var, measuring.SMOOTH / 4)
            self.var_usual = np.where(told, usual, self.var_usual)

    def _memory(self, seen: Measured) -> None:
        read = np.isfinite(seen.memory_total)
        self.memory_total = np.where(read, seen.memory_total, self.memory_total)
        fraction = np.minimum(seen.memory_used / seen.memory_total, 1.0)
        change = fraction - self.memory_fraction
        lasted = seen.duration > 0
        nothing = np.full(len(change), np.nan)
        self.memory_slope = np.divide(60 * change, seen.duration, out=nothing, where=lasted)
        self.memory_fraction = np.where(np.isfinite(fraction), fraction, self.memory_fraction)
        peak = np.where(np.isfinite(seen.memory_told), seen.memory_told, seen.memory_used)
        batch = seen.settings.batch / seen.settings.gpus
        told = np.isfinite(peak) & seen.acknowledged
        same = told & (batch == self.memory_batch)
        noise = _averaged(self.memory_noise, np.abs(peak / self.memory_last - 1), measuring.SMOOTH)
        self.memory_noise = np.where(same, noise, self.memory_noise)
        self.memory_last = np.where(told, peak, self.memory_last)
        other = told & ~same
        # The batch before last may be running again: then its peak counts too.
        back = other & (batch == self.memory_batch_before)
        highest = np.where(back, np.fmax(peak, self.memory_peak_before), peak)
        for name, now in (("batch", batch), ("peak", highest)):
            last = getattr(self, f"memory_{name}")
            before = getattr(self, f"memory_{name}_before")
            setattr(self, f"memory_{name}_before", np.where(other, last, before))
            setattr(self, f"memory_{name}", np.where(other, now, last))
        self.memory_peak = np.where(same, np.fmax(peak, self.memory_peak), self.memory_peak)
        self.memory_base = np.where(told, np.fmin(peak, self.memory_base), self.memory_base)

    def _unrest(self) -> Flags:
        """``stability.unrest``, without its words."""
        seen, first, usual = self.signals, np.abs(self.loss_first), self.spread_usual
        wide = (seen.spread > stability.VISIBLE * first) & (
            seen.spread > stability.OSCILLATION * usual
        )
        spread = np.where(np.isfinite(usual), usual, seen.spread)
        rise = np.maximum(stability.CLIMB * first, stability.CLIMB_SPREADS * spread)
        climbs = seen.level - self.loss_best > rise
        mean_cosine, strength = alignment(self.cosines)
        opposed = (mean_cosine < stability.OPPOSED) & (strength <= -3)
        bad = self.nonfinite.sum(axis=1) >= stability.BAD_LOSSES
        return np.asarray(bad | (seen.known & ~seen.falls & (wide | climbs | opposed)))

    def _calm(self) -> None:
        calm = self.signals.known & ~self.unrest
        usual = _averaged(self.spread_usual, self.signals.spread, measuring.SMOOTH)
        self.spread_usual = np.where(calm, usual, self.spread_usual)
        best = np.fmin(self.loss_best, self.signals.level)
        self.loss_best = np.where(calm, best, self.loss_best)

    def _fix_scales(self, seen: Measured, bounds: Bounds) -> None:
        known = (self.progress > 0) | (self.decisions >= measuring.SCALES_BY)
        fixed = known & (self.throughput > 0) & np.isnan(self.throughput_max)
        for name, value in self.scales(seen, bounds).items():
            setattr(self, name, np.where(fixed, value, getattr(self, name)))

    def scales(self, seen: Measured, bounds: Bounds) -> dict[str, Floats]:
        """Those that are fixed, else provisional ones (``measuring.provisional_scales``)."""
        devices = bounds.gpus_max / seen.settings.gpus
        speed = measuring.HEADROOM * devices * self.throughput
        whole = np.divide(
            seen.elapsed,
            self.progress,
            out=np.full(len(speed), Scales().total_s),
            where=self.progress > 0,
        )
        provisional = {
            "throughput_max": np.where(self.throughput > 0, speed, 1.0),
            "cost_max": bounds.gpus_max * bounds.price,
            "total_s": np.where(self.progress > 0, np.maximum(whole, 1.0), whole),
        }
        fixed = np.isfinite(self.throughput_max)
        return {
            name: np.where(fixed, getattr(self, name), value) for name, value in provisional.items()
        }

    @property
    def noise_scale(self) -> Floats:
        """Gradient noise scale, samples (``stability.noise_scale``); NaN while unknown."""
        sqr, var = mean(self.grad_sqr), mean(self.grad_var)
        return np.asarray(np.divide(var, sqr, out=np.full(len(sqr), np.nan), where=sqr > 0))

    @property
    def loss_level(self) -> Floats:
        """Level of the loss."""
        return level(self.losses)

    def decided(self, seen: Measured, after: Settings, action: Floats) -> None:
        """Take in a decision (``measuring.decided``).

        Args:
            seen: What it rests on.
            after: The settings from now on.
            action: The actions that are left of the proposals, encoded.
        """
        before = seen.settings
        self.decisions = self.decisions + 1
        self.action_before, self.action = self.action, action
        moved = after.gpus != before.gpus
        self.gpus_changed_at = np.where(moved, seen.elapsed, self.gpus_changed_at)
        self.gpus_change = np.where(moved, after.gpus - before.gpus, self.gpus_change)
        interrupted = np.isfinite(seen.oom_batch)
        self.samples_at = np.where(interrupted, np.nan, self.samples_at)
        self.throughput = np.where(interrupted, np.nan, self.throughput)
        setback = (after.lr_factor < before.lr_factor) & self.unrest
        resized = after.batch != before.batch
        anew = (setback | resized)[:, None]
        for name in ("losses", "loss_samples", "grad_sqr", "grad_var", "cosines"):
            setattr(self, name, np.where(anew, np.nan, getattr(self, name)))
        self.nonfinite = np.where(setback[:, None], 0.0, self.nonfinite)
        self.loss_best = np.where(setback | resized, np.nan, self.loss_best)
        narrower = np.sqrt(before.batch / after.batch)
        self.spread_usual = np.where(resized, self.spread_usual * narrower, self.spread_usual)


def _averaged(average: Floats, value: Floats, share: float) -> Floats:
    """An exponential average with one more value, which begins it where there is none."""
    return np.where(np.isnan(average), value, average + share * (value - average))


def _last(values: Floats, otherwise: Floats) -> Floats:
    """The last value of each row that is known."""
    told = np.isfinite(values)
    last = values.shape[1] - 1 - told[:, ::-1].argmax(axis=1)
    return np.where(told.any(axis=1), values[np.arange(len(values)), last], otherwise)
