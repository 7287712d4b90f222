"""The pages Now and Runs: what the store says, and what people ask of runs."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import Browser, Page, expect

from mlflow_rlsched.store import State
from tests.browser.conftest import Lived, made_in_mlflow
from tests.browser.dashboard import served, watched
from tests.world import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]  # the runs are made first


def row(grid: str, name: str) -> str:
    """Selector of the row of a run."""
    return f"#{grid} .ag-row:has-text('{name}')"


def choose(page: Page, grid: str, run_id: str) -> None:
    """Tick the box of a run, which may stand in another part of the grid than its name."""
    page.locator(f"#{grid} [row-id='{run_id}'] input[type=checkbox]").first.check()


@pytest.fixture(autouse=True)
def _patience() -> None:
    expect.set_options(timeout=60_000)


def test_now_shows_what_the_store_holds(browser: Browser, lived: Lived) -> None:
    with watched(browser) as page:
        page.goto(lived.url + "/")
        expect(page.locator("#now-figures")).to_contain_text("1 of 1")
        expect(page.locator("#now-figures")).to_contain_text("1 waiting")
        device = page.locator("#device-cpu-0")
        expect(device).to_contain_text("goes on")
        expect(page.locator(row("now-tasks", "goes on"))).to_contain_text("running")
        waiting = page.locator(row("now-tasks", "waits"))
        expect(waiting).to_contain_text("queued")
        expect(waiting).to_contain_text(lived.running[:8])
        expect(page.locator(row("now-ended", "crash"))).to_contain_text("failed")
        device.get_by_role("link", name="goes on").click()
        expect(page.get_by_role("heading", level=1, name="goes on")).to_be_visible()


def test_priority_cancel_and_retry_are_asked_for_and_done(browser: Browser, lived: Lived) -> None:
    world = lived.world
    with watched(browser) as page:
        page.goto(lived.url + "/")
        choose(page, "now-tasks", lived.waiting)
        page.get_by_role("button", name="Change priority").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Priority")).to_have_value("0")
        dialog.get_by_label("Priority").fill("-7")
        dialog.get_by_role("button", name="Change priority").click()
        expect(page.get_by_text("has priority -7")).to_be_visible()
        assert world.task(lived.waiting).priority == -7
        expect(dialog).not_to_be_visible()
        page.get_by_role("button", name="Change priority").click()
        expect(dialog.get_by_label("Priority")).to_have_value("-7")
        dialog.get_by_role("button", name="Leave it").click()
        expect(dialog).not_to_be_visible()

        choose(page, "now-ended", lived.failed)
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
        expect(page.get_by_role("dialog")).not_to_be_visible()
        assert world.task(lived.failed).state is State.FAILED
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("is queued again")).to_be_visible()
        expect(page.locator(row("now-tasks", "crash"))).to_be_visible()

        page.reload()  # the run that waits is still chosen
        choose(page, "now-tasks", lived.failed)
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        wait_for(lambda: world.task(lived.failed).state is State.KILLED)
        expect(page.locator(row("now-ended", "crash"))).to_contain_text("killed")
        assert not world.task(lived.waiting).state.final


def test_a_read_only_dashboard_offers_and_does_nothing(browser: Browser, lived: Lived) -> None:
    folder = lived.world.root / "read-only"
    with (
        served(lived.world.env, folder, "--read-only") as url,
        watched(browser) as page,
    ):
        page.goto(url + "/")
        expect(page.locator(row("now-tasks", "waits"))).to_be_visible()
        expect(page.get_by_text("read-only")).to_be_visible()
        assert page.get_by_role("button", name=re.compile("Cancel|Retry|priority")).count() == 0


def test_runs_are_found_filtered_sorted_and_linked(browser: Browser, lived: Lived) -> None:
    with watched(browser) as page:
        page.goto(lived.url + "/runs")
        rows = page.locator("#runs-grid .ag-center-cols-container .ag-row")
        expect(page.locator(row("runs-grid", "digits")).first).to_be_visible()
        page.get_by_label("Search all columns").fill("digits")
        expect(rows).to_have_count(1)
        page.wait_for_function("location.search.includes('q=digits')")
        page.goto(page.url)
        expect(rows).to_have_count(1)
        page.get_by_label("Search all columns").fill("")
        page.locator("#runs-grid .ag-header-cell[col-id=name]").click()
        page.wait_for_function("location.search.includes('sort=')")
        page.goto(page.url)
        expect(rows.first).to_be_visible()
        names = page.locator("#runs-grid .ag-pinned-left-cols-container .grid-link")
        shown = names.all_inner_texts()
        assert shown == sorted(shown)


def test_a_filter_in_the_address_holds_and_refresh_keeps_the_choice(
    browser: Browser, lived: Lived
) -> None:
    chosen = json.dumps({"state": {"filterType": "text", "type": "equals", "filter": "finished"}})
    with watched(browser) as page:
        page.goto(f"{lived.url}/runs?filter={chosen}")
        states = page.locator("#runs-grid .state")
        expect(states.first).to_be_visible()
        assert set(states.all_inner_texts()) == {"finished"}
        choose(page, "runs-grid", lived.trained)
        choose(page, "runs-grid", lived.wild)
        expect(page.get_by_role("button", name="Compare 2")).to_be_enabled()
        made_in_mlflow(lived.world, "came later", {"loss": [1.0]}, int(1000 * time.time()))
        expect(page.locator(row("runs-grid", "came later")).first).to_be_visible()
        expect(page.get_by_role("button", name="Compare 2")).to_be_enabled()
        page.get_by_role("button", name="Compare 2").click()
        page.wait_for_function("location.pathname.endsWith('/compare')")
        assert lived.trained in page.url


def test_a_view_is_saved_and_shown_again(browser: Browser, lived: Lived) -> None:
    with watched(browser) as page:
        page.goto(lived.url + "/runs?q=digits")
        expect(page.get_by_label("Search all columns")).to_have_value("digits")
        page.get_by_role("button", name="Save view").click()
        page.get_by_label("Name").fill("mine")
        page.get_by_role("button", name="Save", exact=True).click()
        page.goto(lived.url + "/runs")
        page.get_by_label("Saved views").first.click()
        page.get_by_role("option", name="mine").click()
        expect(page.get_by_label("Search all columns")).to_have_value("digits")


def test_the_theme_and_the_time_zone_are_chosen_and_kept(browser: Browser, lived: Lived) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    scheme = "document.documentElement.dataset.mantineColorScheme"
    with watched(browser, scheme="dark") as page:
        page.goto(f"{lived.url}/runs/{lived.wild}")
        expect(page.get_by_role("heading", level=1, name="wild")).to_be_visible()
        page.wait_for_function(f"{scheme} === 'dark'")
        dark = page.evaluate(background)
        assert page.evaluate("document.body.dataset.agThemeMode") == "dark"
        page.get_by_role("button", name="Appearance and time zone").click()
        page.get_by_text("Light", exact=True).click()
        page.wait_for_function(f"{scheme} === 'light' && {background} !== '{dark}'")
        first = "document.querySelector('.run-charts .js-plotly-plot')?.data?.[0].x[0]"
        page.wait_for_function(f"{first}?.startsWith('2023-11-14 23:13:20')")  # Berlin
        page.get_by_text("UTC", exact=True).click()
        page.wait_for_function(f"{first}?.startsWith('2023-11-14 22:13:20')")
        page.reload()
        page.wait_for_function(f"{scheme} === 'light'")
        page.wait_for_function(f"{first}?.startsWith('2023-11-14 22:13:20')")


def test_below_a_prefix_every_link_stays_there(browser: Browser, lived: Lived) -> None:
    folder = lived.world.root / "prefixed"
    with (
        served(lived.world.env, folder, prefix="/team/rlsched/") as url,
        watched(browser) as page,
    ):
        page.goto(url + "/runs")
        page.locator("#runs-grid .grid-link", has_text="wild").first.click()
        page.wait_for_selector(".run-charts .js-plotly-plot .scatterlayer path", state="attached")
        assert page.url.startswith(f"{url}/runs/{lived.wild}")
        page.get_by_role("link", name="Now").click()
        expect(page.get_by_role("heading", level=1, name="Now")).to_be_visible()
        assert page.url == url + "/"
