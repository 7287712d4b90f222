"""The memory of the GPUs that a training uses: how much it takes, and its cap."""

from __future__ import annotations

import sys
from typing import Any

CONTEXT_BYTES = 2**30
"""What a process has of a GPU besides what torch allocates: context, kernels, buffers of NCCL."""


def _cuda() -> Any:
    """``torch.cuda`` when the training has begun to use it, else None; waits for no device."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def device_memory() -> dict[str, float]:
    """``memory_bytes``: most that was allocated on the current GPU since the call before.

    Nothing when the training uses none. Waits for no device.
    """
    cuda = _cuda()
    if cuda is None:
        return {}
    peak = cuda.max_memory_allocated()
    cuda.reset_peak_memory_stats()
    return {"memory_bytes": peak}


class MemoryCap:
    """Has torch refuse what a training would allocate above its cap.

    That is an error like any other lack of memory, before a neighbour on the device lacks any.

    Args:
        cap: Most memory of each GPU, bytes, or None.
    """

    def __init__(self, cap: int | None) -> None:
        self._cap = cap
        self._capped: set[int] = set()

    def enforce(self) -> None:
        """Cap each GPU that this process has begun to use since the last call."""
        cuda = None if self._cap is None else _cuda()
        if cuda is None or self._cap is None:
            return
        allowed = max(self._cap - CONTEXT_BYTES, self._cap // 2)
        current = cuda.current_device()
        for device in set(range(cuda.device_count())) - self._capped:
            if device == current or cuda.memory_reserved(device):
                total = cuda.get_device_properties(device).total_memory
                cuda.set_per_process_memory_fraction(min(1.0, allowed / total), device)
                self._capped.add(device)
