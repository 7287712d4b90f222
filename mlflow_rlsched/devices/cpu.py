"""CPU slots, for hosts without a GPU: amounts of computing, not particular cores."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from mlflow_rlsched.devices.interface import Device, Inventory, Reading

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class CpuSlotsError(ValueError):
    """``RLSCHED_CPU_SLOTS`` is not a positive whole number."""


class CpuInventory(Inventory):
    """The CPU slots ``cpu-0``, ``cpu-1``, …: ``$RLSCHED_CPU_SLOTS``, or one per usable core.

    Raises:
        CpuSlotsError: ``RLSCHED_CPU_SLOTS`` is not a positive whole number.
    """

    kind = "cpu"

    def __init__(self) -> None:
        self._devices = [Device(f"cpu-{i}", "cpu", i, "CPU slot") for i in range(_slots())]

    def devices(self) -> list[Device]:
        """All slots."""
        return list(self._devices)

    def read(self, device: Device) -> Reading:
        """Nothing: a slot is no core that could be measured."""
        return Reading()

    def occupied(self, device: Device, reading: Reading) -> str | None:
        """None: strangers share the cores, not the slots."""
        return None

    def unexplained(self, device: Device, reading: Reading) -> str | None:
        """None: memory is the host's, and ends with its process."""
        return None

    def environment(self, devices: Sequence[Device], slots_per_process: int) -> dict[str, str]:
        """As many threads as slots, and no GPU."""
        threads = str(max(1, slots_per_process))
        return dict.fromkeys(_THREAD_VARIABLES, threads) | {"CUDA_VISIBLE_DEVICES": ""}

    def allowed(self, limit: Sequence[str] | None) -> list[Device]:
        """All slots: the limit is about GPUs."""
        return self.devices()


def _slots() -> int:
    text = os.environ.get("RLSCHED_CPU_SLOTS")
    if not text:
        return usable_cores()
    try:
        slots = int(text)
    except ValueError:
        slots = 0
    if slots < 1:
        raise CpuSlotsError(f"RLSCHED_CPU_SLOTS is {text!r}: give a whole number above 0")
    return slots


def usable_cores() -> int:
    """Cores that this process may use: its affinity and its cgroup's quota, at least 1."""
    return max(1, int(min(len(os.sched_getaffinity(0)), cgroup_quota())))


def cgroup_quota(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float:
    """CPU quota in cores of this process's cgroup and those above it; infinite without one.

    Args:
        membership: Which cgroups the process is in (versions 1 and 2).
        mount: Where cgroup file systems are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    quota = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path may be the host's, and the own group the root of the mount.
        names = path.strip("/").split("/")
        for depth in range(len(names) + 1):
            quota = min(quota, _quota_of(mount.joinpath(controllers, *names[:depth])))
    return quota


def _quota_of(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)
