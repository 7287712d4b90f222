"""``rlsched devices`` on hosts with GPUs (stub library under the real bindings) and without."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest, lock_dir
from mlflow_rlsched.store import DeviceShare, Ending, Quarantine, State, Store
from tests.cli.conftest import Rlsched, submit
from tests.devices.conftest import Box
from tests.stubs import nvml

HOST = socket.gethostname()


def by_index(rlsched: Rlsched) -> list[dict[str, Any]]:
    result = rlsched("devices", "--json")
    assert result.exit_code == 0
    devices: list[dict[str, Any]] = json.loads(result.stdout)["devices"]
    return devices


def test_readings_are_shown(rlsched: Rlsched, box: Box) -> None:
    box.write(
        {"utilization": 87, "memory_used": 20 * nvml.GIB, "power": 310, "temperature": 71},
        {"name": "NVIDIA Other"},
    )
    first, second = by_index(rlsched)
    assert (first["id"], first["kind"], first["utilization_percent"]) == (
        nvml.uuid(0),
        "nvidia",
        87,
    )
    assert (first["power_watts"], first["temperature_celsius"]) == (310, 71)
    assert second["name"] == "NVIDIA Other"
    heading, line, _ = rlsched("devices").stdout.splitlines()
    assert heading.split()[4:] == ["MEMORY", "USE", "POWER", "TEMPERATURE", "STATE"]
    for words in ("GPU-00000000", "20.0 of 80 GiB", "87 %", "310.0 of 400 W", "71 °C"):
        assert words in line


def test_a_device_says_who_holds_it(rlsched: Rlsched, box: Box, store: Store) -> None:
    box.write({}, {}, {})
    submit(store, "aaaa1111", label="quick-fox", host=HOST)
    submit(store, "bbbb2222", label="slow-snail", user="bob", host=HOST)
    shares = [DeviceShare(nvml.uuid(0)), DeviceShare(nvml.uuid(1), 40)]
    store.claim("aaaa1111", HOST, shares, time.time())
    store.claim("bbbb2222", HOST, [DeviceShare(nvml.uuid(1), 50)], time.time())
    store.end_attempt("bbbb2222", 1, Ending(State.FINISHED, "", "", 0), time.time())
    _, first, second, third = rlsched("devices").stdout.splitlines()
    assert first.rstrip().endswith("aaaa1111 quick-fox (ada)")
    assert second.rstrip().endswith(
        "aaaa1111 quick-fox (ada) 40 %; bbbb2222 slow-snail (bob) 50 %, draining"
    )
    assert third.rstrip().endswith("free")
    assert [device["free_percent"] for device in by_index(rlsched)] == [0, 10, 100]


def test_a_device_says_why_it_is_not_offered(
    rlsched: Rlsched, box: Box, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.write({"pids": [os.getpid()], "memory_used": 3 * nvml.GIB}, {}, {}, {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    until = time.time() + 600
    store.quarantine(Quarantine(HOST, nvml.uuid(1), "it was not empty", until, failures=2))
    locks = DeviceLocks(lock_dir())
    assert locks.acquire([LockRequest(nvml.uuid(2))]) is None
    stranger, closed, locked, hidden = by_index(rlsched)
    locks.release()
    assert stranger["not_offered"].startswith("used by ")
    assert closed["not_offered"].startswith("in quarantine for 10 min after 2 failures in a row")
    assert closed["not_offered"].endswith("it was not empty")
    assert locked["not_offered"] == "100 % held by another store or user"
    assert hidden["not_offered"] == "left out by CUDA_VISIBLE_DEVICES=0,1,2"
    assert {d["free_percent"] for d in (stranger, closed, locked, hidden)} == {0}


def test_a_quarantine_that_is_over_holds_nothing_back(
    rlsched: Rlsched, box: Box, store: Store
) -> None:
    box.write({})
    store.quarantine(Quarantine(HOST, nvml.uuid(0), "gone", time.time() - 1, failures=1))
    assert by_index(rlsched)[0]["free_percent"] == 100


def test_a_lock_of_our_own_attempt_is_no_stranger(rlsched: Rlsched, box: Box, store: Store) -> None:
    box.write({"pids": [os.getpid()], "memory_used": 9 * nvml.GIB})
    submit(store, "aaaa1111", label="quick-fox", host=HOST)
    store.claim("aaaa1111", HOST, [DeviceShare(nvml.uuid(0))], time.time())
    locks = DeviceLocks(lock_dir())
    assert locks.acquire([LockRequest(nvml.uuid(0))]) is None
    assert by_index(rlsched)[0]["not_offered"] is None
    locks.release()


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "2")


@pytest.mark.usefixtures("slots")
def test_cpu_slots_without_a_store(rlsched: Rlsched) -> None:
    lines = rlsched("devices").stdout.splitlines()
    assert lines[0].split() == ["#", "DEVICE", "KIND", "NAME", "STATE"]
    assert [line.split()[1] for line in lines[1:]] == ["cpu-0", "cpu-1"]


def test_a_wrong_number_of_slots_is_wrong_usage(
    rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "many")
    result = rlsched("devices")
    assert result.exit_code == 2
    assert "'many'" in result.stderr


@pytest.mark.usefixtures("slots")
def test_watch_goes_on_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from mlflow_rlsched.cli import devices, main; devices.WATCH_S = 0.05; main(['devices',"
        "'--watch'])"
    )
    monkeypatch.setenv("TERM", "xterm")
    screen, terminal = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""
    while seen.count(b"cpu-1") < 3:
        seen += os.read(screen, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    os.close(screen)


def test_watch_and_json_exclude_each_other(rlsched: Rlsched) -> None:
    assert rlsched("devices", "--watch", "--json").exit_code == 2
