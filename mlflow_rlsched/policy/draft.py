"""What is left of a proposal while the guard's rules go over it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_rlsched.policy.action import Setting
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.proposal import Proposal


@dataclass
class Draft:
    """What is left of a proposal, and what the rules know.

    Attributes:
        gpus: Devices.
        batch_size: Global batch, samples, or None when there is none to set.
        lr_factor: Product of the policy's own factors.
        before: The setting in force.
        proposal: What the policy wanted.
        interval: What was measured.
        history: What is remembered.
        limits: The run's limits.
        batch_low: Smallest batch allowed.
        batch_high: Largest batch allowed.
        gpu_vetoes: Reasons so far why the devices are not those that were proposed.
        vetoes: Reasons so far why the batch or the rate is not.
    """

    gpus: int
    batch_size: int | None
    lr_factor: float
    before: Setting
    proposal: Proposal
    interval: Interval
    history: History
    limits: Limits
    batch_low: int = 1
    batch_high: int = 2**31 - 1
    gpu_vetoes: list[str] = field(default_factory=list)
    vetoes: list[str] = field(default_factory=list)

    def keep_gpus(self, why: str) -> None:
        """Take back a change of the devices."""
        if self.gpus != self.before.gpus:
            self.gpu_vetoes.append(f"the number of devices stays at {self.before.gpus}: {why}")
            self.gpus = self.before.gpus

    def keep_batch(self, why: str) -> None:
        """Take back a change of the batch size."""
        if self.batch_size != self.before.batch_size:
            self.vetoes.append(f"the batch stays at {self.before.batch_size}: {why}")
            self.batch_size = self.before.batch_size

    def keep_rate(self, why: str) -> None:
        """Take back a change of the learning rate."""
        if self.lr_factor != self.before.lr_factor:
            self.vetoes.append(f"the learning rate stays as it is: {why}")
            self.lr_factor = self.before.lr_factor

    def set_gpus(self, gpus: int, why: str) -> None:
        """Change the devices to a number that is allowed."""
        if gpus == self.before.gpus:
            self.keep_gpus(why)
        elif gpus != self.gpus:
            self.gpu_vetoes.append(f"the number of devices becomes {gpus}, not {self.gpus}: {why}")
            self.gpus = gpus

    def set_batch(self, size: int, why: str) -> None:
        """Change the batch size to one that is allowed."""
        if size == self.before.batch_size:
            self.keep_batch(why)
        elif size != self.batch_size:
            self.vetoes.append(f"the batch becomes {size}, not {self.batch_size}: {why}")
            self.batch_size = size

    @property
    def batch_grows(self) -> bool:
        """Whether the batch gets larger."""
        return (self.batch_size or 0) > (self.before.batch_size or 0)
