from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_rlsched import filelock
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.devices.locks import (
    DeviceLocks,
    LockRequest,
    free_amount,
    request_for,
)

from .conftest import Hold

GPU, OTHER, MIG_1, MIG_2 = "GPU-a", "GPU-b", "MIG-1", "MIG-2"
SLICE_1, SLICE_2 = LockRequest(MIG_1, parent=GPU), LockRequest(MIG_2, parent=GPU)

# Whole devices


def test_a_device_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    assert first.acquire([LockRequest(GPU)]) is None
    assert second.acquire([LockRequest(GPU)]) == GPU
    first.release()
    assert second.acquire([LockRequest(GPU)]) is None


def test_a_refused_request_locks_nothing(tmp_path: Path) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    assert first.acquire([LockRequest(OTHER)]) is None
    assert second.acquire([LockRequest("GPU-c"), LockRequest(OTHER), LockRequest(GPU)]) == OTHER
    assert free_amount(tmp_path, GPU) == 100
    assert free_amount(tmp_path, "GPU-c") == 100
    first.release()
    assert free_amount(tmp_path, OTHER) == 100


def test_a_refused_request_keeps_what_was_held_before(tmp_path: Path) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    assert first.acquire([LockRequest(GPU)]) is None
    assert second.acquire([LockRequest(OTHER)]) is None
    assert first.acquire([LockRequest(OTHER)]) == OTHER
    assert free_amount(tmp_path, GPU) == 0


def test_of_two_that_want_the_same_devices_at_the_same_time_one_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    real = filelock.acquire
    outcome: list[str | None] = []

    def interrupted(file: int, start: int, length: int, shared: bool = False) -> bool:
        granted = real(file, start, length, shared)
        monkeypatch.setattr(filelock, "acquire", real)
        outcome.append(second.acquire([LockRequest(OTHER), LockRequest(GPU)]))
        assert not (tmp_path / OTHER).exists()  # it asked for the same device first
        return granted

    monkeypatch.setattr(filelock, "acquire", interrupted)
    outcome.append(first.acquire([LockRequest(GPU), LockRequest(OTHER)]))
    assert outcome == [GPU, None]


def test_locks_exclude_another_process_and_end_with_it(tmp_path: Path, hold: Hold) -> None:
    holder = hold(tmp_path, GPU)
    locks = DeviceLocks(tmp_path)
    assert locks.acquire([LockRequest(GPU)]) == GPU
    assert free_amount(tmp_path, GPU) == 0
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert locks.acquire([LockRequest(GPU)]) is None
    hold(tmp_path, GPU, busy=GPU)


def test_a_program_that_the_holder_starts_does_not_inherit_the_locks(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path)
    assert locks.acquire([LockRequest(GPU)]) is None
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    try:
        locks.release()
        assert free_amount(tmp_path, GPU) == 100
    finally:
        child.kill()
        child.communicate()


# Parts of devices


def test_two_halves_fit_and_no_more(tmp_path: Path, hold: Hold) -> None:
    hold(tmp_path, GPU, 50)
    assert free_amount(tmp_path, GPU) == 50
    half = DeviceLocks(tmp_path)
    assert half.acquire([LockRequest(GPU, 50)]) is None
    hold(tmp_path, GPU, 1, busy=GPU)
    assert free_amount(tmp_path, GPU) == 0
    half.release()
    hold(tmp_path, GPU, 1)


def test_a_part_excludes_the_whole(tmp_path: Path) -> None:
    part, whole = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    assert part.acquire([LockRequest(GPU, 1)]) is None
    assert whole.acquire([LockRequest(GPU)]) == GPU
    assert free_amount(tmp_path, GPU) == 99


def test_a_part_may_be_scattered(tmp_path: Path) -> None:
    thirds = [DeviceLocks(tmp_path) for _ in range(3)]
    for third in thirds:
        assert third.acquire([LockRequest(GPU, 33)]) is None
    thirds[1].release()
    assert free_amount(tmp_path, GPU) == 34
    assert DeviceLocks(tmp_path).acquire([LockRequest(GPU, 34)]) is None


