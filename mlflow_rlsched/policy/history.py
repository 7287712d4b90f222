"""What a run's earlier decisions leave behind for the next one.

The history is stored with every decision, so that an agent that restarts goes on exactly where
the last one was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from mlflow_rlsched.policy.action import NO_CHANGE, Action
from mlflow_rlsched.policy.reward import Scales


@dataclass(frozen=True)
class Gradient:
    """One report of gradient statistics.

    Attributes:
        sqr: Estimate of the squared norm of the true gradient; at most 0 where consecutive
            gradients are orthogonal or opposed.
        var: Estimate of the trace of the gradient's covariance, of one sample.
        cosine: ``sqr`` over the expected squared norm of a batch's gradient, -1 to 1.
    """

    sqr: float
    var: float
    cosine: float


@dataclass(frozen=True)
class Memory:
    """Peak memory at one batch size: samples a device, bytes a device."""

    batch: float
    peak: float


@dataclass(frozen=True)
class History:
    """What is remembered of a run; times are running time in seconds, None is "not yet".

    Attributes:
        decisions: Decisions so far.
        samples: Samples seen at the last report.
        samples_at: Time stamp of that report, the training's clock.
        steps: Optimizer steps at the last report.
        step_rate: Optimizer steps a second.
        throughput: Samples a second in the last interval that was measured.
        throughput_before: The same in the interval before.
        throughput_best: The best so far.
        throughput_noise: Typical relative difference between intervals of the same setting.
        network_max: Largest network rate seen, bytes/s.
        memory: Peaks at the last two batch sizes, the newest last.
        memory_base: Smallest memory seen of a device, bytes.
        memory_last: Peak of the last interval, bytes.
        memory_noise: Typical relative difference between the peaks of intervals at the same batch.
        memory_total: Memory of the smallest device at the last reading, bytes.
        memory_fraction: Used part of the fullest device at the last reading.
        memory_slope: Its change a minute.
        losses: Window of (samples seen, loss).
        nonfinite: Losses that were NaN or infinite, by report of the window.
        loss_first: The first loss.
        loss_best: The lowest level.
        spread_usual: Spread of the loss while it was calm.
        gradients: Last gradient statistics.
        var_usual: Slow average of the gradient variance.
        progress: Part of the training that is done.
        objective_first: First value of the objective.
        objective: Its last value.
        lr_changed_at: Samples seen when the learning rate last changed.
        lr_raised_at: Decision that last raised the learning rate.
        setback_at: Decision that last lowered the learning rate because the loss was not calm.
        setbacks: How often that happened after the rate had been raised, the first time included.
        idle_s: How long the devices have been idle.
        idle_intervals: For how many intervals.
        gpus_changed_at: When the number of devices last changed.
        gpus_change: Devices more or fewer since then, as it was decided.
        ooms: How often the training ran out of memory.
        oom_batch: Smallest batch, in samples a device, at which it did.
        action: The action in force since the last decision, after the guard.
        action_before: The one before.
        notes: What the policy wanted to remember of what it does, and what models have measured,
            whoever decided (``Proposal.notes``).
        scales: What the reward's terms are measured against, once they are fixed.
    """

    decisions: int = 0
    samples: float | None = None
    samples_at: float | None = None
    steps: float | None = None
    step_rate: float | None = None
    throughput: float | None = None
    throughput_before: float | None = None
    throughput_best: float | None = None
    throughput_noise: float | None = None
    network_max: float = 0.0
    memory: tuple[Memory, ...] = ()
    memory_base: float | None = None
    memory_last: float | None = None
    memory_noise: float | None = None
    memory_total: float | None = None
    memory_fraction: float | None = None
    memory_slope: float | None = None
    losses: tuple[tuple[float, float], ...] = ()
    nonfinite: tuple[int, ...] = ()
    loss_first: float | None = None
    loss_best: float | None = None
    spread_usual: float | None = None
    gradients: tuple[Gradient, ...] = ()
    var_usual: float | None = None
    progress: float | None = None
    objective_first: float | None = None
    objective: float | None = None
    lr_changed_at: float = 0.0
    lr_raised_at: int | None = None
    setback_at: int | None = None
    setbacks: int = 0
    idle_s: float = 0.0
    idle_intervals: int = 0
    gpus_changed_at: float | None = None
    gpus_change: int = 0
    ooms: int = 0
    oom_batch: float | None = None
    action: Action = NO_CHANGE
    action_before: Action = NO_CHANGE
    notes: Mapping[str, float] = field(default_factory=dict)
    scales: Scales | None = None

    def interrupted(self) -> History:
        """The history of a training that stood still: its speed has to be measured anew."""
        return replace(self, samples_at=None, throughput=None)

    def to_json(self) -> dict[str, Any]:
        """The history as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> History:
        """The history that ``to_json`` wrote, also after it went through a file.

        Raises:
            ValueError: It is no such history.
        """
        known = {f.name for f in fields(cls)}
        try:
            return cls(
                **{
                    **{name: item for name, item in value.items() if name in known},
                    "memory": tuple(Memory(**m) for m in value["memory"]),
                    "losses": tuple((float(x), float(y)) for x, y in value["losses"]),
                    "nonfinite": tuple(int(n) for n in value["nonfinite"]),
                    "gradients": tuple(Gradient(**g) for g in value["gradients"]),
                    "action": Action(**value["action"]),
                    "action_before": Action(**value["action_before"]),
                    "notes": {str(k): float(v) for k, v in value["notes"].items()},
                    "scales": None if value["scales"] is None else Scales(**value["scales"]),
                }
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"this is no history of decisions: {error!r}") from error
