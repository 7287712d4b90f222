"""Two stores on one host, each with an agent of its own, share its devices."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.store import State
from tests.world import FAULTY, World, wait_for

SLOTS = 2
RUNS = 6


class Neighbour(World):
    """A world whose host is also another one's."""

    def __init__(self, root: Path, locks: Path, patch: pytest.MonkeyPatch) -> None:
        root.mkdir()
        super().__init__(root, os.environ, SLOTS)
        self.locks = locks
        self.env["RLSCHED_LOCK_DIR"] = str(locks)
        self._patch = patch

    def submit(self, *args: Any, **more: Any) -> Any:
        for name, text in self.env.items():
            self._patch.setenv(name, text)
        return super().submit(*args, **more)


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Neighbour]]:
    """Two worlds on one host with two slots."""
    worlds = [Neighbour(tmp_path / name, tmp_path / "locks", monkeypatch) for name in ("a", "b")]
    (tmp_path / "locks").mkdir()
    yield worlds
    for world in worlds:
        world.end()


def at_once(ledger: Path) -> list[int]:
    """How many trainings ran, after each that started or was done."""
    counts = [0]
    for line in ledger.read_text().splitlines():
        event = line.split()[2]
        counts.append(counts[-1] + {"start": 1, "done": -1}.get(event, 0))
    return counts


def test_a_device_is_never_held_twice(stores: list[Neighbour], tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    settings = {"steps": 8, "step_s": 0.05, "ledger": ledger}
    runs = [
        (world, world.submit(FAULTY, "script", settings, {"cpu_slots": 1 + n % 3 // 2}))
        for n in range(RUNS)
        for world in stores
    ]
    for world, run in runs:
        task = world.over(run.run_id, 120)
        assert (task.state, task.retries) == (State.FINISHED, 0)
        reasons = [attempt.reason for attempt in world.store.attempts(run.run_id)]
        assert set(reasons[:-1]) <= {"device_busy"}
    assert max(at_once(ledger)) == SLOTS
    assert at_once(ledger)[-1] == 0
    assert ledger.read_text().count("done") == len(runs)


def test_the_other_store_says_who_holds_the_devices(stores: list[Neighbour]) -> None:
    first, second = stores
    endless = {"steps": 100_000, "step_s": 0.05}
    run = first.submit(FAULTY, "script", endless, {"cpu_slots": SLOTS, "grace_s": 0})
    first.running(run.run_id)
    waiting = second.submit(FAULTY, "script", {"steps": 3})

    def notes() -> Any:
        return json.loads(second.rlsched("queue", "--json").stdout)["devices_not_offered"]

    held = "held by a task of another store or user"
    assert wait_for(notes, 60) == [{"id": f"cpu-{n}", "note": held} for n in range(SLOTS)]
    assert f"device cpu-0 is not offered: {held}" in second.rlsched("queue").stdout
    assert second.task(waiting.run_id).attempt == 0
    for world in stores:
        devices = json.loads(world.rlsched("devices", "--json").stdout)["devices"]
        assert [device["free_percent"] for device in devices] == [0] * SLOTS
        holders = [holder["run_id"] for device in devices for holder in device["held_by"]]
        assert holders == ([run.run_id] * SLOTS if world is first else [])
    run.cancel()
    assert second.over(waiting.run_id).state is State.FINISHED
