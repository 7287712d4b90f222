"""Makes the README's pictures of the dashboard, from real trainings of the digits project.

It takes some minutes: one training is followed to its end, others run and wait after it.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from playwright.sync_api import Page

from benchmarks.browser import dashboard, page
from benchmarks.host import PROJECTS, Host, host
from mlflow_rlsched.store import State, open_store

IMAGES = Path(__file__).parent.parent / "docs" / "images"
HEIGHTS = {"now": 870, "run": 1310}
"""CSS pixels that are shown of each page, from its top."""

EPOCHS = 45
MANY_EPOCHS = 5000
BUSY = """
    document.querySelectorAll('#now-tasks .state.running').length === 2
    && [...document.querySelectorAll('.device')].every(
        (device) => parseFloat(device.querySelector('.bar > span')?.style.width) >= 20)
"""
"""Both run, and are past their start."""

DRAWN = "document.querySelectorAll('.run-charts .scatterlayer path').length > 10"


@click.command(help=__doc__)
def main() -> None:
    """Train, and take the pictures."""
    with host(slots=2) as place:
        submit(place, "a novice's start", EPOCHS, policy="rules", wait=True)
        submit(place, "digits, all night", MANY_EPOCHS, policy="ddpg", wait=False)
        submit(place, "digits, once more", MANY_EPOCHS, policy="rules", wait=False)
        submit(place, "digits, later", MANY_EPOCHS, policy="ddpg", wait=False, priority=-1)
        with dashboard(place.env, place.root) as server, page() as browser:
            take(browser, "now", server.url, BUSY)
            (ended,) = open_store(place.store).tasks([State.FINISHED])
            take(browser, "run", f"{server.url}/runs/{ended.run_id}", DRAWN)


def submit(place: Host, name: str, epochs: int, **config: object) -> None:
    """Submit a training with a tiny batch and a rate that is far too small."""
    parameters = {"batch_size": 8, "lr": 1e-5, "epochs": epochs, "width": 32}
    place.run(
        *("mlflow", "run", str(PROJECTS / "digits"), "--backend", "rlsched"),
        *("--backend-config", json.dumps(config), "--run-name", name),
        *(word for key, value in parameters.items() for word in ("-P", f"{key}={value}")),
    )


def take(browser: Page, name: str, url: str, seen: str) -> None:
    """Save the upper part of a page, once it shows what it should."""
    browser.set_viewport_size({"width": 1440, "height": HEIGHTS[name]})
    browser.goto(url)
    browser.wait_for_function(seen)
    browser.screenshot(path=IMAGES / f"dashboard-{name}.png")


if __name__ == "__main__":
    main()
