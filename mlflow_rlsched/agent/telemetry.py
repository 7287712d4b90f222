"""Device and process readings as metrics, under the names that MLflow itself uses.

MLflow's own monitor logs every GPU of the host; here a run gets the devices that it holds. CPU
and memory are those of its process tree. The kernel counts network traffic by network namespace,
not by process, so those two figures are the host's, since the sampler started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from mlflow_rlsched.devices.interface import Device, Inventory, Reading

CPU_METRIC = "system/cpu_utilization_percentage"

_MEGA = 1e6


@dataclass(frozen=True)
class Target:
    """What to sample: a run's process tree and its devices."""

    run_id: str
    root_pid: int | None
    devices: tuple[Device, ...]


class Sampler:
    """Samples all running attempts in one walk over the process table.

    Attributes:
        lost: By run id, which device did not answer at the last sample.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.lost: dict[str, str] = {}
        self._inventory = inventory
        self._cores = psutil.cpu_count() or 1
        self._memory = psutil.virtual_memory().total
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self._at = time.monotonic()
        network = psutil.net_io_counters()
        self._network = (network.bytes_recv, network.bytes_sent)

    def sample(self, targets: Iterable[Target]) -> dict[str, dict[str, float]]:
        """Metrics by name for each target's run id; what cannot be read is left out."""
        targets = list(targets)
        trees = _trees(t.root_pid for t in targets if t.root_pid is not None)
        now = time.monotonic()
        elapsed, self._at = max(now - self._at, 1e-3), now
        network = psutil.net_io_counters()
        shared = {
            "system/network_receive_megabytes": (network.bytes_recv - self._network[0]) / _MEGA,
            "system/network_transmit_megabytes": (network.bytes_sent - self._network[1]) / _MEGA,
        }
        before, self._cpu_seconds = self._cpu_seconds, {}
        samples = {}
        self.lost = {}
        for target in targets:
            metrics = dict(shared)
            for device in target.devices:
                reading = self._inventory.read(device)
                if reading.lost:
                    self.lost[target.run_id] = f"device {device.id} does not answer any more"
                metrics.update(device_metrics(device, reading))
            if target.root_pid is not None:
                tree = trees.get(target.root_pid, [])
                metrics.update(self._tree(tree, before, elapsed))
            samples[target.run_id] = metrics
        return samples

    def _tree(
        self,
        tree: list[psutil.Process],
        before: Mapping[tuple[int, float], float],
        elapsed: float,
    ) -> dict[str, float]:
        used = 0.0
        memory = 0
        for process in tree:
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    memory += process.memory_info().rss
            except psutil.Error:
                continue
            seconds = times.user + times.system
            used += seconds - before.get(key, seconds)
            self._cpu_seconds[key] = seconds
        if not memory:
            return {}  # it has just ended: zeros would be the last that is seen of it
        return {
            CPU_METRIC: min(100.0, 100 * used / elapsed / self._cores),
            "system/system_memory_usage_megabytes": memory / _MEGA,
            "system/system_memory_usage_percentage": 100 * memory / self._memory,
        }


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
