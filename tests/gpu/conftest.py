from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.backend import RlschedSubmittedRun
from mlflow_rlsched.store import Task
from tests.devices.conftest import Box
from tests.stubs import nvml
from tests.world import World, wait_for

PROJECT = Path(__file__).parent / "project"


class GpuHost:
    """A world whose host has GPUs: in this process, in its agents and in its trainings.

    Args:
        world: The rest of the host.
        box: Puts the stand-in library under this process's bindings.
        devices: The GPUs, as ``nvml.write`` describes them.
    """

    def __init__(self, world: World, box: Box) -> None:
        self.world = world
        self._box = box
        self._devices: list[dict[str, Any]] = []
        self.seen_dir = world.root / "seen"
        self.seen_dir.mkdir()

    def has(self, *devices: Mapping[str, Any]) -> None:
        """Describe all GPUs anew."""
        self._devices = [dict(device) for device in devices]
        self._box.write(*self._devices)

    def change(self, index: int, **values: Any) -> None:
        """Change what is said of a GPU; programs that run see it at once."""
        self._devices[index].update(values)
        self._box.write(*self._devices)

    def submit(self, config: Mapping[str, Any] | None = None) -> RlschedSubmittedRun:
        """Queue a run that holds its devices until it is let go."""
        return self.world.submit(PROJECT, params={"folder": str(self.seen_dir)}, config=config)

    def seen(self, run_id: str, attempt: int | str = "*") -> dict[str, Any]:
        """What an attempt of such a run saw, once it runs."""
        (path,) = wait_for(lambda: list(self.seen_dir.glob(f"{run_id}-{attempt}.json")), 60)
        value: dict[str, Any] = json.loads(path.read_text())
        return value

    def devices_of(self, run_id: str, attempt: int | str = "*") -> list[str]:
        """The devices that an attempt saw."""
        return str(self.seen(run_id, attempt)["CUDA_VISIBLE_DEVICES"]).split(",")

    def let_go(self, run_id: str) -> Task:
        """Let a run end; its task, once all is over."""
        (self.seen_dir / f"{run_id}.go").touch()
        return self.world.over(run_id, 180)

    def sampled(self, run_id: str, times: int = 1) -> None:
        """Wait until the run's devices have been sampled."""
        wait_for(lambda: self.world.task(run_id).samples >= times, 60)

    def leased(self) -> dict[str, str]:
        """Run id by leased device."""
        return {lease.share.device: lease.run_id for lease in self.world.store.leases()}


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.compile(tmp_path_factory.getbasetemp())


@pytest.fixture
def gpus(
    world: World, nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> GpuHost:
    """A host with eight idle GPUs, unless the test says otherwise."""
    state = tmp_path / "gpus"
    for name, value in nvml.environment(nvml_folder, state).items():
        world.env[name] = value
        monkeypatch.setenv(name, value)
    box = Box(state, monkeypatch)
    box.use(nvml_folder)
    host = GpuHost(world, box)
    host.has(*({} for _ in range(8)))
    return host
