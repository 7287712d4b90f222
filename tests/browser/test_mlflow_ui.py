"""What a person sees of a scheduled run in the MLflow UI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from mlflow_rlsched.store import State, Task
from tests.tracking_server import TrackingServer, submit_to
from tests.world import PROJECTS, World

pytestmark = pytest.mark.browser

PATIENCE_MS = 60_000
SYSTEM = ("cpu_utilization_percentage", "system_memory_usage_megabytes")
OURS = ("loss", "throughput", "batch_size", "learning_rate", "gpus")
TRAINING = ("loss", "val_loss", "val_accuracy")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    # High enough for all charts: those out of sight are not drawn.
    value = browser.new_page(viewport={"width": 1400, "height": 3600})
    yield value
    value.close()


@pytest.fixture
def server(world: World) -> Iterator[TrackingServer]:
    value = TrackingServer(world.root / "server")
    value.start()
    yield value
    value.kill()


def trained(world: World) -> Task:
    """A training of the digits, long enough for some samples of its devices."""
    parameters = ("-P", "epochs=80", "-P", "width=32")
    command = world.mlflow_run(PROJECTS / "digits", *parameters)
    output, _ = command.communicate(timeout=240)
    assert command.returncode == 0, output
    (task,) = world.store.tasks([State.FINISHED])
    assert task.samples >= 3
    return task


def line(page: Page, metric: str) -> Locator:
    """The curve in a metric's chart; there is none for a single point."""
    card = page.get_by_test_id("experiment-view-compare-runs-card")
    return card.filter(has_text=f"({metric})").locator("path.js-line").first


def test_the_ui_tells_the_story_of_a_run(
    world: World, server: TrackingServer, page: Page, tmp_path: Path
) -> None:
    submit_to(world, server)
    task = trained(world)
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)

    def open_tab(name: str) -> None:
        page.get_by_role("tab", name=name).click()

    def picture(name: str) -> None:
        page.screenshot(path=tmp_path / f"{name}.png")

    page.goto(f"{server.uri}/#/experiments/0/runs/{task.run_id}")
    for text in ("Finished", "rlsched.state", "rlsched.attempts", "cpu-0", "val_accuracy"):
        expect(page.get_by_text(text).first).to_be_visible()
    picture("overview")

    open_tab("System metrics")
    for name in SYSTEM:
        expect(line(page, f"system/{name}")).to_be_attached()
    picture("system-metrics")

    open_tab("Model metrics")
    for name in (*TRAINING, *(f"rlsched/{name}" for name in OURS)):
        expect(line(page, name)).to_be_attached()
    picture("model-metrics")

    open_tab("Artifacts")
    page.get_by_text("rlsched", exact=True).click()
    page.get_by_text("output.log", exact=True).click()
    expect(page.get_by_text("epoch 80: val_loss").first).to_be_visible()
    picture("output")
