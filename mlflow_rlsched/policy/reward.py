"""The reward: raw terms that are stored, and their weighted sum.

    R = w (alpha X / X_max - beta C / C_max - smoothness mean((a - a')^2)) + gamma P

with w = duration / reference interval, X the useful throughput, C the cost a second, P the part
of the whole training that was done in the interval (progress over ``T_total``, both in seconds
at the reference speed), and a the encoded action. The maxima are fixed for a run and stored with
the terms, so that rewards of old transitions never go stale.

A run that is done enters an absorbing state that earns alpha a reference interval, and gamma
over ``T_total``, until the horizon: so the faster of two equally cheap runs has the higher return.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlflow_rlsched.config.keys import Reward as Weights

DISCOUNT = 0.99
"""Of a reference interval."""

TERMINAL_PENALTY = 10.0
"""Of an interval in which the run diverged, failed or ran out of memory."""

_PUNISHED = ("oom", "diverged", "failed")


@dataclass(frozen=True)
class Scales:
    """What the terms are measured against; fixed for a run.

    Attributes:
        throughput_max: Useful throughput that counts as 1, samples/s.
        cost_max: Cost a second that counts as 1: all devices that the run may have.
        total_s: Expected length of the run at its initial setting, seconds.
        interval_s: Reference length of an interval, seconds.
    """

    throughput_max: float = 1.0
    cost_max: float = 1.0
    total_s: float = 3600.0
    interval_s: float = 5.0


@dataclass(frozen=True)
class Terms:
    """Raw terms of an interval.

    Attributes:
        duration_s: Its length, seconds.
        throughput: Useful throughput, samples/s.
        cost: Device-seconds times price.
        progress: Part of the whole training done in it, useful progress, -1 to 1.
        action_change: Mean squared difference of the encoded actions, this against the last.
        ending: How the run ended in it (``interval.ENDINGS``), or None.
        scales: What the terms are measured against.
    """

    duration_s: float
    throughput: float = 0.0
    cost: float = 0.0
    progress: float = 0.0
    action_change: float = 0.0
    ending: str | None = None
    scales: Scales = Scales()

    def to_json(self) -> dict[str, Any]:
        """The terms as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Terms:
        """The terms that ``to_json`` wrote."""
        return cls(**{**value, "scales": Scales(**value["scales"])})


@dataclass(frozen=True)
class Reward:
    """A reward by component; costs and penalties are negative."""

    throughput: float
    cost: float
    progress: float
    smoothness: float
    penalty: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.throughput + self.cost + self.progress + self.smoothness + self.penalty

    def to_json(self) -> dict[str, float]:
        """The components and their sum."""
        return {**asdict(self), "total": self.total}


def reward(terms: Terms, weights: Weights) -> Reward:
    """The reward of an interval, by component."""
    scales = terms.scales
    length = terms.duration_s / scales.interval_s
    return Reward(
        throughput=weights.alpha * length * min(terms.throughput / scales.throughput_max, 1.0),
        cost=-weights.beta * terms.cost / (scales.cost_max * scales.interval_s),
        progress=weights.gamma * terms.progress,
        smoothness=-weights.smoothness * length * terms.action_change,
        penalty=-TERMINAL_PENALTY if terms.ending in _PUNISHED else 0.0,
    )


def discount(duration_s: float, scales: Scales) -> float:
    """Discount over an interval of this length."""
    return float(DISCOUNT ** (duration_s / scales.interval_s))


def absorbing(remaining_s: float, weights: Weights, scales: Scales) -> float:
    """Return of a run that is done, over the ``remaining_s`` seconds to the horizon.

    Each reference interval earns alpha + gamma x interval / total; the last one may be a part.
    """
    count, rest = divmod(max(remaining_s, 0.0), scales.interval_s)
    each = weights.alpha + weights.gamma * scales.interval_s / scales.total_s
    whole = each * (1 - DISCOUNT**count) / (1 - DISCOUNT)
    return float(whole + DISCOUNT**count * each * rest / scales.interval_s)


def action_change(action: tuple[float, float, float], before: tuple[float, float, float]) -> float:
    """Mean squared difference of two encoded actions."""
    return sum((a - b) ** 2 for a, b in zip(action, before, strict=True)) / len(action)
