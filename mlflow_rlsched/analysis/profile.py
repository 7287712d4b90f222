"""The profile of a run: where its time went, how well its devices were used, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_rlsched.analysis.readings import Readings
from mlflow_rlsched.analysis.recorded import Record, RunRecord
from mlflow_rlsched.analysis.steps import Step, steps
from mlflow_rlsched.analysis.timeline import (
    Stretch,
    device_seconds_by_part,
    seconds_by_part,
    stretches,
)
from mlflow_rlsched.policy import goodput
from mlflow_rlsched.policy.advice import Knowledge
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.memory import SHARE, bytes_per_sample

JOULES_OF_A_KWH = 3.6e6


@dataclass(frozen=True)
class Scaling:
    """What some number of devices came to.

    Attributes:
        gpus: The number.
        batch: Batch size at which they were fastest, samples.
        rate: Samples a second there.
        efficiency: That over the same for each device of the smallest number that was seen.
    """

    gpus: int
    batch: float
    rate: float
    efficiency: float


@dataclass(frozen=True)
class Memory:
    """Memory of the fullest device.

    Attributes:
        peak: Most that was used of it, 0 to 1.
        batch: Largest batch that the measured bytes of a sample would let fit; None where they are
            not known.
    """

    peak: float
    batch: int | None


@dataclass(frozen=True)
class Profile:
    """What is known of a run; None is "not recorded".

    Attributes:
        record: What it rests on.
        stretches: Its time, cut.
        parts: Seconds by part of its time; they add up to ``wall_s``.
        device_parts: Device-seconds by part; they add up to what it held.
        utilisation: Mean utilisation of its devices, 0 to 1.
        input_told: Whether its training told how long it waits for input.
        communication_error: Error of the step times that the part of communication was read off;
            None where that part is not known, and so in ``compute``.
        memory: Memory of its devices.
        scaling: Each number of devices that was seen; one is no scaling.
        readings: What its devices said.
        price: Price of a device-hour.
        cost: What it cost.
    """

    record: RunRecord
    stretches: Sequence[Stretch]
    parts: Mapping[str, float]
    device_parts: Mapping[str, float]
    utilisation: float | None
    input_told: bool
    communication_error: float | None
    memory: Memory | None
    scaling: Sequence[Scaling]
    readings: Readings
    price: float | None
    cost: float | None

    @property
    def wall_s(self) -> float:
        """From its submission to its end, or to now; what it was over in between included."""
        return sum(stretch.seconds for stretch in self.stretches)

    @property
    def energy_kwh(self) -> float | None:
        """What its devices took."""
        joules = self.readings.energy_j
        return None if joules is None else joules / JOULES_OF_A_KWH

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, len(self.record.launches) - 1)

    def share(self, part: str) -> float:
        """A part of the wall time, 0 to 1."""
        return self.parts[part] / self.wall_s if self.wall_s else 0.0


def profile(
    record: RunRecord, readings: Readings, price: float | None, cost: float | None
) -> Profile:
    """The profile of a run.

    Args:
        record: What is on record of it.
        readings: What its devices said, as far as MLflow has it.
        price: Price of a device-hour, or None.
        cost: What it cost, or None.
    """
    found = stretches(record)
    sent, error = _communication(record.decisions)
    return Profile(
        record=record,
        stretches=found,
        parts=seconds_by_part(found, sent),
        device_parts=device_seconds_by_part(record, found, sent),
        utilisation=_utilisation(record.decisions, readings),
        input_told=any(stretch.input_wait is not None for stretch in found),
        communication_error=error,
        memory=_memory(record, readings),
        scaling=scaling(steps(record)),
        readings=readings,
        price=price,
        cost=cost,
    )


def scaling(measured: Sequence[Step]) -> list[Scaling]:
    """How well more devices were used, each at its fastest batch."""
    best: dict[int, Step] = {}
    for step in measured:
        if step.gpus not in best or step.rate > best[step.gpus].rate:
            best[step.gpus] = step
    if not best:
        return []
    base = best[min(best)]
    return [
        Scaling(gpus, step.batch, step.rate, step.rate / gpus / (base.rate / base.gpus))
        for gpus, step in sorted(best.items())
    ]


def known(records: Sequence[Record], name: str) -> list[tuple[Record, float]]:
    """A field of the state, by decision, where it was known."""
    found = [(record, record["state"].get(name)) for record in records]
    return [(record, each["value"]) for record, each in found if each and not each["missing"]]


def _mean(records: Sequence[Record], name: str) -> float | None:
    """Mean of a field of the state over the time in which it was known."""
    told = [(value, record["terms"]["duration_s"]) for record, value in known(records, name)]
    seconds = sum(length for _, length in told)
    return sum(value * length for value, length in told) / seconds if seconds else None


def _utilisation(records: Sequence[Record], readings: Readings) -> float | None:
    """While it trained, where that was measured, else while it held its devices."""
    mean = _mean(records, "gpu_utilisation")
    return readings.utilisation if mean is None else mean


def _memory(record: RunRecord, readings: Readings) -> Memory | None:
    """Memory of the devices; that of a host with CPU slots does not bound the batch."""
    used = [value for _, value in known(record.decisions, "memory_used")]
    peak = max(used) if used else readings.memory
    if peak is None:
        return None
    if record.on_slots or not record.decisions:
        return Memory(peak, None)
    return Memory(peak, _fitting(record.decisions[-1]))


def _fitting(record: Record) -> int | None:
    """Largest batch that fits on the devices of a decision."""
    history = History.from_json(record["history"])
    each, limit = bytes_per_sample(history), history.memory_total
    if each is None or limit is None:
        return None
    now = history.memory[-1]
    room = SHARE * limit - (now.peak - each * now.batch)
    return max(0, int(room / each * max(1, record["before"]["gpus"])))


def _communication(records: Sequence[Record]) -> tuple[dict[int, float], float | None]:
    """Part of the step that synchronisation takes, by attempt, and the error of the fit.

    From the goodput model of the run, once step times of one device and of several were measured:
    before that it is an assumption.
    """
    if not records:
        return {}, None
    learnt = Knowledge.of(History.from_json(records[-1]["history"]).notes)
    seen = set(learnt.timings.gpus[0, learnt.timings.count[0] > 0].tolist())
    if len(seen) < 2 or 1 not in seen:
        return {}, None
    totals: dict[int, list[float]] = {}
    for record in records:
        gpus, batch = record["before"]["gpus"], record["before"]["batch_size"]
        if batch:
            part = _sent(learnt, gpus, batch) if gpus > 1 else 0.0
            length = record["terms"]["duration_s"]
            pair = totals.setdefault(record["attempt"], [0.0, 0.0])
            pair[0] += part * length
            pair[1] += length
    error = float(goodput.fit_error(learnt.parameters, learnt.timings)[0])
    return {attempt: part / length for attempt, (part, length) in totals.items() if length}, error


def _sent(learnt: Knowledge, gpus: int, batch: float) -> float:
    """What a step takes longer than its gradients alone, as a part of it."""
    each = np.array([[batch / gpus]])
    alone = goodput.step_seconds(learnt.parameters, np.ones((1, 1)), each, math.inf)
    both = goodput.step_seconds(
        learnt.parameters, np.array([[float(gpus)]]), np.array([[float(batch)]]), math.inf
    )
    return float(1 - alone[0, 0] / both[0, 0])


def to_json(found: Profile, findings: Sequence[Any], unknown: Sequence[str]) -> dict[str, Any]:
    """A profile as JSON values; what is not recorded is null."""
    record, readings = found.record, found.readings
    return {
        "run_id": record.task.run_id,
        "name": record.task.spec.label,
        "state": record.task.state.value,
        "attempts": len(record.launches),
        "restarts": found.restarts,
        "wall_s": found.wall_s,
        "parts_s": dict(found.parts),
        "device_s": record.device_s,
        "device_parts_s": dict(found.device_parts),
        "communication_error": found.communication_error,
        "utilisation": found.utilisation,
        "memory_peak": found.memory and found.memory.peak,
        "largest_batch": found.memory and found.memory.batch,
        "scaling": [vars(each) for each in found.scaling],
        "energy_kwh": found.energy_kwh,
        "watts": readings.watts,
        "throttled": readings.throttled,
        "celsius": readings.celsius,
        "price": found.price,
        "cost": found.cost,
        "warnings": list(record.warnings),
        "findings": [vars(each) for each in findings],
        "unknown": list(unknown),
    }
