"""NVIDIA GPUs and MIG slices, by UUID, read through NVML.

NVML numbers devices by PCI bus, CUDA by speed unless told otherwise: only UUIDs name a device
beyond doubt, so leases, locks and ``CUDA_VISIBLE_DEVICES`` are all by UUID.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import psutil
import pynvml

from mlflow_rlsched.devices.interface import Device, Inventory, Reading
from mlflow_rlsched.devices.topology import groups

STRANGER_MEMORY_BYTES = 1 << 30
"""Memory in use without a visible process that makes a device count as taken. A display, a
persistence daemon or a driver keeps some hundred MiB; a training holds more than this."""

_NOT_LINKED = 100
"""Added to the distance of GPUs without NVLink between them: more than all of PCI Express is."""

_MAX_MEMORY_BYTES = 1 << 50
_MAX_NAMED_PROCESSES = 3

# AttributeError: these bindings lack the function. A missing versioned symbol of the library
# raises NVMLLibraryMismatchError, which is no NVMLError.
_UNAVAILABLE = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError)
_LOST = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
)
# What a handle gives whose slice was destroyed.
_GONE = (*_LOST, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND)

_WHY_UNAVAILABLE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVML and the loaded NVIDIA driver have different versions: "
        "restart the host after a driver update"
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for nvidia-ml-py",
}

_THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}


_T = TypeVar("_T")
_N = TypeVar("_N", int, float)
_logger = logging.getLogger(__name__)


class NvmlUnavailable(Exception):
    """NVML cannot be used on this host; the text says why."""


class _DeviceLost(Exception):
    """A device does not answer any more."""

    def __str__(self) -> str:
        return "it does not answer"


def _newest(new: Callable[[Any], Any], old: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Calls ``new``, or ``old`` where the driver or the bindings lack it."""

    def call(handle: Any) -> Any:
        try:
            return new(handle)
        except _UNAVAILABLE:
            return old(handle)

    return call


# Version 2 leaves out what the driver reserves for itself.
_memory_info = _newest(
    lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
    pynvml.nvmlDeviceGetMemoryInfo,
)
_temperature = _newest(
    lambda handle: pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
    lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
)
_clock_reasons = _newest(
    lambda handle: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    lambda handle: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
)


def _clock(kind: int) -> Callable[[Any], float]:
    return lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, kind)


def _thousandths(ask: Callable[[Any], int]) -> Callable[[Any], float]:
    return lambda handle: ask(handle) / 1000


# Readings of whole GPUs: how to ask, and the least and the largest value that can be true.
_NUMBERS: dict[str, tuple[Callable[[Any], float], float, float]] = {
    "utilization_percent": (
        lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        0,
        100,
    ),
    "power_watts": (_thousandths(pynvml.nvmlDeviceGetPowerUsage), 0, 1e5),
    "power_limit_watts": (_thousandths(pynvml.nvmlDeviceGetEnforcedPowerLimit), 1, 1e5),
    "energy_joules": (_thousandths(pynvml.nvmlDeviceGetTotalEnergyConsumption), 0, 1e15),
    "sm_clock_mhz": (_clock(pynvml.NVML_CLOCK_SM), 0, 1e5),
    "memory_clock_mhz": (_clock(pynvml.NVML_CLOCK_MEM), 0, 1e5),
    "temperature_celsius": (_temperature, -100, 200),
}


