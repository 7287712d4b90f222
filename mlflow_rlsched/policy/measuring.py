"""From an interval's measurements to the history and the reward's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from mlflow_rlsched.policy.action import NO_CHANGE, Action, Setting
from mlflow_rlsched.policy.history import Gradient, History, Memory
from mlflow_rlsched.policy.interval import LARGEST, DeviceUse, Interval, bounded
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.loss import WINDOW, level, signals
from mlflow_rlsched.policy.reward import Scales, Terms, action_change
from mlflow_rlsched.policy.stability import bad_losses, efficiency, noise_scale, unrest
from mlflow_rlsched.protocol import Report

IDLE = 0.2
"""Mean utilisation below which devices count as idle."""

HEADROOM = 4.0
"""Throughput that counts as the most, over the first one measured on the same devices."""

SMOOTH = 0.2
"""Weight of the newest value in what is averaged over intervals."""

SCALES_BY = 10
"""Decisions after which the scales are fixed without a known progress."""


def observe(history: History, interval: Interval, limits: Limits) -> History:
    """The history with what was measured in an interval."""
    history = replace(
        history,
        **_rates(history, interval),
        **_losses(history, interval),
        **_gradients(history, interval),
        **_memory(history, interval),
        **_progress(history, interval, limits),
        **_idle(history, interval),
        network_max=max(history.network_max, bounded(interval.network_rate) or 0.0),
    )
    if interval.oom_batch is not None:
        per_device = interval.oom_batch / max(1, interval.setting.gpus)
        smallest = min(per_device, history.oom_batch or per_device)
        history = replace(history, ooms=history.ooms + 1, oom_batch=smallest)
    history = replace(history, **_calm(history))
    return replace(history, scales=history.scales or _scales(history, interval, limits))


def _number(report: Report, name: str) -> float | None:
    return bounded(report.numbers.get(name))


def _rates(history: History, interval: Interval) -> dict[str, Any]:
    points = [
        (at, samples, _number(report, "step"))
        for report in interval.reports
        if (at := _number(report, "time")) is not None
        and (samples := _number(report, "samples")) is not None
    ]
    if not points:
        return {"throughput_before": history.throughput}
    start, last = points[0], points[-1]
    at, samples = history.samples_at, history.samples
    # A resumed training may be back behind what was counted before.
    if at is not None and samples is not None and at < start[0] and samples <= start[1]:
        start = (at, samples, history.steps)
    seconds = last[0] - start[0]
    known: dict[str, Any] = {"samples": last[1], "samples_at": last[0], "steps": last[2]}
    rate = bounded((last[1] - start[1]) / seconds) if seconds > 0 else None
    if rate is None or rate < 0:
        return known | {"throughput_before": history.throughput}
    if start[2] is not None and last[2] is not None and last[2] >= start[2]:
        known["step_rate"] = bounded((last[2] - start[2]) / seconds)
    before = history.throughput
    noise = history.throughput_noise
    if before and rate and history.action == NO_CHANGE:
        noise = _averaged(noise, abs(rate - before) / max(rate, before))
    return known | {
        "throughput": rate,
        "throughput_before": before,
        "throughput_best": max(rate, history.throughput_best or 0.0),
        "throughput_noise": noise,
    }


def _averaged(average: float | None, value: float) -> float:
    return value if average is None else average + SMOOTH * (value - average)


def _losses(history: History, interval: Interval) -> dict[str, Any]:
    points, counts = list(history.losses), list(history.nonfinite)
    first = history.loss_first
    for report in interval.reports:
        loss = _number(report, "loss")
        wild = bad_losses(report)
        if loss is None and not wild:
            continue
        counts.append(wild)
        if loss is not None:
            first = loss if first is None else first
            points.append((_number(report, "samples") or float(len(points)), loss))
    return {
        "losses": tuple(points[-WINDOW:]),
        "nonfinite": tuple(counts[-WINDOW:]),
        "loss_first": first,
    }


def _gradients(history: History, interval: Interval) -> dict[str, Any]:
    gradients = list(history.gradients)
    usual = history.var_usual
    for report in interval.reports:
        sqr, var = _number(report, "grad_sqr"), _number(report, "grad_var")
        batch = _number(report, "batch_size") or interval.setting.batch_size
        if sqr is None or var is None or var < 0 or not batch or batch < 1:
            continue
        norm = _number(report, "grad_norm")
        expected = norm * norm if norm else max(sqr, 0.0) + var / batch
        cosine = min(max(sqr / expected, -1.0), 1.0) if expected > 0 else 0.0
        gradients.append(Gradient(sqr, var, cosine))
        usual = var if usual is None else usual + SMOOTH / 4 * (var - usual)
    return {"gradients": tuple(gradients[-WINDOW:]), "var_usual": usual}


def _memory(history: History, interval: Interval) -> dict[str, Any]:
    shares = [
        max(used, 0.0) / total
        for device in interval.devices
        if (used := bounded(device.memory_used)) is not None
        and (total := bounded(device.memory_total)) is not None
        and total > 0
    ]
    known: dict[str, Any] = {
        "memory_slope": None,
        "memory_total": _memory_total(history, interval),
    }
    if shares:
        known["memory_fraction"] = fraction = min(max(shares), 1.0)
        if history.memory_fraction is not None and interval.duration_s > 0:
            change = fraction - history.memory_fraction
            known["memory_slope"] = bounded(60 * change / interval.duration_s)
    peak = _peak(interval)
    batch = interval.setting.batch_size
    if peak is None or not batch or not interval.acknowledged:
        return known
    reading = Memory(batch / max(1, interval.setting.gpus), peak)
    others = tuple(m for m in history.memory if m.batch != reading.batch)
    same = [m.peak for m in history.memory if m.batch == reading.batch]
    if history.memory_last and history.memory[-1].batch == reading.batch:
        known["memory_noise"] = _averaged(history.memory_noise, abs(peak / history.memory_last - 1))
    known["memory_last"] = peak
    known["memory"] = (*others[-1:], replace(reading, peak=max([peak, *same])))
    known["memory_base"] = min(peak, history.memory_base or peak)
    return known


def _memory_total(history: History, interval: Interval) -> float | None:
    """Memory of the smallest device; one that was not read counts with what is remembered."""
    totals = [
        total
        for device in interval.devices
        if (total := bounded(device.memory_total)) is not None and total > 0
    ]
    if history.memory_total is not None and len(totals) < max(1, len(interval.devices)):
        totals.append(history.memory_total)
    return min(totals, default=None)


def _peak(interval: Interval) -> float | None:
    """Peak of the fullest device: as the training told it, else as the device did."""
    told = [_number(report, "memory_bytes") for report in interval.reports]
    read = [bounded(device.memory_used) for device in interval.devices]
    for values in (told, read):
        peaks = [value for value in values if value is not None and value > 0]
        if peaks:
            return max(peaks)
    return None


def _progress(history: History, interval: Interval, limits: Limits) -> dict[str, Any]:
    seen = [value for value in map(bounded, interval.objective) if value is not None]
    first, last = history.objective_first, history.objective
    if seen:
        first, last = (seen[0] if first is None else first), seen[-1]
    known: dict[str, Any] = {"objective_first": first, "objective": last}
    told = [p for r in interval.reports if (p := _number(r, "progress")) is not None]
    if told:
        known["progress"] = min(max(told[-1], 0.0), 1.0)
    elif (reached := _reached(first, last, limits)) is not None:
        known["progress"] = reached
    return known


def _reached(first: float | None, last: float | None, limits: Limits) -> float | None:
    """How much of the way from the first objective to its target is done, 0 to 1."""
    target = limits.objective_target
    if first is None or last is None or target is None:
        return None
    sign = 1 if limits.objective_mode == "min" else -1
    way = sign * (first - target)
    return 1.0 if way <= 0 else min(max(sign * (first - last) / way, 0.0), 1.0)


def mean_utilisation(devices: tuple[DeviceUse, ...]) -> float | None:
    """Mean utilisation of the devices that tell theirs, 0 to 1."""
    known = [u for d in devices if (u := bounded(d.utilisation)) is not None]
    return min(max(fmean(known), 0.0), 1.0) if known else None


def _idle(history: History, interval: Interval) -> dict[str, Any]:
    use = mean_utilisation(tuple(interval.devices))
    if use is None or use >= IDLE:
        return {"idle_s": 0.0, "idle_intervals": 0}
    return {
        "idle_s": history.idle_s + interval.duration_s,
        "idle_intervals": history.idle_intervals + 1,
    }


def _calm(history: History) -> dict[str, Any]:
    seen = signals(history.losses)
    if seen is None or unrest(history) is not None:
        return {}
    usual = _averaged(history.spread_usual, seen.spread)
    now = level([loss for _, loss in history.losses])
    lowest = [value for value in (now, history.loss_best) if value is not None]
    return {"spread_usual": usual, "loss_best": min(lowest)}


def _scales(history: History, interval: Interval, limits: Limits) -> Scales | None:
    known = history.progress is not None and history.progress > 0
    late = history.decisions >= SCALES_BY
    if not history.throughput or not (known or late):
        return None
    return provisional_scales(history, interval, limits)


def provisional_scales(history: History, interval: Interval, limits: Limits) -> Scales:
    """What terms are measured against, from what is known so far."""
    devices = max(1, limits.gpus_max) / max(1, interval.setting.gpus)
    default = Scales()
    total = default.total_s
    if history.progress and interval.elapsed_s > 0:
        total = max(interval.elapsed_s / history.progress, 1.0)
    return Scales(
        throughput_max=HEADROOM * devices * history.throughput if history.throughput else 1.0,
        cost_max=max(1, limits.gpus_max) * limits.price or 1.0,
        total_s=min(total, LARGEST),
        interval_s=limits.interval_s or default.interval_s,
    )


def terms_of(before: History, now: History, interval: Interval, limits: Limits) -> Terms:
    """Raw reward terms of an interval.

    Useful throughput and progress count samples by their statistical efficiency where the noise
    scale is known; with an objective that has a target, progress is the way to the target.

    Args:
        before: The history when the interval began.
        now: The history with the interval's measurements.
        interval: The interval.
        limits: The run's limits.
    """
    batch = interval.setting.batch_size
    useful = efficiency(noise_scale(now.gradients), batch, limits.batch_initial) or 1.0
    ways = [_reached(h.objective_first, h.objective, limits) for h in (before, now)]
    if limits.objective_target is not None:
        progress = 0.0 if ways[0] is None or ways[1] is None else ways[1] - ways[0]
    else:
        progress = ((now.progress or 0.0) - (before.progress or 0.0)) * useful
    measured = now.throughput if now.samples_at != before.samples_at else 0.0
    return Terms(
        duration_s=interval.duration_s,
        throughput=min((measured or 0.0) * useful, LARGEST),
        cost=max(1, interval.setting.gpus) * interval.duration_s * limits.price,
        progress=min(max(progress, -1.0), 1.0),
        action_change=action_change(now.action.encoded(), now.action_before.encoded()),
        ending=interval.ending or (None if interval.oom_batch is None else "oom"),
        scales=now.scales or provisional_scales(now, interval, limits),
    )


def decided(
    history: History,
    interval: Interval,
    action: Action,
    setting: Setting,
    notes: Mapping[str, float],
) -> History:
    """The history once a decision was made.

    After a setback, or when the batch size changed, the windows start anew: what they held is no
    evidence on the new setting.
    """
    before = interval.setting
    number = history.decisions + 1
    known: dict[str, Any] = {
        "decisions": number,
        "action": action,
        "action_before": history.action,
        "notes": notes,
    }
    if setting.gpus != before.gpus:
        known["gpus_changed_at"] = interval.elapsed_s
        known["gpus_change"] = setting.gpus - before.gpus
    if setting.lr_factor != before.lr_factor:
        known["lr_changed_at"] = history.samples or 0.0
    if setting.lr_factor > before.lr_factor:
        known["lr_raised_at"] = number
    if setting.lr_factor < before.lr_factor and unrest(history) is not None:
        raised, last = history.lr_raised_at, history.setback_at
        if last is None or (raised is not None and raised > last):
            known["setbacks"] = history.setbacks + 1
        known |= {"setback_at": number, "losses": (), "nonfinite": (), "gradients": ()}
        known["loss_best"] = None
    if setting.batch_size != before.batch_size:
        known |= {"losses": (), "gradients": (), "loss_best": None}
        if history.spread_usual and setting.batch_size and before.batch_size:
            ratio = before.batch_size / setting.batch_size
            known["spread_usual"] = history.spread_usual * math.sqrt(ratio)
    if interval.oom_batch is not None:
        history = history.interrupted()
    return replace(history, **known)
