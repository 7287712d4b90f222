"""Device and process readings as metrics, under the names that MLflow itself uses.

MLflow's own monitor logs every GPU of the host; here a run gets the devices that it holds. CPU
and memory are those of its process tree. The kernel counts network traffic by network namespace,
not by process, so those two figures are the host's, since the sampler started.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlflow_rlsched.devices.interface import Device, Inventory, Reading

CPU_METRIC = "system/cpu_utilization_percentage"

_MEGA = 1e6
_PROPORTIONAL = re.compile(r"^(?:Pss_Anon|Pss_Shmem): +(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """What to sample: a run's process tree and its devices.

    Attributes:
        run_id: The run.
        root_pid: Its shim, or None.
        devices: What it holds.
        cap: Most memory of its tree, bytes, or None. More than that is measured to the page, which
            takes about 20 ms for a GB.
    """

    run_id: str
    root_pid: int | None
    devices: tuple[Device, ...]
    cap: float | None = None


@dataclass(frozen=True)
class Sample:
    """One sample of a run; None is "not known".

    Attributes:
        metrics: Values by their name in MLflow.
        readings: One for each of its devices, in their order.
        cores: CPU cores that its process tree kept busy since the last sample.
        memory_bytes: Memory of the tree that is no copy of a file, which the kernel could drop; of
            one that seems to be above its cap without counting twice what its processes share.
        device_bytes: Memory of the tree on each of its devices.
        network_bytes: Traffic of the host since the sampler started, both ways.
        lost: Why a device counts as lost, or None.
    """

    metrics: dict[str, float]
    readings: tuple[Reading, ...] = ()
    cores: float | None = None
    memory_bytes: int | None = None
    network_bytes: int | None = None
    device_bytes: tuple[int | None, ...] = ()
    lost: str | None = None


class Sampler:
    """Samples all running attempts in one walk over the process table.

    Attributes:
        memory_total: Memory of the host, bytes.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._cores = psutil.cpu_count() or 1
        self.memory_total = psutil.virtual_memory().total
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self._at = time.monotonic()
        network = psutil.net_io_counters()
        self._network = (network.bytes_recv, network.bytes_sent)

    def sample(self, targets: Iterable[Target]) -> dict[str, Sample]:
        """A sample for each target's run id; what cannot be read is left out."""
        targets = list(targets)
        trees = _trees(t.root_pid for t in targets if t.root_pid is not None)
        now = time.monotonic()
        elapsed, self._at = max(now - self._at, 1e-3), now
        network = psutil.net_io_counters()
        received = network.bytes_recv - self._network[0]
        sent = network.bytes_sent - self._network[1]
        before, self._cpu_seconds = self._cpu_seconds, {}
        samples = {}
        for target in targets:
            readings = tuple(self._inventory.read(device) for device in target.devices)
            tree = [] if target.root_pid is None else trees.get(target.root_pid, [])
            cores, resident, memory = self._tree(tree, before, elapsed, target.cap)
            metrics = {
                "system/network_receive_megabytes": received / _MEGA,
                "system/network_transmit_megabytes": sent / _MEGA,
            }
            for device, reading in zip(target.devices, readings, strict=True):
                metrics |= device_metrics(device, reading)
            if cores is not None:
                metrics[CPU_METRIC] = min(100.0, 100 * cores / self._cores)
            if resident is not None:
                share = resident / self.memory_total
                metrics["system/system_memory_usage_megabytes"] = resident / _MEGA
                metrics["system/system_memory_usage_percentage"] = 100 * share
            lost = [d.id for d, r in zip(target.devices, readings, strict=True) if r.lost]
            samples[target.run_id] = Sample(
                metrics,
                readings,
                cores,
                memory,
                received + sent,
                tuple(_device_memory(tree, reading) for reading in readings),
                f"device {lost[-1]} does not answer any more" if lost else None,
            )
        return samples

    def _tree(
        self,
        tree: list[psutil.Process],
        before: Mapping[tuple[int, float], float],
        elapsed: float,
        cap: float | None,
    ) -> tuple[float | None, int | None, int | None]:
        """Busy cores, resident bytes and bytes that no file backs of a tree."""
        used = 0.0
        resident = memory = 0
        known = False
        for process in tree:
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    sizes = process.memory_info()
                    resident += sizes.rss
                    memory += sizes.rss - sizes.shared
            except psutil.Error:
                continue
            seconds = times.user + times.system
            used += seconds - before.get(key, seconds)
            known |= key in before
            self._cpu_seconds[key] = seconds
        if cap is not None and resident > cap:
            memory = sum(_proportional(process.pid) for process in tree)
        # Use is a difference, so the first sample of a tree has none; of one that has just ended
        # zeros would be the last that is seen.
        return (used / elapsed if known and resident else None), resident or None, memory or None


def _proportional(pid: int) -> int:
    """Anonymous and shared memory of a process, bytes; 0 of one that ended or is another user's.

    What it shares with others counts in part (``proc_pid_smaps(5)``: proportional set size).
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * sum(map(int, _PROPORTIONAL.findall(text)))


def _device_memory(tree: Iterable[psutil.Process], reading: Reading) -> int | None:
    """Bytes that the processes of a tree use of a device.

    None where none of them is known to use it: in a container the driver names processes of the
    host by numbers that mean nothing here.
    """
    processes = reading.processes or {}
    sizes = [processes[process.pid] for process in tree if process.pid in processes]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _trees(roots: Iterable[int]) -> dict[int, list[psutil.Process]]:
    """Processes below each root (shims), found in one walk."""
    wanted = set(roots)
    if not wanted:
        return {}
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            children.setdefault(process.ppid(), []).append(process)
        except psutil.Error:
            continue
    trees: dict[int, list[psutil.Process]] = {}
    for root in wanted:
        found: list[psutil.Process] = []
        queue = [root]
        while queue:
            below = children.get(queue.pop(), [])
            found.extend(below)
            queue.extend(process.pid for process in below)
        trees[root] = found
    return trees


def device_metrics(device: Device, reading: Reading) -> dict[str, float]:
    """Metrics of one device; CPU slots have none, what is not supported is left out."""
    if device.kind == "cpu":
        return {}
    prefix = f"system/gpu_{device.index}_"
    if device.kind == "mig":
        prefix = f"system/gpu_{device.index}_mig_{device.id[-4:]}_"
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    watts, limit = reading.power_watts, reading.power_limit_watts
    throttled = reading.throttle_reasons
    values = {
        "utilization_percentage": reading.utilization_percent,
        "memory_usage_megabytes": None if used is None else used / _MEGA,
        "memory_usage_percentage": _percent(used, total),
        "power_usage_watts": watts,
        "power_usage_percentage": _percent(watts, limit),
        "energy_joules": reading.energy_joules,
        "sm_clock_mhz": reading.sm_clock_mhz,
        "memory_clock_mhz": reading.memory_clock_mhz,
        "temperature_celsius": reading.temperature_celsius,
        "throttled": None if throttled is None else float(bool(throttled)),
    }
    return {prefix + name: float(v) for name, v in values.items() if v is not None}


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole
