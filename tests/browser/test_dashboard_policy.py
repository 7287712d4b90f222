"""The page Policy: versions, what they learned, and the explorer."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from mlflow_rlsched import decision_log
from mlflow_rlsched.learning.mlflow_log import Log
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.registry import experiment_id
from mlflow_rlsched.versions import Versions
from tests.browser.conftest import Lived
from tests.browser.dashboard import PHONE, watched
from tests.learning.recording import idle
from tests.policy.trained import trained

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
]  # the runs are made first

LOSSES = [0.9, 0.5, 0.4]


@pytest.fixture(scope="module")
def champion(lived: Lived) -> Version:
    """The host's champion: the shipped version, after another one was tried."""
    versions = Versions(lived.world.home / "policies")
    versions.promote(trained(1.1), "3 % faster on runs like yours")
    versions.promote(idle(), "a try")
    versions.rollback("rewards fell by 12 %")
    versions.rollback("rewards fell again")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", lived.world.tracking_uri)
        client = lived.world.client
        run = client.create_run(experiment_id(client), run_name="learning from runs")
        log = Log(run.info.run_id)
        for step, loss in enumerate(LOSSES, 1):
            log.metrics({"loss/critic": loss, "value": 2 * loss}, step)
        log.end()
    return versions.champion().version


def opened(page: Page, lived: Lived, query: str = "") -> None:
    expect.set_options(timeout=60_000)
    page.goto(f"{lived.url}/policy{query}")
    expect(page.get_by_role("heading", level=1, name="Policy")).to_be_visible()
    page.wait_for_selector("#explorer-chances .js-plotly-plot .bars path", state="attached")


def test_versions_and_how_the_champion_came_about(
    browser: Browser, lived: Lived, champion: Version
) -> None:
    with watched(browser) as page:
        opened(page, lived)
        figure = page.locator("#policy-figures .figure").first
        expect(figure).to_contain_text(champion.name)
        expect(page.locator("#policy-versions .ag-row")).to_have_count(3)
        history = page.locator("#policy-history .ag-row")
        expect(history).to_have_count(4)
        expect(history.first).to_contain_text("rewards fell again")
        expect(page.get_by_role("region", name="Ratios to each baseline")).to_contain_text("fixed")

        page.locator("#policy-versions .ag-row", has_text=trained(1.1).name).click()
        expect(page.get_by_text(f"Model card of version {trained(1.1).name}")).to_be_visible()
        assert parse_qs(urlsplit(page.url).query)["version"] == [trained(1.1).name]
        expect(page.get_by_text("Not evaluated")).to_be_visible()
        expect(page.get_by_role("button", name="Evaluate on 16 simulated runs")).to_be_visible()


def test_what_it_learned_is_what_was_logged(
    browser: Browser, lived: Lived, champion: Version
) -> None:
    before = len(lived.world.store.transitions())
    with watched(browser) as page:
        opened(page, lived)
        chart = page.get_by_role("img", name="Chart: Critics' loss")
        expect(chart).to_be_visible()
        drawn = chart.locator(".js-plotly-plot").evaluate("p => p.data.map(t => [t.x, t.y])")
        assert drawn == [[[1, 2, 3], LOSSES]]
        expect(page.get_by_role("img", name="Chart: Q", exact=True)).to_be_visible()
        figures = page.locator("#policy-figures").inner_text()
        told = re.search(r"of ([\d,]+) transitions", figures)
        assert told is not None, figures
        kept = len(lived.world.store.transitions())  # a run goes on and adds to them
        assert before <= int(told[1].replace(",", "")) <= kept
        expect(page.get_by_role("img", name="Chart: Transitions")).to_be_visible()
        expect(page.get_by_role("img", name="Chart: Priorities")).to_be_visible()


def test_the_explorer_answers_keyboard_and_keeps_its_state_in_the_address(
    browser: Browser, lived: Lived, champion: Version
) -> None:
    with watched(browser) as page:
        opened(page, lived)
        before = page.locator("#explorer-results").inner_text()
        slider = page.get_by_role("slider", name="gpus", exact=True)
        state = "JSON.parse(new URLSearchParams(location.search).get('state'))"
        start = float(slider.get_attribute("aria-valuenow") or "")
        slider.press("ArrowLeft")
        page.wait_for_function("location.search.includes('state=')")
        page.wait_for_function(f"{state}.gpus < {start}")
        slider.press("Home")
        page.wait_for_function(f"{state}.gpus === 0")
        expect(page.locator("#explorer-results")).not_to_have_text(before)
        results = page.locator("#explorer-results").inner_text()
        address = page.url
        page.goto(address)
        expect(page.locator("#explorer-results")).to_contain_text(results.splitlines()[-1])
        page.get_by_role("button", name="Reset").click()
        page.wait_for_function("!location.search.includes('state=')")


def test_the_explorer_takes_the_state_of_a_run(
    browser: Browser, lived: Lived, champion: Version
) -> None:
    last = list(decision_log.read(lived.world.home / "runs" / lived.trained))[-1]["state"]
    with watched(browser) as page:
        opened(page, lived)
        picker = page.get_by_role("textbox", name="Take the state of a run's last decision")
        picker.click()
        page.get_by_role("option", name="digits ·").first.click()
        page.wait_for_function("location.search.includes('state=')")
        state = json.loads(parse_qs(urlsplit(page.url).query)["state"][0])
        assert state["loss"] == pytest.approx(last["loss"]["value"], abs=0.02)


def test_a_phone_reads_it(browser: Browser, lived: Lived, champion: Version) -> None:
    with watched(browser, PHONE, "dark") as page:
        opened(page, lived)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        box = page.get_by_role("img", name="Chart: Devices, by the actor").bounding_box()
        assert box is not None
        assert box["width"] < 380
