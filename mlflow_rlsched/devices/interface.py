"""Devices that can be leased, and what can be read from them.

A reading that a device does not support is None, never an exception: a monitor goes on with
what is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Something that can be leased.

    Attributes:
        id: Key for leases and locks: NVIDIA UUID (``GPU-…``), MIG UUID (``MIG-…``), ``cpu-<i>``.
        kind: ``nvidia``, ``mig`` or ``cpu``.
        index: The host's own number (NVML index of the device or of the slice's parent; slot
            number): the ``i`` of ``system/gpu_{i}_…``.
        name: Product name for people.
        memory_bytes: Memory that tasks can use, or None when unknown or not the device's own.
        parent: UUID of the GPU that a MIG slice is part of, or None.
        groups: Where it is: its group at each level, the outermost first, of devices ever better
            connected (``topology.groups``); all devices of an inventory have as many.
    """

    id: str
    kind: str
    index: int
    name: str
    memory_bytes: int | None = None
    parent: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reading:
    """One sample of a device; None is "not supported" or "not now".

    Attributes:
        utilization_percent: Share of the last sample period in which a kernel ran, 0 to 100.
        memory_used_bytes: Memory in use, what the driver reserves for itself left out.
        memory_total_bytes: Total memory.
        power_watts: Power drawn.
        power_limit_watts: Enforced power limit.
        energy_joules: Energy since the driver was loaded.
        sm_clock_mhz: Clock of the multiprocessors.
        memory_clock_mhz: Clock of the memory.
        temperature_celsius: Temperature of the chip.
        throttle_reasons: Names of the reasons that hold clocks down now, None if unknown.
        processes: Memory (bytes; None where the driver does not tell it) of each process that uses
            the device for computing, by its PID; None if unknown.
        lost: Whether the device does not answer any more.
    """

    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_celsius: float | None = None
    throttle_reasons: Sequence[str] | None = None
    processes: Mapping[int, int | None] | None = None
    lost: bool = False


class Inventory(ABC):
    """The devices of one kind on this host."""

    kind: str

    @abstractmethod
    def devices(self) -> list[Device]:
        """What can be leased, by index; the order and the ids are the same at each call."""

    @abstractmethod
    def read(self, device: Device) -> Reading:
        """Sample a device. Never raises for a device of this inventory."""

    @abstractmethod
    def occupied(self, device: Device, reading: Reading) -> str | None:
        """Why a device that nobody leases is in use by strangers, or None when it is free."""

    @abstractmethod
    def unexplained(self, device: Device, reading: Reading) -> str | None:
        """What of a device's memory no process explains; None when that is little or unknown."""

    @abstractmethod
    def environment(self, devices: Sequence[Device], slots_per_process: int) -> dict[str, str]:
        """Variables that make a training see just these devices.

        Args:
            devices: What the attempt was given; may be empty.
            slots_per_process: CPU slots that each process of the training may use.
        """

    @abstractmethod
    def allowed(self, limit: Sequence[str] | None) -> list[Device]:
        """The devices that an outer ``CUDA_VISIBLE_DEVICES`` (split at commas) leaves."""

    def close(self) -> None:  # noqa: B027 - most inventories hold nothing
        """Give back what the inventory holds."""
