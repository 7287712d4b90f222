"""How long the steps of a run took at each setting, from what its training told."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from mlflow_rlsched.analysis.recorded import RunRecord

LEAST_S = 2.0
"""Training time from which a setting counts as measured."""


@dataclass(frozen=True)
class Step:
    """The steps at one setting; what a training does between them, such as validation, is in them.

    Attributes:
        gpus: Devices.
        batch: Batch size, samples.
        samples: Samples that were trained on.
        seconds: In this time.
    """

    gpus: int
    batch: float
    samples: float
    seconds: float

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    @property
    def step_s(self) -> float:
        """Time of a step."""
        return self.batch / self.rate


def steps(record: RunRecord) -> list[Step]:
    """The settings that were measured, the one with most time first.

    A report belongs to the setting that it names and that the one before named, too.
    """
    totals: dict[tuple[int, float], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for launch in record.launches:
        for before, after in pairwise(launch.trained):
            if before.samples is None or after.samples is None or not after.batch:
                continue
            if before.batch == after.batch and after.samples >= before.samples:
                total = totals[launch.gpus, after.batch]
                total[0] += after.samples - before.samples
                total[1] += after.time - before.time
    found = [
        Step(gpus, batch, samples, seconds)
        for (gpus, batch), (samples, seconds) in totals.items()
        if seconds >= LEAST_S and samples > 0
    ]
    return sorted(found, key=lambda step: -step.seconds)
