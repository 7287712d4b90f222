"""A profile as text: rows for a terminal, and Markdown."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mlflow_rlsched.analysis.findings import Finding
from mlflow_rlsched.analysis.markdown import cell, table
from mlflow_rlsched.analysis.profile import Profile
from mlflow_rlsched.analysis.timeline import WORDS
from mlflow_rlsched.words import duration

Rows = list[list[str]]


def facts(found: Profile) -> dict[str, str]:
    """What there is to know at a glance; what is not recorded is not there."""
    record, task = found.record, found.record.task
    memory, readings = found.memory, found.readings
    state = task.state.value
    if task.exit_reason not in ("", state):
        state += f" ({task.exit_reason})"
    told = {
        "run": f"{task.run_id}  {task.spec.label}",
        "state": state,
        "submitted": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(task.submitted_at)),
        "wall time": duration(found.wall_s),
        "attempts": str(len(record.launches)),
        "device time": f"{record.device_s / 3600:.3g} h",
    }
    if found.utilisation is not None:
        told["utilisation"] = f"{found.utilisation:.0%}"
    if memory is not None:
        fits = f"; a batch of about {memory.batch} would fit" if memory.batch else ""
        whole = "the host's" if record.on_slots else "the fullest device"
        told["memory"] = f"at most {memory.peak:.0%} of {whole}{fits}"
    if found.energy_kwh is not None:
        told["energy"] = f"{found.energy_kwh:.4g} kWh"
    if readings.celsius is not None:
        told["temperature"] = f"at most {readings.celsius:.0f} °C"
    if readings.throttled is not None:
        told["throttled"] = f"{readings.throttled:.0%} of the readings"
    if found.cost is not None:
        told["cost"] = f"{found.cost:.4g} (by its `prices`)"
    return told


def part_rows(found: Profile) -> Rows:
    """Where its time went, with the sum."""
    held = found.device_parts
    rows = [
        [WORDS[part], f"{seconds:.1f}", f"{found.share(part):.1%}", f"{held[part]:.1f}"]
        for part, seconds in found.parts.items()
        if seconds
    ]
    share = "100.0%" if found.wall_s else ""
    return [*rows, ["all", f"{found.wall_s:.1f}", share, f"{found.record.device_s:.1f}"]]


PART_HEADINGS = ("WHERE ITS TIME WENT", "SECONDS", "PART", "DEVICE-SECONDS")
SCALING_HEADINGS = ("DEVICES", "FASTEST BATCH", "SAMPLES/S", "EFFICIENCY")


def scaling_rows(found: Profile) -> Rows:
    """What more devices brought; nothing where one number was seen."""
    if len(found.scaling) < 2:
        return []
    return [
        [str(each.gpus), f"{each.batch:g}", f"{each.rate:.4g}", f"{each.efficiency:.0%}"]
        for each in found.scaling
    ]


def markdown(found: Profile, stands_out: Sequence[Finding], unknown: Sequence[str]) -> str:
    """A profile as Markdown."""
    lines = [f"# Profile of {cell(found.record.task.spec.label or found.record.task.run_id)}", ""]
    lines += [f"- {name}: {cell(value)}" for name, value in facts(found).items()]
    lines += ["", "## Where its time went", "", *table(PART_HEADINGS, part_rows(found))]
    if rows := scaling_rows(found):
        lines += ["", "## Scaling", "", *table(SCALING_HEADINGS, rows)]
    lines += ["", "## What stands out", ""]
    lines += [
        f"- **{cell(each.what)}**: {cell(each.evidence)}"
        + (f". Try: {cell(each.setting)}" if each.setting else "")
        for each in stands_out
    ] or ["Nothing."]
    if unknown:
        lines += ["", "## What is not known", "", *(f"- {sentence}" for sentence in unknown)]
    return "\n".join(lines) + "\n"
