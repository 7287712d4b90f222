"""The page Compare: the same axis for all, a baseline, and what makes runs different."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import mlflow
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from mlflow_rlsched import decision_log
from tests.browser.conftest import Lived, made_in_mlflow
from tests.browser.dashboard import PHONE, served, watched

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
]  # the runs are made first

PLOTS = "#compare-charts .js-plotly-plot"
RANGES = f"[...document.querySelectorAll('{PLOTS}')].map(p => p.layout.xaxis.range.join())"


@pytest.fixture(scope="module")
def longer(lived: Lived) -> str:
    values = {"loss": [3.0, 2.0, 1.0], "val_loss": [3.0, 0.5]}
    return made_in_mlflow(lived.world, "longer", values, int(1000 * time.time()))


@pytest.fixture(scope="module")
def linked(lived: Lived) -> Iterator[str]:
    """A dashboard that knows an MLflow UI."""
    folder = lived.world.root / "linked"
    with served(lived.world.env, folder, "--mlflow-ui-url", "http://127.0.0.1:5000") as url:
        yield url


def opened(page: Page, url: str, *run_ids: str, query: str = "") -> None:
    expect.set_options(timeout=60_000)
    page.goto(f"{url}/compare?runs={','.join(run_ids)}{query}")
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
    page.wait_for_selector(f"{PLOTS} .scatterlayer path.js-line", state="attached")


def zoom(page: Page, low: float, high: float) -> str:
    """Zoom the first chart; the range that all have then."""
    change = {"xaxis.range[0]": low, "xaxis.range[1]": high}  # as a mouse says it
    page.evaluate(f"Plotly.relayout(document.querySelector('{PLOTS}'), {json.dumps(change)})")
    wanted = f"{low:g},{high:g}"
    page.wait_for_function(f"{RANGES}.every(range => range === '{wanted}')")
    return wanted


def row(page: Page, key: str) -> Locator:
    """A row of the table, without the column that stands still."""
    return page.locator(f"#compare-table .ag-center-cols-container [row-id='{key}']")


def test_runs_are_drawn_over_time_and_samples(browser: Browser, lived: Lived, longer: str) -> None:
    records = list(decision_log.read(lived.world.home / "runs" / lived.trained))
    samples = [r["history"]["samples"] for r in records if r["history"]["samples"] is not None]
    client = mlflow.MlflowClient(lived.world.tracking_uri)
    losses = [each.value for each in client.get_metric_history(lived.trained, "val_loss")]
    with watched(browser) as page:
        opened(page, lived.url, lived.trained, longer)
        box = page.get_by_role("img", name="Chart: val_loss").bounding_box()
        assert box is not None
        assert box["height"] > 200
        assert box["width"] > 400
        traces = page.evaluate(f"document.querySelector('{PLOTS}').data.map(t => [t.name, t.y])")
        assert dict(traces)["digits"] == pytest.approx(losses)
        assert dict(traces)["longer"] == [3.0, 0.5]
        assert len(set(page.evaluate(RANGES))) == 1

        page.get_by_text("Samples", exact=True).click()
        expect(page.get_by_text("Samples of longer were not recorded")).to_be_visible()
        assert "axis=samples" in page.url
        page.wait_for_selector(f"{PLOTS} .scatterlayer path.js-line", state="attached")
        last = page.evaluate(f"document.querySelector('{PLOTS}').data[0].x.at(-1)")
        assert last <= max(samples)


def test_one_zoom_for_all_stands_in_the_address_and_outlives_refreshes(
    browser: Browser, lived: Lived
) -> None:
    with watched(browser) as page:
        opened(page, lived.url, lived.trained, lived.running)
        zoomed = zoom(page, 2, 5)
        page.wait_for_function("location.search.includes('zoom=')")
        kept = parse_qs(urlsplit(page.url).query)["zoom"][0]
        assert json.loads(kept) == [2, 5]
        held = row(page, "Result: device time")
        before = held.inner_text()
        expect(held).not_to_have_text(before, use_inner_text=True)  # the running one goes on
        assert set(page.evaluate(RANGES)) == {zoomed}
        page.reload()
        page.wait_for_function(f"{RANGES}.length && {RANGES}.every(range => range === '{zoomed}')")
        page.get_by_role("button", name="Whole runs").click()
        page.wait_for_function(f"{RANGES}.every(range => range.startsWith('0,'))")
        assert "zoom=" not in page.url


def test_the_table_tells_what_differs_from_the_baseline(
    browser: Browser, lived: Lived, longer: str
) -> None:
    with watched(browser) as page:
        opened(page, lived.url, lived.trained, longer, query=f"&baseline={longer}")
        heading = page.get_by_role("columnheader", name="longer (baseline)")
        expect(heading).to_be_visible()
        worse = row(page, "Final metrics: val_loss").locator(".difference.less")
        expect(worse).to_have_count(1)
        state = row(page, "Result: state")
        expect(state).to_be_visible()
        page.get_by_label("Only what differs").check()
        expect(state).to_have_count(0)
        assert "differs=true" in page.url
        with page.expect_download() as csv:
            page.get_by_role("button", name="Download the differences as CSV").click()
        assert "val_loss" in csv.value.path().read_text()


def test_runs_are_chosen_on_the_page(browser: Browser, lived: Lived, longer: str) -> None:
    expect.set_options(timeout=60_000)
    with watched(browser) as page:
        page.goto(f"{lived.url}/compare")
        expect(page.get_by_text("Nothing to compare yet")).to_be_visible()
        picker = page.get_by_role("textbox", name="Runs", exact=True)
        for name in ("digits ·", "longer ·"):
            picker.click()
            page.get_by_role("option", name=name).first.click()
        page.get_by_role("heading", level=1).click()
        page.wait_for_selector(f"{PLOTS} .scatterlayer path.js-line", state="attached")
        chosen = parse_qs(urlsplit(page.url).query)["runs"][0].split(",")
        assert chosen == [lived.trained, longer]


def test_too_many_and_deleted_runs_are_said(browser: Browser, lived: Lived, longer: str) -> None:
    gone = made_in_mlflow(lived.world, "gone", {"loss": [1.0]})
    mlflow.MlflowClient(lived.world.tracking_uri).delete_run(gone)
    more = [f"{number:032x}" for number in range(9)]
    with watched(browser) as page:
        opened(page, lived.url, lived.trained, longer, gone, *more)
        expect(page.get_by_text("The first 10 runs are shown")).to_be_visible()
        expect(page.get_by_text("Not all runs are there any more")).to_be_visible()
        expect(page.locator("#compare-legend li")).to_have_count(2)


def test_the_same_comparison_in_mlflow(
    browser: Browser, lived: Lived, longer: str, linked: str
) -> None:
    with watched(browser) as page:
        opened(page, linked, lived.trained, longer)
        address = page.get_by_role("link", name="Compare in MLflow").get_attribute("href")
        assert address is not None
        query = parse_qs(urlsplit(address).fragment.partition("?")[2])
        assert json.loads(query["runs"][0]) == [lived.trained, longer]
        assert json.loads(query["experiments"][0]) == ["0"]


def test_a_phone_has_the_charts_below_each_other(
    browser: Browser, lived: Lived, longer: str
) -> None:
    named = made_in_mlflow(lived.world, "a-very-long-name-" * 12, {"loss": [1.0, 0.5]})
    with watched(browser, PHONE, "dark") as page:
        opened(page, lived.url, lived.trained, longer, named)
        boxes = [box.bounding_box() for box in page.locator(PLOTS).all()]
        assert all(box and box["x"] < 60 and 280 < box["width"] < 400 for box in boxes)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(26, 26, 26)"
