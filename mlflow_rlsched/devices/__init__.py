"""What can be leased: inventories, host-wide locks and readings (light: no import of NVML)."""

from __future__ import annotations

from mlflow_rlsched.devices.interface import Inventory


def open_inventory() -> Inventory:
    """This host's NVIDIA GPUs when there are any, else CPU slots.

    Raises:
        CpuSlotsError: ``RLSCHED_CPU_SLOTS`` is not a positive whole number.
    """
    from mlflow_rlsched.devices.cpu import CpuInventory
    from mlflow_rlsched.devices.nvidia import NvidiaInventory, NvmlUnavailable

    try:
        inventory = NvidiaInventory()
    except NvmlUnavailable:
        return CpuInventory()
    if inventory.devices():
        return inventory
    inventory.close()
    return CpuInventory()
