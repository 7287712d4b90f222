"""A browser for the tests, and a host on which things have happened for the dashboard to show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import mlflow
import pytest
from mlflow.entities import Metric
from playwright.sync_api import Browser, sync_playwright

from benchmarks.browser import FLAGS, chromium
from tests.browser.dashboard import served
from tests.world import FAULTY, PROJECTS, World, wait_for

LONG_AGO = 1_700_000_000_000
"""Milliseconds since the epoch."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no browser: `make system` installs Chromium")
    with sync_playwright() as playwright:
        value = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield value
        value.close()


@dataclass(frozen=True)
class Lived:
    """A host with runs of all kinds.

    Attributes:
        world: The host; it has one CPU slot.
        trained: Run that trained the digits under rules.
        failed: Run that crashed.
        running: Run that goes on for minutes.
        waiting: Run that waits for it.
        wild: Run, made through MLflow alone, with values that are no finite numbers.
        url: A dashboard of it that lets people act.
    """

    world: World
    trained: str
    failed: str
    running: str
    waiting: str
    wild: str
    url: str


def submitted(world: World, *args: str, wait: bool = False, **config: object) -> str:
    """The run that ``mlflow run ARGS --backend rlsched`` made."""
    before = {task.run_id for task in world.store.tasks()}
    project, *rest = args
    command = world.mlflow_run(project, *rest, config={"wait": wait, **config})
    output, _ = command.communicate(timeout=500)
    (made,) = [task for task in world.store.tasks() if task.run_id not in before]
    assert wait or command.returncode == 0, output
    return made.run_id


def made_in_mlflow(
    world: World, name: str, values: dict[str, list[float]], start: int = LONG_AGO
) -> str:
    """A finished run of the scheduler that only MLflow knows, a point of each metric a second.

    A dashboard that is open looks for runs that began before others it knows but once a minute.
    """
    client = mlflow.MlflowClient(world.tracking_uri)
    tags = {"rlsched.state": "finished", "rlsched.policy": "ddpg", "mlflow.runName": name}
    run = client.create_run("0", start_time=start, tags=tags)
    points = [
        Metric(metric, value, start + 1000 * step, step)
        for metric, numbers in values.items()
        for step, value in enumerate(numbers)
    ]
    for first in range(0, len(points), 1000):
        client.log_batch(run.info.run_id, metrics=points[first : first + 1000])
    client.set_terminated(run.info.run_id, "FINISHED", start + 60_000)
    return str(run.info.run_id)


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    world = World(tmp_path_factory.mktemp("lived"), os.environ, slots=1)
    try:
        digits, faulty = str(PROJECTS / "digits"), str(FAULTY)
        sizes = ("-P", "epochs=12", "-P", "width=16", "-P", "batch_size=8", "-P", "lr=1e-3")
        often = {"policy": "rules", "decision_interval_s": 1}
        trained = submitted(world, digits, *sizes, "--run-name", "digits", wait=True, **often)
        failed = submitted(world, faulty, "-P", "fault=crash", "--run-name", "crash", wait=True)
        slow = ("-e", "count", "-P", "steps=100000", "-P", "step_s=0.05")
        running = submitted(world, faulty, *slow, "--run-name", "goes on", **often)
        wait_for(lambda: world.task(running).state.value == "running")
        waiting = submitted(world, faulty, *slow, "--run-name", "waits")
        nan, inf = float("nan"), float("inf")
        wild = made_in_mlflow(world, "wild", {"loss": [2.0, 1.5, nan, 1.2, inf, 1.0, 0.9]})
        made_in_mlflow(world, "long ago", {"rlsched/gpus": [2.0]})
        with served(world.env, world.root / "dashboard", "--allow-actions") as url:
            yield Lived(world, trained, failed, running, waiting, wild, url)
    finally:
        world.end()
