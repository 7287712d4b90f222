"""Memory and batch size: how much a sample needs, and which batch fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlflow_rlsched.policy.action import FACTOR_MIN
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.measuring import observe
from mlflow_rlsched.policy.proposal import Proposal

SHARE = 0.92
"""Part of a device's memory, or of its cap, that a predicted setting may need."""

OOM_FACTOR = 0.85
"""On the batch size, after the first time out of memory."""

VARIES, SPARED = 2.0, 5.0
"""How far over the highest peak so far memory has to fit, and how far a smaller batch lets it go
where it does not; in the usual differences of two peaks."""


@dataclass(frozen=True)
class MemoryNeed:
    """What was measured of a run's memory; None is "not known".

    Attributes:
        sample: Bytes that one more sample of the global batch needs on each device.
        base: Bytes that a device needs without any sample.
        limit: Bytes that a device has.
    """

    sample: float | None = None
    base: float | None = None
    limit: float | None = None


def memory_need(history: History, interval: Interval, limits: Limits) -> MemoryNeed:
    """What was measured of a run's memory, the interval included."""
    history = observe(history, interval, limits)
    each = bytes_per_sample(history)
    limit = memory_limit(history, limits)
    if each is None:
        return MemoryNeed(limit=limit)
    now = history.memory[-1]
    return MemoryNeed(each / max(1, interval.setting.gpus), now.peak - each * now.batch, limit)


def bytes_per_sample(history: History) -> float | None:
    """Measured memory that one more sample on a device needs, bytes; None while unknown.

    From the peaks at two batch sizes, else from the peak above the level after the start; never
    more than all of the memory: of two sizes that are close, noise makes any slope.
    """
    if len(history.memory) == 2:
        before, now = history.memory
        slope = (now.peak - before.peak) / (now.batch - before.batch)
        if slope > 0:
            return min(slope, now.peak / now.batch)
    if history.memory and history.memory_base is not None:
        now = history.memory[-1]
        slope = (now.peak - history.memory_base) / now.batch
        if slope > 0:
            return slope
    return None


def memory_limit(history: History, limits: Limits) -> float | None:
    """Bytes that each device of the run has; None when unknown."""
    known = [history.memory_total, limits.memory_cap_bytes]
    return min((value for value in known if value is not None), default=None)


def worst(history: History, peak: float, times: float = VARIES) -> float:
    """What a peak may yet come to at the same batch, as memory varies, bytes."""
    return peak * (1 + times * (history.memory_noise or 0.0))


def sparing(proposal: Proposal, interval: Interval, history: History, limits: Limits) -> Proposal:
    """The proposal with a batch that will go on fitting, where memory varies and may run out."""
    limit, each = memory_limit(history, limits), bytes_per_sample(history)
    if limit is None or each is None or "batch_size" not in interval.can:
        return proposal
    now = history.memory[-1]
    if worst(history, now.peak) <= limit:
        return proposal
    over = worst(history, now.peak, SPARED) - limit
    factor = max(1 - over / each / now.batch, FACTOR_MIN)
    action = replace(proposal.action, batch_factor=min(proposal.action.batch_factor, factor))
    reason = f"memory varies by {history.memory_noise:.0%} and may run out: a smaller batch"
    return replace(proposal, action=action, reason=f"{reason}; {proposal.reason}")


def after_oom(
    batch_size: int,
    ooms: int,
    bytes_per_sample: float | None,
    base_bytes: float | None,
    limit_bytes: float | None,
    floor: int,
) -> tuple[int | None, str]:
    """The batch size to go on with after the training ran out of memory.

    15 % smaller the first time; from the second time on the size that the measured memory
    predicts, if that is smaller still.

    Args:
        batch_size: The batch that did not fit, samples.
        ooms: How often the run has run out of memory, this time included.
        bytes_per_sample: Memory that a sample of this batch needs on a device, bytes.
        base_bytes: Memory that a device needs without any sample, bytes.
        limit_bytes: Memory of a device, bytes.
        floor: Smallest batch size allowed, samples.

    Returns:
        The size (None when nothing smaller is allowed) and one sentence on it.
    """
    if batch_size <= floor:
        return None, f"out of memory even at the smallest batch size allowed, {floor}"
    size = min(int(batch_size * OOM_FACTOR), batch_size - 1)
    why = "15 % less"
    if ooms > 1 and bytes_per_sample and base_bytes is not None and limit_bytes:
        fitting = int((SHARE * limit_bytes - base_bytes) / bytes_per_sample)
        if fitting < size:
            size, why = fitting, f"as {bytes_per_sample / 1e6:.3g} MB a sample predict"
    if size < floor:
        size, why = floor, "the smallest size allowed"
    return size, f"out of memory at batch size {batch_size}: going on with {size}, {why}"
