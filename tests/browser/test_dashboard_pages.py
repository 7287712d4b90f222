"""Every page opens: nothing in the console, nothing asked of another host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.dashboard import PHONE, served, watched
from tests.world import World

pytestmark = pytest.mark.browser

PAGES = {
    "/": "Now",
    "/runs": "Runs",
    "/compare": "Compare",
    "/policy": "Policy",
    "/search": "Search",
    "/cluster": "Cluster",
}


@pytest.fixture
def url(world: World) -> Iterator[str]:
    """A dashboard of a host where nothing was ever submitted."""
    with served(world.env, world.root / "dashboard") as value:
        yield value


def test_every_page_opens_where_nothing_was_ever_run(browser: Browser, url: str) -> None:
    expect.set_options(timeout=60_000)
    with watched(browser) as page:
        for path, title in PAGES.items():
            page.goto(url + path)
            expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        page.goto(url + "/no/such/page")
        expect(page.get_by_text("No such page")).to_be_visible()
        page.get_by_role("link", name="Runs").click()
        expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()


def test_the_navigation_of_a_phone_opens_and_closes(browser: Browser, url: str) -> None:
    expect.set_options(timeout=60_000)
    with watched(browser, PHONE) as page:
        page.goto(url + "/")
        link = page.get_by_role("link", name="Policy")
        expect(page.get_by_role("heading", level=1, name="Now")).to_be_visible()
        expect(link).not_to_be_in_viewport()
        page.get_by_role("button", name="Open the navigation").click()
        expect(link).to_be_in_viewport()
        link.click()
        expect(page.get_by_role("heading", level=1, name="Policy")).to_be_visible()
        expect(link).not_to_be_in_viewport()