def test_parts_that_fit_together_are_granted_when_taken_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    real = filelock.acquire
    outcome: list[str | None] = []

    def interrupted(file: int, start: int, length: int, shared: bool = False) -> bool:
        if start == 20:
            monkeypatch.setattr(filelock, "acquire", real)
            outcome.append(second.acquire([LockRequest(GPU, 50)]))
        return real(file, start, length, shared)

    monkeypatch.setattr(filelock, "acquire", interrupted)
    outcome.append(first.acquire([LockRequest(GPU, 50)]))
    assert outcome == [None, None]
    assert free_amount(tmp_path, GPU) == 0


# MIG slices


def test_slices_share_their_parent_and_exclude_it(tmp_path: Path) -> None:
    first, second, whole = (DeviceLocks(tmp_path) for _ in range(3))
    assert first.acquire([SLICE_1]) is None
    assert second.acquire([SLICE_2]) is None
    assert whole.acquire([LockRequest(GPU)]) == GPU
    assert free_amount(tmp_path, GPU) == 0
    assert free_amount(tmp_path, MIG_1, GPU) == 0
    first.release()
    assert whole.acquire([LockRequest(GPU)]) == GPU
    assert free_amount(tmp_path, MIG_1, GPU) == 100
    second.release()
    assert whole.acquire([LockRequest(GPU)]) is None


def test_a_whole_gpu_excludes_its_slices(tmp_path: Path) -> None:
    whole = DeviceLocks(tmp_path)
    assert whole.acquire([LockRequest(GPU)]) is None
    assert DeviceLocks(tmp_path).acquire([SLICE_1]) == MIG_1
    assert free_amount(tmp_path, MIG_1, GPU) == 0
    assert free_amount(tmp_path, MIG_1, OTHER) == 100


def test_one_attempt_can_hold_several_slices(tmp_path: Path) -> None:
    assert DeviceLocks(tmp_path).acquire([SLICE_1, SLICE_2]) is None


def test_a_device_knows_its_request() -> None:
    piece = Device(MIG_1, "mig", 0, "1g.10gb", parent=GPU)
    assert request_for(piece, 50) == LockRequest(MIG_1, 50, GPU)
    assert request_for(Device("cpu-0", "cpu", 0, "CPU slot")) == LockRequest("cpu-0")


# Any sequence of leases

DEVICES = {GPU: None, MIG_1: GPU, MIG_2: GPU, "cpu-0": None}
LEASES = st.builds(
    lambda device, amount: LockRequest(device, amount, DEVICES[device]),
    st.sampled_from(sorted(DEVICES)),
    st.sampled_from([1, 33, 50, 99, 100]),
)
STEPS = st.lists(st.one_of(st.lists(LEASES, min_size=1, max_size=3), st.integers(0, 5)))


def fits(held: list[LockRequest], request: LockRequest) -> bool:
    amounts = sum(other.amount for other in held if other.device == request.device)
    if amounts + request.amount > 100:
        return False
    if request.parent is not None:
        return not any(o.device == request.parent and o.amount == 100 for o in held)
    return request.amount < 100 or not any(o.parent == request.device for o in held)


def expected_free(held: list[LockRequest], device: str, parent: str | None) -> int:
    taken = sum(request.amount for request in held if request.device == device)
    if parent is not None:
        return 100 - taken if fits(held, LockRequest("another slice", 1, parent)) else 0
    return 100 - taken if taken or fits(held, LockRequest(device)) else 0


@given(steps=STEPS)
@settings(max_examples=60)
def test_locks_grant_what_fits_and_nothing_else(steps: list[list[LockRequest] | int]) -> None:
    holders: list[tuple[DeviceLocks, list[LockRequest]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in steps:
            if isinstance(step, int):
                if step < len(holders):
                    holders.pop(step)[0].release()
                continue
            held = [request for _, requests in holders for request in requests]
            possible = True
            for request in step:
                possible = possible and fits(held, request)
                held = [*held, request]
            locks = DeviceLocks(folder)
            granted = locks.acquire(step) is None
            assert granted == possible
            if granted:
                holders.append((locks, step))
            held = [request for _, requests in holders for request in requests]
            for device, parent in DEVICES.items():
                assert free_amount(folder, device, parent) == expected_free(held, device, parent)
        for locks, _ in holders:
            locks.release()
