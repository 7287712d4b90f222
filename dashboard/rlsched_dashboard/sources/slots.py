"""What runs use of the CPU slots that they hold: a slot is no core that could be measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.telemetry import Sampler, Target
from mlflow_rlsched.devices.interface import Inventory
from mlflow_rlsched.processes import Identity
from mlflow_rlsched.store import Task


class SlotMeter:
    """Measures the processes of runs, as the agent does; use is that since the last look.

    Args:
        inventory: This host's devices.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._sampler = Sampler(inventory)

    def fill(self, rows: Sequence[dict[str, Any]], tasks: Mapping[str, Task]) -> None:
        """Put readings into those rows of ``Scheduler.devices`` that are of CPU slots.

        Args:
            rows: The rows; each slot gets its part of what its runs use.
            tasks: Tasks that hold slots, by run.
        """
        slots = [row for row in rows if row["kind"] == "cpu"]
        held: dict[str, float] = defaultdict(float)
        for row in slots:
            for holder in row["held_by"]:
                held[holder["run_id"]] += holder["amount"]
        samples = self._sampler.sample(Target(run, _root(tasks.get(run)), ()) for run in held)
        for row in slots:
            mine = [(each["run_id"], each["amount"]) for each in row["held_by"]]
            parts = [amount / held[run] for run, amount in mine]
            cores = _shared([samples[run].cores for run, _ in mine], parts)
            memory = _shared([samples[run].memory_bytes for run, _ in mine], parts)
            row["utilization_percent"] = None if cores is None else min(100.0, 100 * cores)
            row["memory_used_bytes"] = memory or None
            row["memory_total_bytes"] = self._sampler.memory_total


def _root(task: Task | None) -> int | None:
    """The shim of a task's attempt, if that lives here."""
    if task is None:
        return None
    folder = protocol.attempt_dir(Path(task.spec.run_dir), task.attempt)
    shim = Identity.from_json(protocol.read_json(folder / "shim.json"))
    return shim.pid if shim is not None and shim.alive() else None


def _shared(values: Sequence[float | None], parts: Sequence[float]) -> float | None:
    """The sum of a part of each; None where one is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(value * part for value, part in zip(known, parts, strict=True))
