"""Pages that stay open: they grow, keep what people set, and cost the browser nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Response, expect

from tests.browser.conftest import Lived
from tests.browser.dashboard import watched

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
]  # the runs are made first

PLOTS = "[...document.querySelectorAll('.run-charts .js-plotly-plot')]"
KNOB = f"{PLOTS}.find(p => p.data[0].name === 'decision')"
REFRESHES = 500
GROWTH = 1.15
"""What 500 refreshes may add to the browser's memory."""


def test_a_running_run_grows_and_keeps_its_zoom(browser: Browser, lived: Lived) -> None:
    expect.set_options(timeout=60_000)
    bodies: list[str] = []

    def keep(response: Response) -> None:
        if "_dash-update-component" in response.url and response.status == 200:
            text = response.text()
            if "extendData" in text:
                bodies.append(text)

    with watched(browser) as page:
        page.goto(f"{lived.url}/runs/{lived.running}")
        page.wait_for_function(f"{KNOB} && {KNOB}.data[0].x.length > 1")
        page.on("response", keep)
        page.evaluate(
            f"""async () => {{
                const plot = {KNOB};
                const [first, second] = plot.data[0].x;
                const range = {{ 'xaxis.range[0]': first, 'xaxis.range[1]': second }};
                await Plotly.relayout(plot, range);
            }}"""
        )
        page.wait_for_function("location.search.includes('zoom=')")
        zoomed = page.evaluate(f"{KNOB}.layout.xaxis.range")
        count = page.evaluate(f"{KNOB}.data[0].x.length")
        page.wait_for_function(f"{KNOB}.data[0].x.length > {count}", timeout=90_000)
        assert page.evaluate(f"{KNOB}.layout.xaxis.range") == zoomed
        assert page.evaluate(f"{KNOB}.data[0].text.length === {KNOB}.data[0].x.length")
        page.wait_for_function("document.querySelectorAll('#run-decisions .ag-row').length > 1")
    assert bodies
    assert max(len(body) for body in bodies) < 20_000, "only what is new is sent"


def test_a_paused_page_asks_for_nothing(browser: Browser, lived: Lived) -> None:
    asked: list[str] = []
    with watched(browser) as page:
        page.goto(f"{lived.url}/runs/{lived.wild}")
        expect(page.get_by_role("heading", level=1, name="wild")).to_be_visible()
        with page.expect_request(lambda request: "_dash-update-component" in request.url):
            pass  # it is live
        page.get_by_role("switch", name="Live").click()
        page.wait_for_load_state("networkidle")
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_function("(window.ticks = (window.ticks || 0) + 1) > 200", polling=20)
        assert asked == []


def test_five_hundred_refreshes_leave_the_browsers_memory_flat(
    browser: Browser, lived: Lived
) -> None:
    with watched(browser) as page:
        page.goto(f"{lived.url}/runs/{lived.trained}")
        page.wait_for_selector(".run-charts .js-plotly-plot .scatterlayer path", state="attached")
        session = page.context.new_cdp_session(page)

        def heap() -> float:
            session.send("HeapProfiler.collectGarbage")
            return float(session.send("Runtime.getHeapUsage")["usedSize"])

        refresh_all = """async (count) => {
            let done = 0;
            const real = window.fetch;
            window.fetch = async (...args) => {
                const reply = await real(...args);
                done += 1;
                return reply;
            };
            for (let i = 0; i < count; i++) {
                const before = done;
                dash_clientside.set_props("refresh", { data: `again ${i} ${Math.random()}` });
                while (done === before) await new Promise((go) => setTimeout(go, 2));
            }
            window.fetch = real;
            return done;
        }"""
        page.evaluate(refresh_all, 50)
        before = heap()
        assert page.evaluate(refresh_all, REFRESHES) >= REFRESHES
        assert heap() < GROWTH * before
