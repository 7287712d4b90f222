"""The page of a profile in a browser: its pictures are there, and it asks no host for anything."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from mlflow_rlsched.analysis.findings import findings, unknown
from mlflow_rlsched.analysis.profile import profile
from mlflow_rlsched.analysis.profile_page import page
from mlflow_rlsched.analysis.readings import Readings
from tests.analysis.records import launch, run, told

_COLOUR = "element => getComputedStyle(element).color"


def test_the_page_stands_alone(browser: Browser, tmp_path: Path) -> None:
    first = launch(1, 20, 60, told((30, 0), (60, 400)), reason="resized")
    second = launch(2, 65, 120, told((70, 400), (95, 900), (118, 1400)), devices=2)
    record = run(first, second, ended=120)
    object.__setattr__(record.task.spec, "label", "<script>alert(1)</script>")
    found = profile(record, Readings(), None, None)
    path = tmp_path / "profile.html"
    path.write_text(page(found, findings(found), unknown(found)))
    context = browser.new_context(
        viewport={"width": 390, "height": 800}, color_scheme="dark", reduced_motion="reduce"
    )
    shown = context.new_page()
    asked: list[str] = []
    troubles: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("pageerror", lambda error: troubles.append(str(error)))
    shown.on("dialog", lambda dialog: troubles.append(dialog.message))
    shown.goto(path.as_uri())
    shown.locator(".js-plotly-plot .main-svg").nth(8).wait_for()
    assert shown.locator(".js-plotly-plot").count() == 4
    assert shown.evaluate("document.documentElement.scrollWidth") == 390
    text = shown.locator(".legendtext").first
    colours = {
        shown.locator("body").evaluate(_COLOUR),
        text.evaluate(_COLOUR.replace("color", "fill")),
    }
    assert colours == {"rgb(223, 228, 234)"}  # light on dark, in pictures too
    assert "Profile of <script>" in shown.locator("h1").inner_text()
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()
