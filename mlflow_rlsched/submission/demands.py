"""Whether this host could ever grant what is asked for."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from mlflow_rlsched.config import ConfigError, RunConfig
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.devices.demand import DEVICE_LIMIT, UNLIMITED, demand, suits
from mlflow_rlsched.devices.locks import lock_dir


@dataclass(frozen=True)
class Parent:
    """The scheduled run that a submission comes from.

    Attributes:
        run_id: The run.
        shared_dir: The attempt of it whose devices are shared; None when the new run queues.
    """

    run_id: str
    shared_dir: str | None


def parent_run(config: RunConfig) -> Parent | None:
    """The run that this process is part of, or None.

    Raises:
        ConfigError: The new run is to queue while that one holds devices.
    """
    run_dir, attempt_dir = (os.environ.get(f"RLSCHED_{n}_DIR") for n in ("RUN", "ATTEMPT"))
    if not run_dir or not attempt_dir:
        return None
    if config.nested == "share":
        return Parent(Path(run_dir).name, attempt_dir)
    if os.environ.get("RLSCHED_NUM_GPUS", "0") != "0":
        raise ConfigError(
            'nested is "queue", but the run that submits holds devices: both could wait for ever; '
            'give the outer run "gpus": {"initial": 0} or this one "nested": "share"'
        )
    return Parent(Path(run_dir).name, None)


def device_limit() -> list[str] | None:
    """The devices that ``CUDA_VISIBLE_DEVICES`` leaves, as written; None without it.

    Inside a scheduled run, those that the run's own submitter was left with.
    """
    value = os.environ.get(DEVICE_LIMIT, os.environ.get("CUDA_VISIBLE_DEVICES", UNLIMITED))
    return None if value == UNLIMITED else [entry.strip() for entry in value.split(",")]


def check_devices(config: RunConfig, limit: list[str] | None) -> None:
    """Refuse what this host could never grant.

    Raises:
        ConfigError: Another host is required, or more devices than there are.
        CpuSlotsError: ``RLSCHED_CPU_SLOTS`` is no number.
        LockError: The device locks cannot be used.
    """
    host = socket.gethostname()
    if config.requires.host not in (None, host):
        raise ConfigError(
            f"requires.host is {config.requires.host!r}, but this store serves {host!r} only"
        )
    lock_dir()
    inventory = open_inventory()
    try:
        devices = inventory.allowed(limit)
        wanted = demand(config, nested=False, kind=inventory.kind).devices
        suited = [d for d in devices if suits(d, config)]
    finally:
        inventory.close()
    if wanted <= len(suited):
        return
    kind = "CPU slots" if inventory.kind == "cpu" else "GPUs"
    where = f"{host} has {len(devices)}"
    if limit is not None and inventory.kind != "cpu":
        where += f" within CUDA_VISIBLE_DEVICES={','.join(limit)}"
    if len(suited) < len(devices):
        where += f", {len(suited)} of them as `requires` asks"
    raise ConfigError(f"gpus: it asks for {wanted} {kind}, but {where}")
