from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pynvml
import pytest

from mlflow_rlsched.devices.nvidia import NvidiaInventory
from tests.stubs import nvml


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.compile(tmp_path_factory.getbasetemp())


class Box:
    """A host whose GPUs are described by a test: ``write`` changes them at any time."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = state
        self._monkeypatch = monkeypatch
        self._opened: list[NvidiaInventory] = []

    def use(self, folder: Path) -> None:
        """Put the library in ``folder`` under the bindings."""
        library = ctypes.CDLL(str(folder / nvml.LIBRARY))
        self._monkeypatch.setattr(pynvml, "nvmlLib", library)
        self._monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        self._monkeypatch.setenv("RLSCHED_STUB_NVML", str(self.state))

    def write(self, *devices: dict[str, Any], init: int = 0) -> None:
        nvml.write(self.state, devices, init)

    def open(self, *devices: dict[str, Any]) -> NvidiaInventory:
        self.write(*devices)
        self._opened.append(NvidiaInventory())
        return self._opened[-1]

    def close(self) -> None:
        for inventory in self._opened:
            inventory.close()


@pytest.fixture
def box(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    box = Box(tmp_path / "gpus", monkeypatch)
    box.use(nvml_folder)
    yield box
    box.close()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records]


HOLDER = """
import os, sys
from pathlib import Path
from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest
folder, device, amount, uid = sys.argv[1:]
if int(uid) != os.getuid():  # after the imports, which another user may not read
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
locks = DeviceLocks(Path(folder))
print(locks.acquire([LockRequest(device, int(amount))]), flush=True)
sys.stdin.read()
"""

Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts a process that holds a lock until its standard input ends."""
    with ExitStack() as processes:

        def start(
            folder: Path,
            device: str,
            amount: int = 100,
            busy: str | None = None,
            uid: int = os.getuid(),
        ) -> subprocess.Popen[str]:
            arguments = [str(folder), device, str(amount), str(uid)]
            process = subprocess.Popen(
                [sys.executable, "-c", HOLDER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(busy)
            return process

        yield start
