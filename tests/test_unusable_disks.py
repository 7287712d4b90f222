"""Disks that are full or read-only, as root has to be kept from writing too."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.test_wrong_input import assert_one_sentence
from tests.world import ROOT, World

IN_OWN_MOUNTS = ("unshare", "--mount", "--map-root-user")


def submissions(world: World, disk: str, *arguments: str) -> list[dict[str, Any]]:
    """What ``tests/full_disk.py`` saw, with a small disk at a folder of the world."""
    (world.root / disk).mkdir(exist_ok=True)
    done = subprocess.run(
        [*IN_OWN_MOUNTS, sys.executable, "-m", "tests.full_disk", world.root / disk, *arguments],
        env={**world.env, "PYTHONPATH": str(ROOT)},
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("rooms", [("0", "120", "anew"), ("0", "40")])
def test_a_full_home_is_told_and_nothing_is_half_made(world: World, rooms: tuple[str, ...]) -> None:
    seen = submissions(world, "home", *rooms)
    refused = [s for s in seen if s["says"] is not None]
    assert refused[:2] == seen[:2]
    assert "No space left on device" in refused[0]["says"]
    for submission in seen:
        made = [submission[key] for key in ("tasks", "open_runs", "directories")]
        assert submission["records"] == []
        if submission["says"] is not None:
            assert_one_sentence(submission["says"])
            assert made == [[], [], []]
        else:
            assert made[0] == made[1] == made[2] != []


def test_a_full_tracking_store_is_told(world: World) -> None:
    world.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{world.root}/tracking/mlflow.db"
    seen = submissions(world, "tracking", "0", "40")
    assert "refuses the run: database or disk is full" in seen[0]["says"]
    for submission in seen:
        made = [submission[key] for key in ("tasks", "open_runs", "directories")]
        if submission["says"] is not None:
            assert_one_sentence(submission["says"])
            assert made == [[], [], []] or submission["records"] != []  # the next agent ends it


@pytest.mark.parametrize(
    ("disk", "says"), [("home", "Read-only file system"), ("tracking", "readonly database")]
)
def test_a_read_only_disk_is_told(world: World, disk: str, says: str) -> None:
    if disk == "tracking":
        world.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{world.root}/tracking/mlflow.db"
    (submission,) = submissions(world, disk, "0", "4", "ro")
    assert_one_sentence(submission["says"])
    assert says in submission["says"]
