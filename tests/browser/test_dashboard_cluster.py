"""The pages Cluster and Search: the pool over time, and what is simulated."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Lived
from tests.browser.dashboard import PHONE, drag, watched

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
]  # the runs are made first

TASKS = "document.querySelector('#cluster-tasks .js-plotly-plot')"


@pytest.fixture
def simulated(lived: Lived) -> Iterator[str]:
    """A simulated workload, by the name of its file."""
    folder = lived.world.home / "simulations"
    folder.mkdir()
    job = {
        "name": "job-1",
        "application": "toy",
        "submitted_s": 0,
        "finished_s": 7200,
        "spans": [{"start_s": 60, "end_s": 7200, "held": {"0": 2}}],
    }
    told = {
        "finished": 1,
        "avg_jct_s": 7200,
        "makespan_s": 7200,
        "gpu_hours": 3.97,
        "restarts": 0,
        "policy": "goodput",
        "workload": "tiny",
        "pool": {"nodes": 1, "gpus_per_node": 4},
        "jobs": [job],
    }
    (folder / "tiny-goodput.json").write_text(json.dumps(told))
    yield "tiny-goodput"
    (folder / "tiny-goodput.json").unlink()
    folder.rmdir()


def opened(page: Page, lived: Lived, query: str = "") -> None:
    expect.set_options(timeout=60_000)
    page.goto(f"{lived.url}/cluster{query}")
    expect(page.get_by_role("heading", level=1, name="Cluster")).to_be_visible()
    page.wait_for_selector("#cluster-tasks .js-plotly-plot .bars path", state="attached")


def test_tasks_stand_on_their_devices_as_the_store_says(browser: Browser, lived: Lived) -> None:
    store = lived.world.store
    expected = {
        (attempt.devices[0].device, lived.world.task(run_id).spec.label)
        for run_id in (lived.trained, lived.failed, lived.running)
        for attempt in store.attempts(run_id)
    }
    with watched(browser) as page:
        opened(page, lived)
        held = page.evaluate(
            f"{TASKS}.data.flatMap(t => t.y.map((y, i) => [y, t.customdata[i][1]]))"
        )
        assert expected <= {(device, name) for device, name in held}
        box = page.get_by_role("img", name="Chart: Tasks on devices").bounding_box()
        assert box is not None
        assert box["height"] > 150
        assert box["width"] > 900
        waiting = "document.querySelector('#cluster-waiting .js-plotly-plot').data[0].y"
        page.wait_for_function(f"{waiting}.at(-1) >= 1")  # the pool goes in steps of 15 s
        user = lived.world.task(lived.trained).spec.user
        expect(page.get_by_role("region", name="Shares by user")).to_contain_text(user)
        with page.expect_download() as csv:
            page.get_by_role("button", name="Download Tasks on devices as CSV").first.click()
        lines = csv.value.path().read_text().splitlines()
        assert lines[0] == "series,place,from,to,name"
        assert any(",digits" in line for line in lines)


def test_how_far_to_look_back_stands_in_the_address_and_a_zoom_stays(
    browser: Browser, lived: Lived
) -> None:
    with watched(browser) as page:
        opened(page, lived, "?window=all")
        page.wait_for_function(f"{TASKS}.data.some(t => t.y.includes('not in this store'))")
        page.get_by_text("1h", exact=True).click()
        page.wait_for_function("location.search.includes('window=1h')")
        page.wait_for_function(f"!{TASKS}.data.some(t => t.y.includes('not in this store'))")
        whole = page.evaluate(f"{TASKS}.layout.xaxis.range")
        drag(page, "#cluster-tasks .js-plotly-plot", 0.2, 0.7)
        page.wait_for_function(f"{TASKS}.layout.xaxis.range.join() !== '{','.join(whole)}'")
        zoomed = page.evaluate(f"{TASKS}.layout.xaxis.range")
        page.evaluate(f"() => {{ window.drawn = {TASKS}.data[0].x.reduce((a, b) => a + b) }}")
        page.wait_for_function(f"{TASKS}.data[0].x.reduce((a, b) => a + b) > window.drawn")
        assert page.evaluate(f"{TASKS}.layout.xaxis.range") == zoomed


def test_simulated_workloads_are_marked_as_such(
    browser: Browser, lived: Lived, simulated: str
) -> None:
    with watched(browser) as page:
        opened(page, lived, f"?simulation={simulated}")
        part = page.locator(".simulated")
        expect(part.get_by_role("heading", name="Simulated workloads")).to_be_visible()
        expect(part.get_by_text("Nothing of this ran.")).to_be_visible()
        bars = part.locator(".js-plotly-plot").first.evaluate("p => p.data.map(t => [t.name, t.y])")
        assert bars == [["toy", ["node 0 GPU 0", "node 0 GPU 1"]]]


def test_without_a_simulation_it_says_how_to_make_one(browser: Browser, lived: Lived) -> None:
    with watched(browser, PHONE, "dark") as page:
        opened(page, lived)
        expect(page.get_by_text("Nothing was simulated yet")).to_be_visible()
        expect(page.get_by_text("rlsched simulate --profiles")).to_be_visible()
        text = page.get_by_text("What a scheduler would make of a workload").bounding_box()
        assert text is not None
        assert text["x"] + text["width"] < 400, "the command beside it does not push it out"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_search_says_what_is_missing_and_what_to_do(browser: Browser, lived: Lived) -> None:
    expect.set_options(timeout=60_000)
    with watched(browser) as page:
        page.goto(f"{lived.url}/search")
        expect(page.get_by_text("Nothing was searched here yet")).to_be_visible()
        expect(page.get_by_text("rlsched search . --study NAME")).to_be_visible()
