"""Runs projects/digits on a real GPU, where there is one, and says what it saw there.

Then batches are copied to it beside what it computes: whether they arrive as they are, and in less
time.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mlflow import MlflowClient
from mlflow.entities import Run

from benchmarks.host import PROJECTS, Host, host
from mlflow_rlsched import ElasticDataLoader
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.devices.locks import lock_dir
from mlflow_rlsched.devices.nvidia import NvidiaInventory, NvmlUnavailable
from mlflow_rlsched.training import Session
from mlflow_rlsched.training.prefetch import PrefetchLoader

EPOCHS = 1500  # long enough for some samples of the device
BACKEND = ("--backend", "rlsched", "--backend-config", '{"queue_timeout_s": 120}')
READINGS = ("utilization_percentage", "memory_usage_megabytes", "power_usage_watts")


class NoGpu(Exception):
    """There is no GPU on this host; the text says why."""


@dataclass(frozen=True)
class Finding:
    """Something that was looked at, and whether it is as it should be."""

    text: str
    good: bool


def gpus() -> list[Device]:
    """The GPUs and slices of this host.

    Raises:
        NoGpu: There is none.
    """
    try:
        with closing(NvidiaInventory()) as inventory:
            found = inventory.devices()
    except NvmlUnavailable as error:
        raise NoGpu(str(error)) from error
    if not found:
        raise NoGpu("NVML lists no GPU that could be leased")
    return found


def check(place: Host, devices: list[Device], epochs: int) -> list[Finding]:
    """Run the project, and compare its lease with what CUDA and MLflow saw.

    Raises:
        RuntimeError: The run failed; the text is what it printed.
    """
    place.run("mlflow", "run", str(PROJECTS / "digits"), "-P", f"epochs={epochs}", *BACKEND)
    client = MlflowClient(place.env["MLFLOW_TRACKING_URI"])
    (run,) = client.search_runs(["0"])
    attempt = place.root / "home" / "runs" / run.info.run_id / "attempts" / "1"
    held = run.data.tags["rlsched.devices"]
    device = next((d for d in devices if d.id == held), None)
    if device is None:
        return [Finding(f"leased {held}, which NVML does not list", False)]
    return [
        Finding(f"leased {device.name}, {device.id}, NVML index {device.index}", True),
        _trained_on(attempt / "output.log", device),
        *_readings(client, run, device),
    ]


def _trained_on(output: Path, device: Device) -> Finding:
    """Whether CUDA gave the training the device that it leased."""
    match = re.search(r"^training on (.*)$", output.read_text(), re.MULTILINE)
    where = match[1] if match else "an unknown device"
    uuid = device.id.partition("-")[2]
    return Finding(f"CUDA_VISIBLE_DEVICES={device.id}: trained on {where}", uuid in where)


def _readings(client: MlflowClient, run: Run, device: Device) -> list[Finding]:
    prefix = f"system/gpu_{device.index}_"
    names = [name for name in run.data.metrics if name.startswith("system/gpu_")]
    findings = [
        Finding(f"MLflow has {len(names)} metrics of it", bool(names)),
        Finding("and of no other GPU", all(name.startswith(prefix) for name in names)),
    ]
    for name in names:
        if name.endswith(READINGS):
            history = [metric.value for metric in client.get_metric_history(run.info.run_id, name)]
            text = f"{name}: at most {max(history):g} in {len(history)} samples"
            findings.append(Finding(text, True))
    return findings


def prefetching() -> Finding:
    """Batches of 64 MB, each copied before it is used, and beside what is computed before."""
    device = torch.device("cuda")
    data = torch.randn(512, 2**18)
    square = torch.randn(8192, 8192, device=device)

    def batches() -> ElasticDataLoader:
        session = Session(None, 64, None)
        return ElasticDataLoader(range(len(data)), session, collate_fn=lambda rows: data[rows])

    def epoch(loader: Iterable[Any]) -> tuple[float, torch.Tensor]:
        torch.cuda.synchronize()
        started, sums = time.perf_counter(), []
        for batch in loader:
            there = batch.to(device)
            sums.append(there.double().sum() + 0 * (square @ square).sum())
        found = torch.stack(sums).cpu()  # waits for all
        return time.perf_counter() - started, found

    epoch(batches())  # makes the kernels and the buffers
    plain_s, plain = epoch(batches())
    epoch(PrefetchLoader(batches(), device))
    ahead_s, ahead = epoch(PrefetchLoader(batches(), device))
    text = f"batches that are copied ahead take {ahead_s / plain_s:.2f} of the time of others"
    return Finding(text, bool(torch.equal(plain, ahead)) and ahead_s < plain_s)


def main() -> int:
    """Check, print the findings, and return the exit code."""
    try:
        devices = gpus()
    except NoGpu as error:
        print(f"Nothing to check, because this host has no GPU: {error}.")
        return 0
    if not torch.cuda.is_available():
        version = torch.__version__
        print(f"There is a GPU, but PyTorch {version} cannot use it: install its CUDA build.")
        return 1
    with host(slots=1) as place:
        # The host's own locks: other tasks may hold some of its devices.
        place = replace(place, env={**place.env, "RLSCHED_LOCK_DIR": str(lock_dir())})
        try:
            findings = [*check(place, devices, EPOCHS), prefetching()]
        except RuntimeError as error:
            print(error)
            return 1
    for finding in findings:
        print(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    return 0 if all(finding.good for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
