"""A dashboard that goes away and comes back while its pages are open."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Browser, expect

from benchmarks.browser import dashboard, free_port
from tests.browser.conftest import made_in_mlflow
from tests.world import World

pytestmark = pytest.mark.browser


def test_a_page_says_that_the_dashboard_is_away_and_goes_on_with_the_next(
    browser: Browser, world: World
) -> None:
    expect.set_options(timeout=60_000)
    env, port = {**os.environ, **world.env}, free_port()
    page = browser.new_page()
    away = page.get_by_role("alert").filter(has_text="does not answer")
    with dashboard(env, world.root, port=port) as server:
        page.goto(f"{server.url}/runs")
        expect(page.get_by_text("No runs yet")).to_be_visible()
        made_in_mlflow(world, "first", {"loss": [1.0]})
        expect(page.get_by_role("link", name="first")).to_be_visible()
        expect(away).not_to_be_visible()
    expect(away).to_be_visible()
    made_in_mlflow(world, "second", {"loss": [1.0]})
    with dashboard(env, world.root, port=port):
        expect(page.get_by_role("link", name="second")).to_be_visible()
        expect(away).not_to_be_visible()
    page.close()
