"""This host's devices: what is free, what drains, what is out of order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from mlflow_rlsched.devices.interface import Device, Inventory
from mlflow_rlsched.devices.locks import WHOLE, LockError, free_amount, lock_dir
from mlflow_rlsched.store import Ending, Lease, Quarantine, State, Store

_logger = logging.getLogger(__name__)

DRAIN_S = 30.0
QUARANTINE_S = (60.0, 300.0, 1800.0, 3600.0)


class Pool:
    """Devices of this host, as leases, locks, readings and quarantines leave them.

    Args:
        inventory: The devices.
        store: Holds leases and quarantines.
        host: This host's name in the store.
        limit: Outer ``CUDA_VISIBLE_DEVICES`` of the agent, split at commas, or None.
        drain_s: How long the memory of a device may take to drain after its task ended.
        quarantine_s: How long a device is not offered after its first, second, … failure in a
            row.

    Attributes:
        notes: Why a device that no task of this store holds is not offered, by device id.
        closed: Ids of devices that were in quarantine at the last look.
    """

    def __init__(
        self,
        inventory: Inventory,
        store: Store,
        host: str,
        limit: Sequence[str] | None,
        drain_s: float = DRAIN_S,
        quarantine_s: Sequence[float] = QUARANTINE_S,
    ) -> None:
        self.inventory = inventory
        self.notes: dict[str, str] = {}
        self.closed: set[str] = set()
        self._store = store
        self._host = host
        self._limit = limit
        self._drain_s = drain_s
        self._quarantine_s = quarantine_s
        self._drains: dict[tuple[str, int, str], float] = {}

    def devices(self) -> list[Device]:
        """Devices that this agent may offer."""
        return self.inventory.allowed(self._limit)

    def free(self) -> dict[str, int]:
        """Hundredths free by device id; ``notes`` says why others are not offered."""
        leased = _leased(self._store.leases(self._host))
        closed = {q.device: q for q in self._store.quarantined(self._host) if self._lasts(q)}
        self.closed = set(closed)
        free: dict[str, int] = {}
        self.notes = {}
        for device in self.devices():
            mine = leased.get(device.id, 0)
            note: str | None
            try:
                unlocked = free_amount(lock_dir(), device.id, device.parent)
            except LockError as error:
                unlocked, note = 0, str(error)
            else:
                note = self._why_not(device, mine, unlocked, closed.get(device.id))
            free[device.id] = min(WHOLE - mine, unlocked)
            if note is not None:
                self.notes[device.id] = note
                free[device.id] = 0
        return free

    def _why_not(
        self, device: Device, mine: int, unlocked: int, closing: Quarantine | None
    ) -> str | None:
        """Why a device is not offered although our tasks leave ``WHOLE - mine`` of it."""
        if closing is not None:
            return f"in quarantine: {closing.reason}"
        if unlocked < WHOLE - mine:
            return None if unlocked else "held by a task of another store or user"
        if mine:
            return None
        reading = self.inventory.read(device)
        if reading.lost:
            self.fault(device.id, "it does not answer")
            return "it does not answer"
        return self.inventory.occupied(device, reading)

    def unlocked(self, device_id: str) -> int:
        """Hundredths of a device that no attempt on this host has locked."""
        parents = {device.id: device.parent for device in self.inventory.devices()}
        return free_amount(lock_dir(), device_id, parents.get(device_id))

    @property
    def draining(self) -> bool:
        """Whether a device of an attempt that is over was not empty at the last look."""
        return bool(self._drains)

    def drain(
        self,
        running: Collection[tuple[str, int]],
        warn: Callable[[Lease, str], None] = lambda lease, text: None,
    ) -> bool:
        """End the leases of attempts that are over, once their devices are empty.

        Args:
            running: Run id and attempt of what runs.
            warn: Told of a lease whose device did not become empty in time, and how that shows.

        Returns:
            Whether a lease ended.
        """
        leases = self._store.leases(self._host)
        shared = _leased(leases)
        by_id = {device.id: device for device in self.inventory.devices()}
        ended = False
        for lease in leases:
            if (lease.run_id, lease.attempt) in running:
                continue
            key = (lease.run_id, lease.attempt, lease.share.device)
            deadline = self._drains.setdefault(key, time.monotonic() + self._drain_s)
            device = by_id.get(lease.share.device)
            why = None
            if device is not None:
                why = self._remains(device, shared[device.id] == lease.share.amount)
            if why is not None and time.monotonic() < deadline:
                continue
            if why is not None:
                text = f"not empty {self._drain_s:g} s after its task: {why}"
                self.fault(lease.share.device, text)
                warn(lease, f"device {lease.share.device} is {text}")
            self._store.release(lease.run_id, lease.attempt, [lease.share.device])
            del self._drains[key]
            ended = True
        return ended

    def _remains(self, device: Device, is_last: bool) -> str | None:
        """How it shows that something of an attempt which is over is left on a device, or None."""
        reading = self.inventory.read(device)
        if is_last and not _locked(device):
            return self.inventory.occupied(device, reading)
        return self.inventory.unexplained(device, reading)  # neighbours use the rest

    def used(self, devices: Sequence[Device], ending: Ending) -> None:
        """Take from the end of an attempt what it says of its devices."""
        if ending.reason == "device_fault":
            lost = [device for device in devices if self.inventory.read(device).lost]
            for device in lost or devices:
                self.fault(device.id, ending.message)
        elif ending.state is State.FINISHED:
            self.proved({device.id for device in devices})

    def fault(self, device_id: str, reason: str) -> None:
        """Take a device out of the offer for a while, longer with each failure."""
        known = {q.device: q for q in self._store.quarantined(self._host)}.get(device_id)
        if known is not None and self._lasts(known):
            return
        failures = 1 + (known.failures if known is not None else 0)
        until = time.time() + self._quarantine_s[min(failures, len(self._quarantine_s)) - 1]
        _logger.warning("device %s is quarantined: %s", device_id, reason)
        self._store.quarantine(Quarantine(self._host, device_id, reason, until, failures))

    def _lasts(self, closing: Quarantine) -> bool:
        """Whether a quarantine is not over; the clock may have been set back meanwhile."""
        return 0 < closing.until - time.time() < max(self._quarantine_s) + 1

    def proved(self, device_ids: Collection[str]) -> None:
        """Forget earlier failures of devices on which a task has just succeeded."""
        for known in self._store.quarantined(self._host):
            if known.device in device_ids:
                self._store.end_quarantine(self._host, known.device)


def _locked(device: Device) -> bool:
    """Whether anybody has locked a part of a device, tasks of other stores too."""
    try:
        return free_amount(lock_dir(), device.id, device.parent) < WHOLE
    except LockError:
        return False


def _leased(leases: Sequence[Lease]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for lease in leases:
        amounts[lease.share.device] = amounts.get(lease.share.device, 0) + lease.share.amount
    return amounts
