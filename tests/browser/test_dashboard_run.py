"""The page of a run: charts, zoom, decisions, and what is no number."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import mlflow
import pytest
from playwright.sync_api import Browser, Page, expect

from mlflow_rlsched import decision_log
from tests.browser.conftest import Lived, made_in_mlflow
from tests.browser.dashboard import PHONE, drag, watched

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]  # the runs are made first

PLOTS = ".run-charts .js-plotly-plot"
DRAWN = f"{PLOTS} .scatterlayer path.js-line"
RANGES = f"[...document.querySelectorAll('{PLOTS}')].map(p => p.layout.xaxis.range.join())"
CHARTS = ("Loss and objective", "Throughput", "Batch size", "Learning rate", "Reward")


def opened(page: Page, lived: Lived, run_id: str, query: str = "") -> None:
    expect.set_options(timeout=60_000)
    page.goto(f"{lived.url}/runs/{run_id}{query}")
    page.wait_for_selector(DRAWN, state="attached")


def test_charts_are_drawn_and_say_what_was_recorded(browser: Browser, lived: Lived) -> None:
    task = lived.world.task(lived.trained)
    records = list(decision_log.read(lived.world.home / "runs" / lived.trained))
    client = mlflow.MlflowClient(lived.world.tracking_uri)
    losses = client.get_metric_history(lived.trained, "loss")
    with watched(browser) as page:
        opened(page, lived, lived.trained)
        expect(page.locator(".state.finished").first).to_be_visible()
        for title in CHARTS:
            box = page.get_by_role("img", name=f"Chart: {title}").bounding_box()
            assert box is not None
            assert box["height"] > 200
            assert box["width"] > 400
        data = page.evaluate(
            f"[...document.querySelectorAll('{PLOTS}')].map(p => p.data.map(t => [t.name, t.y]))"
        )
        lines = {name: y for chart in data for name, y in chart}
        assert lines["loss"] == pytest.approx([point.value for point in losses])
        assert lines["total"] == pytest.approx([each["reward"]["total"] for each in records])
        batches = next(chart[0][1] for chart in data if chart[0][1] and chart[0][1][0] == 8)
        assert batches == [record["setting"]["batch_size"] for record in records]
        assert len(set(page.evaluate(RANGES))) == 1, "all show the same stretch of time"
        assert task.spec.label in page.get_by_role("heading", level=1).inner_text()


def test_one_zoom_moves_all_charts_and_stands_in_the_address(
    browser: Browser, lived: Lived
) -> None:
    with watched(browser) as page:
        opened(page, lived, lived.trained)
        whole = page.evaluate(RANGES)[0]
        drag(page, PLOTS, 0.3, 0.6)
        page.wait_for_function(f"new Set({RANGES}).size === 1 && {RANGES}[0] !== '{whole}'")
        zoomed = page.evaluate(RANGES)[0]
        page.wait_for_function("location.search.includes('zoom=')")
        address = page.url
        kept = json.loads(parse_qs(urlsplit(address).query)["zoom"][0])
        assert ",".join(kept) == zoomed

        page.goto(address)
        page.wait_for_selector(DRAWN, state="attached")
        page.wait_for_function(f"{RANGES}.every(range => range.startsWith('{zoomed[:18]}'))")
        page.get_by_role("button", name="Whole run").click()
        page.wait_for_function(f"{RANGES}.every(range => range === '{whole}')")
        assert "zoom=" not in page.url


def test_a_decision_opens_from_the_table_and_from_a_link(browser: Browser, lived: Lived) -> None:
    records = list(decision_log.read(lived.world.home / "runs" / lived.trained))
    record = records[3]
    with watched(browser) as page:
        opened(page, lived, lived.trained, f"?decision={record['number']}")
        drawer = page.get_by_role("dialog", name=f"Decision {record['number']}")
        expect(drawer.get_by_text(record["proposal"]["reason"]).first).to_be_visible()
        for name in ("ddpg", "fixed", "gpu utilisation", "loss slope"):
            expect(drawer.get_by_text(name, exact=True).first).to_be_visible()
        drawer.get_by_role("button", name="Close").click()
        expect(drawer).not_to_be_visible()
        page.wait_for_function("!location.search.includes('decision=')")
        page.locator("#run-decisions .ag-row").first.click()
        last = records[-1]["number"]
        expect(page.get_by_role("dialog", name=f"Decision {last}")).to_be_visible()


def test_what_is_no_number_is_a_gap_and_a_mark(browser: Browser, lived: Lived) -> None:
    with watched(browser) as page:
        opened(page, lived, lived.wild)
        loss, marks = page.evaluate(
            f"document.querySelector('{PLOTS}').data.map(t => [t.y, t.text])"
        )
        assert loss[0] == [2.0, 1.5, None, 1.2, None, 1.0, 0.9]
        assert marks[1] == ["loss: NaN at step 2", "loss: infinite at step 4"]
        low, high = page.evaluate(f"document.querySelector('{PLOTS}').layout.yaxis.range")
        assert 0 < low < 0.9
        assert 2.0 < high < 3.0


def test_a_long_history_is_thinned_until_it_is_zoomed(browser: Browser, lived: Lived) -> None:
    values = [1 / (1 + step / 1000) for step in range(12_000)]
    values[7000] = 5.0  # what thinning must not lose
    run_id = made_in_mlflow(lived.world, "long", {"loss": values})
    points = f"document.querySelector('{PLOTS}').data[0]"
    with watched(browser) as page:
        opened(page, lived, run_id)
        expect(page.get_by_text("zoom in for all")).to_be_visible()
        assert page.evaluate(f"{points}.x.length") < 2000
        assert page.evaluate(f"Math.max(...{points}.y)") == 5.0
        drag(page, PLOTS, 0.50, 0.55)
        page.wait_for_function(
            f"{points}.x[1] && {points}.customdata[2] - {points}.customdata[1] === 1"
        )


def test_a_run_that_is_deleted_while_it_is_looked_at(browser: Browser, lived: Lived) -> None:
    run_id = made_in_mlflow(lived.world, "to be deleted", {"loss": [1.0, 0.5]})
    with watched(browser) as page:
        opened(page, lived, run_id)
        mlflow.MlflowClient(lived.world.tracking_uri).delete_run(run_id)
        page.reload()
        expect(page.get_by_text(f"mlflow runs restore --run-id {run_id}")).to_be_visible(
            timeout=90_000
        )
        page.get_by_role("link", name="All runs").click()
        expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()


def test_charts_download_as_csv_and_png(browser: Browser, lived: Lived) -> None:
    with watched(browser) as page:
        opened(page, lived, lived.wild)
        with page.expect_download() as csv:
            page.get_by_role("button", name="Download Loss and objective as CSV").click()
        lines = csv.value.path().read_text().splitlines()
        assert lines[0] == "series,x,y"
        assert lines[1].startswith("loss,2023-11-14 ")
        assert lines[1].endswith(",2")
        with page.expect_download() as png:
            page.get_by_role("button", name="Download Loss and objective as PNG").click()
        assert png.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_phone_has_the_charts_below_each_other(browser: Browser, lived: Lived) -> None:
    with watched(browser, PHONE) as page:
        opened(page, lived, lived.trained)
        boxes = [box.bounding_box() for box in page.locator(PLOTS).all()]
        assert all(box and box["x"] < 60 and 280 < box["width"] < 400 for box in boxes)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