class NvidiaInventory(Inventory):
    """The GPUs of this host; one in MIG mode is replaced by its slices.

    A device that does not answer when the inventory is made is left out; one that stops
    answering later stays, and its readings say ``lost``.

    Raises:
        NvmlUnavailable: NVML cannot be used; the text says why.
    """

    kind = "nvidia"

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._handles: dict[str, Any] = {}
        self._gpus: dict[str, str] = {}  # UUIDs by NVML index, those of MIG parents too
        self._gpu_handles: dict[int, Any] = {}
        self._warned: set[tuple[str, str]] = set()
        try:
            pynvml.nvmlInit()
        except _UNAVAILABLE as error:
            raise NvmlUnavailable(_why(error)) from error
        try:
            count = pynvml.nvmlDeviceGetCount()
        except _UNAVAILABLE as error:
            self.close()
            raise NvmlUnavailable(_why(error)) from error
        for index in range(count):
            try:
                self._add(index)
            except (*_UNAVAILABLE, _DeviceLost) as error:
                _logger.warning("GPU %d is left out: %s", index, error)
        self._locate()

    def _add(self, index: int) -> None:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(gpu))
        self._gpus[str(index)] = uuid
        self._gpu_handles[index] = gpu
        if not _mig_enabled(gpu):
            self._offer(gpu, Device(uuid, "nvidia", index, _text(pynvml.nvmlDeviceGetName(gpu))))
            return
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
            except pynvml.NVMLError_NotFound:
                continue
            name = _text(pynvml.nvmlDeviceGetName(mig))
            mig_uuid = _text(pynvml.nvmlDeviceGetUUID(mig))
            self._offer(mig, Device(mig_uuid, "mig", index, name, parent=uuid))

    def _offer(self, handle: Any, device: Device) -> None:
        self._handles[device.id] = handle
        self._devices.append(replace(device, memory_bytes=self._usable_memory(device)))

    def _locate(self) -> None:
        """Say of each device in which groups its GPU is, and that slices of a GPU are in one."""
        gpus = list(self._gpu_handles.values())
        found = groups([[_distance(a, b) for b in gpus[:n]] for n, a in enumerate(gpus)])
        of = dict(zip(self._gpu_handles, found, strict=True))
        self._devices = [replace(d, groups=(*of[d.index], d.index)) for d in self._devices]

    def devices(self) -> list[Device]:
        """Whole GPUs and slices, by NVML index."""
        return list(self._devices)

    def read(self, device: Device) -> Reading:
        """Sample a device; of a slice, only what is the slice's own: memory and processes."""
        try:
            self._check_identity(device)
            values: dict[str, Any] = {**self._memory(device), "processes": self._processes(device)}
            if device.kind == "nvidia":
                values["throttle_reasons"] = self._throttle_reasons(device)
                for field, (ask, low, high) in _NUMBERS.items():
                    values[field] = self._sane(
                        device, field, self._ask(device, field, ask), low, high
                    )
        except _DeviceLost:
            return Reading(lost=True)
        return Reading(**values)

    def occupied(self, device: Device, reading: Reading) -> str | None:
        """Names the processes, or the memory when it is more than an idle device's."""
        used = reading.memory_used_bytes
        if reading.processes:
            pids = list(reading.processes)
            names = [_describe(pid) for pid in pids[:_MAX_NAMED_PROCESSES]]
            if more := len(pids) - len(names):
                names.append(f"{more} more")
            memory = "" if used is None else f", {_gib(used)}"
            return f"used by {' and '.join(names)}{memory}"
        if used is not None and used > STRANGER_MEMORY_BYTES:
            return f"used by processes not visible from here, {_gib(used)}"
        return None

    def unexplained(self, device: Device, reading: Reading) -> str | None:
        """More memory than an idle device's beyond that of all processes which the driver names."""
        if reading.memory_used_bytes is None or reading.processes is None:
            return None
        told = [size for size in reading.processes.values() if size is not None]
        if len(told) < len(reading.processes):
            return None
        left = reading.memory_used_bytes - sum(told)
        return None if left <= STRANGER_MEMORY_BYTES else f"{_gib(left)} that no process explains"

    def environment(self, devices: Sequence[Device], slots_per_process: int) -> dict[str, str]:
        """The devices by UUID; none at all when there are none."""
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(device.id for device in devices),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def allowed(self, limit: Sequence[str] | None) -> list[Device]:
        """The devices that an outer ``CUDA_VISIBLE_DEVICES`` leaves, as CUDA reads it.

        Args:
            limit: Indices (in PCI bus order), UUIDs or unique beginnings of UUIDs, a GPU in MIG
                mode standing for its slices. All from the first wrong entry on is ignored. None
                allows all.
        """
        if limit is None:
            return self.devices()
        ids: set[str] = set()
        for entry in limit:
            uuid = self._resolve(entry.strip())
            if uuid is None:
                break
            ids.add(uuid)
        return [d for d in self._devices if d.id in ids or d.parent in ids]

    def close(self) -> None:
        """Shut NVML down."""
        with suppress(*_UNAVAILABLE):
            pynvml.nvmlShutdown()

    def _resolve(self, entry: str) -> str | None:
        if entry in self._gpus:
            return self._gpus[entry]
        if not entry.startswith(("GPU-", "MIG-")):
            return None
        known = {*self._gpus.values(), *self._handles}
        matching = [uuid for uuid in known if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None

    def _check_identity(self, device: Device) -> None:
        """Make sure that the handle is still the device's and not that of a new slice."""
        uuid = self._ask(device, "uuid", pynvml.nvmlDeviceGetUUID, _GONE)
        if uuid is not None and _text(uuid) != device.id:
            raise _DeviceLost

    def _memory(self, device: Device) -> dict[str, int | None]:
        info = self._ask(device, "memory", _memory_info)
        if info is None:
            return {"memory_total_bytes": None, "memory_used_bytes": None}
        total = self._sane(device, "memory_total_bytes", info.total, 1, _MAX_MEMORY_BYTES)
        most = _MAX_MEMORY_BYTES if total is None else total
        used = self._sane(device, "memory_used_bytes", info.used, 0, most)
        return {"memory_total_bytes": total, "memory_used_bytes": used}

    def _usable_memory(self, device: Device) -> int | None:
        """Memory less what the driver reserves for itself, as far as it tells that."""
        total = self._memory(device)["memory_total_bytes"]
        if total is None:
            return None
        reserved = getattr(self._ask(device, "memory", _memory_info), "reserved", 0)
        return total - (self._sane(device, "memory reserved", reserved, 0, total) or 0)

    def _processes(self, device: Device) -> dict[int, int | None] | None:
        running = self._ask(device, "processes", pynvml.nvmlDeviceGetComputeRunningProcesses)
        if running is None:
            return None
        processes: dict[int, int | None] = {}
        most = device.memory_bytes or _MAX_MEMORY_BYTES
        for process in running:  # one that computes in several contexts stands there as often
            size = self._sane(device, "memory of a process", process.usedGpuMemory, 0, most)
            before = processes.get(process.pid, 0)
            processes[process.pid] = None if size is None or before is None else before + size
        return processes

    def _throttle_reasons(self, device: Device) -> list[str] | None:
        bits = self._ask(device, "throttle_reasons", _clock_reasons)
        if bits is None:
            return None
        return [name for bit, name in _THROTTLE_REASONS.items() if bits & bit]

    def _ask(
        self,
        device: Device,
        what: str,
        ask: Callable[[Any], _T],
        lost: Sequence[int] = _LOST,
    ) -> _T | None:
        try:
            return ask(self._handles[device.id])
        except _UNAVAILABLE as error:
            if getattr(error, "value", None) in lost:
                raise _DeviceLost from error
            self._warn_once(device, what, str(error))
            return None

    def _sane(
        self, device: Device, what: str, value: _N | None, low: float, high: float
    ) -> _N | None:
        if value is None or low <= value <= high:
            return value
        self._warn_once(device, what, f"it says {value}")
        return None

    def _warn_once(self, device: Device, what: str, why: str) -> None:
        if (device.id, what) not in self._warned:
            self._warned.add((device.id, what))
            _logger.warning("no %s of %s (%s): %s", what, device.name, device.id, why)


def _distance(a: Any, b: Any) -> int:
    """How far apart two GPUs are, by NVLink first, then by what they share of PCI Express.

    NVML's level of their common ancestor: a switch, several, a host bridge, a NUMA node, the host.
    """
    level: int = pynvml.NVML_TOPOLOGY_SYSTEM
    linked = False
    with suppress(*_UNAVAILABLE):
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b)
    with suppress(*_UNAVAILABLE):  # directly or through an NVSwitch
        status = pynvml.nvmlDeviceGetP2PStatus(a, b, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        linked = status == pynvml.NVML_P2P_STATUS_OK
    return level if linked else level + _NOT_LINKED


def _why(error: Exception) -> str:
    value = getattr(error, "value", None)
    return _WHY_UNAVAILABLE.get(value, f"NVML cannot be used: {error}")


def _text(value: str | bytes) -> str:
    """Some versions of the bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _mig_enabled(gpu: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(gpu)
    except _UNAVAILABLE:
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _describe(pid: int) -> str:
    """A process for people; in a container NVML gives PIDs of the host, unknown here."""
    try:
        process = psutil.Process(pid)
        return f"{process.name()} (pid {pid}) of {process.username()}"
    except psutil.Error:
        return f"pid {pid}, not visible from here"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
