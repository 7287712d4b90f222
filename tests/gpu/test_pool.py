"""What a pool offers, by leases, locks, readings and quarantines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.agent.pool import Pool
from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest, lock_dir
from mlflow_rlsched.store import DeviceShare, Ending, State, Store, open_store
from tests.devices.conftest import Box
from tests.stubs import nvml
from tests.task_specs import make_spec
from tests.world import wait_for

HOST = "here"
A, B = nvml.uuid(0), nvml.uuid(1)
USED = {"memory_used": 5 * nvml.GIB}
BY_A_NEIGHBOUR = {**USED, "pids": [(2**22 + 1, 5 * nvml.GIB)]}


@pytest.fixture
def box(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    box = Box(tmp_path / "gpus", monkeypatch)
    box.use(nvml_folder)
    return box


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    yield store
    store.close()


MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool(box: Box, store: Store) -> Iterator[MakePool]:
    """Makes a pool of GPUs that are described as ``nvml.write`` says."""

    def make(*devices: dict[str, Any], **settings: Any) -> Pool:
        return Pool(box.open(*devices), store, HOST, settings.pop("limit", None), **settings)

    yield make
    box.close()


def lease(store: Store, run_id: str, *shares: DeviceShare) -> None:
    store.submit(make_spec(run_id), 0, 0.0)
    assert store.claim(run_id, HOST, shares, time.time()) is not None


def test_what_is_leased_is_not_free(make_pool: MakePool, store: Store) -> None:
    pool = make_pool({}, {})
    lease(store, "r", DeviceShare(A), DeviceShare(B, 30))
    assert pool.free() == {A: 0, B: 70}
    assert pool.notes == {}


def test_an_outer_limit_of_the_agent_is_obeyed(make_pool: MakePool) -> None:
    assert make_pool({}, {}, limit=["1"]).free() == {B: 100}


def test_memory_of_an_ended_task_holds_its_lease_until_it_is_free(
    make_pool: MakePool, store: Store, box: Box
) -> None:
    pool = make_pool(USED, {}, drain_s=60)
    lease(store, "r", DeviceShare(A), DeviceShare(B))
    assert pool.drain([("r", 1)]) is False
    assert pool.drain([]) is True  # B is empty
    assert [held.share.device for held in store.leases()] == [A]
    assert pool.drain([]) is False
    box.write({}, {})
    assert pool.drain([]) is True
    assert store.leases() == []
    assert store.quarantined() == []


def test_memory_that_does_not_drain_closes_the_device_with_a_reason(
    make_pool: MakePool, store: Store
) -> None:
    pool = make_pool({**USED, "pids": [2**22 + 1]}, {}, drain_s=0.2)
    lease(store, "r", DeviceShare(A))
    told: list[str] = []
    wait_for(lambda: pool.drain([], lambda held, why: told.append(f"{held.run_id}: {why}")))
    assert store.leases() == []
    used = "used by pid 4194305, not visible from here, 5.0 GiB"
    assert [q.reason for q in store.quarantined()] == [f"not empty 0.2 s after its task: {used}"]
    assert told == [f"r: device {A} is not empty 0.2 s after its task: {used}"]
    assert pool.free() == {A: 0, B: 100}
    assert pool.notes == {A: f"in quarantine: not empty 0.2 s after its task: {used}"}


def test_a_part_is_given_back_while_a_neighbour_uses_the_rest(
    make_pool: MakePool, store: Store
) -> None:
    pool = make_pool(BY_A_NEIGHBOUR, drain_s=60)
    lease(store, "r", DeviceShare(A, 50))
    lease(store, "neighbour", DeviceShare(A, 50))
    assert pool.drain([("neighbour", 1)]) is True
    assert [held.run_id for held in store.leases()] == ["neighbour"]


def test_a_part_is_given_back_while_a_task_of_another_store_uses_the_rest(
    make_pool: MakePool, store: Store
) -> None:
    pool = make_pool(BY_A_NEIGHBOUR, drain_s=0)
    lease(store, "r", DeviceShare(A, 50))
    neighbour = DeviceLocks(lock_dir())
    assert neighbour.acquire([LockRequest(A, 50)]) is None
    assert pool.drain([]) is True
    neighbour.release()
    assert store.quarantined() == []


def test_what_is_left_beside_a_neighbour_keeps_the_part_from_others(
    make_pool: MakePool, store: Store, box: Box
) -> None:
    more = {**BY_A_NEIGHBOUR, "memory_used": 9 * nvml.GIB}
    pool = make_pool(more, drain_s=60)
    lease(store, "r", DeviceShare(A, 50))
    lease(store, "neighbour", DeviceShare(A, 50))
    assert pool.drain([("neighbour", 1)]) is False
    box.write(BY_A_NEIGHBOUR)
    assert pool.drain([("neighbour", 1)]) is True
    box.write(more)
    told: list[tuple[str, str]] = []
    late = make_pool(more, drain_s=0)
    lease(store, "s", DeviceShare(A, 50))
    assert late.drain([("neighbour", 1)], lambda held, why: told.append((held.run_id, why)))
    left = f"device {A} is not empty 0 s after its task: 4.0 GiB that no process explains"
    assert told == [("s", left)]
    assert late.free() == {A: 0}
    assert [held.run_id for held in store.leases()] == ["neighbour"], "it runs on"


def test_what_another_store_has_locked_is_not_free(make_pool: MakePool, store: Store) -> None:
    pool = make_pool({}, {})
    locks = DeviceLocks(lock_dir())
    locks.acquire([LockRequest(A), LockRequest(B, 40)])
    assert pool.free() == {A: 0, B: 60}
    assert pool.notes == {A: "held by a task of another store or user"}
    locks.release()
    assert pool.free() == {A: 100, B: 100}
    assert pool.notes == {}


def test_a_device_that_does_not_answer_is_closed(
    make_pool: MakePool, store: Store, box: Box
) -> None:
    pool = make_pool({}, {})
    box.write({"lost": True}, {})
    assert pool.free() == {A: 0, B: 100}
    assert pool.notes == {A: "it does not answer"}
    box.write({}, {})
    assert pool.free() == {A: 0, B: 100}
    assert pool.notes == {A: "in quarantine: it does not answer"}


def test_a_device_is_closed_for_longer_each_time_and_forgiven_by_a_success(
    make_pool: MakePool, store: Store
) -> None:
    pool = make_pool({}, quarantine_s=(1, 1000))
    pool.fault(A, "it failed")
    pool.fault(A, "it failed, again, while it was closed")
    (first,) = store.quarantined()
    assert (first.failures, first.reason) == (1, "it failed")
    assert wait_for(lambda: pool.free()[A]) == 100
    pool.fault(A, "it failed later")
    pool.fault(A, "it failed later, again")
    (second,) = store.quarantined()
    assert (second.failures, second.reason) == (2, "it failed later")
    assert second.until > time.time() + 900
    assert pool.free() == {A: 0}
    pool.proved({A})
    assert pool.free() == {A: 100}


def test_only_those_of_a_runs_devices_that_are_lost_are_closed(
    make_pool: MakePool, store: Store, box: Box
) -> None:
    pool = make_pool({}, {})
    devices = pool.devices()
    box.write({}, {"lost": True})
    pool.used(devices, Ending(State.QUEUED, "device_fault", "the device failed"))
    assert [q.device for q in store.quarantined()] == [B]
    box.write({}, {})
    pool.used(devices, Ending(State.QUEUED, "device_fault", "the device failed"))
    assert [q.device for q in store.quarantined()] == [A, B], "any may have been the one"
    pool.used(devices, Ending(State.FAILED, "user_error", "it exited with code 1"))
    assert len(store.quarantined()) == 2
    pool.used(devices, Ending(State.FINISHED, "finished", ""))
    assert store.quarantined() == []


def test_a_device_that_stays_lost_is_tried_again_less_and_less_often(
    make_pool: MakePool, store: Store, box: Box
) -> None:
    pool = make_pool({"lost": False}, quarantine_s=(0.01, 0.01, 1000))
    box.write({"lost": True})

    def tried(times: int) -> bool:
        assert pool.free() == {A: 0}
        return [q.failures for q in store.quarantined()] == [times]

    for times in (1, 2, 3):
        wait_for(lambda: tried(times))  # noqa: B023
    (last,) = store.quarantined()
    assert last.until > time.time() + 900
    pool.free()
    assert pool.closed == {A}
    box.write({})
    assert pool.free() == {A: 0}, "not before its time"


def test_a_clock_that_is_set_back_does_not_prolong_a_quarantine(
    make_pool: MakePool, store: Store
) -> None:
    pool = make_pool({})
    pool.fault(A, "it failed")
    assert pool.free() == {A: 0}
    (before,) = store.quarantined()
    store.quarantine(replace(before, until=before.until + 86_400))
    assert pool.free() == {A: 100}


def test_a_stranger_is_named(make_pool: MakePool) -> None:
    pool = make_pool({**USED}, {})
    assert pool.free() == {A: 0, B: 100}
    assert pool.notes == {A: "used by processes not visible from here, 5.0 GiB"}


def test_a_slice_does_not_share_the_fate_of_its_neighbour(
    make_pool: MakePool, store: Store
) -> None:
    first, second = nvml.slice_uuid(0, 0), nvml.slice_uuid(0, 1)
    pool = make_pool({"slices": [USED, {}]}, drain_s=60)
    lease(store, "r", DeviceShare(first), DeviceShare(second))
    assert pool.drain([]) is True
    assert [held.share.device for held in store.leases()] == [first]
    assert pool.free() == {first: 0, second: 100}
