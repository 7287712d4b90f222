"""A dashboard in a process of its own, and a page that is watched while a test looks at it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize

from benchmarks.browser import PATIENCE_MS, WIDE, dashboard

PHONE = ViewportSize(width=400, height=800)


@contextmanager
def served(env: Mapping[str, str], folder: Path, *options: str, prefix: str = "/") -> Iterator[str]:
    """`rlsched dashboard` with these variables; its address, without a slash at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    prefixed = ("--url-prefix", prefix, *options)
    with dashboard({**os.environ, **env}, folder, *prefixed) as server:
        yield server.url + prefix.rstrip("/")


@dataclass
class Watched:
    """What a page said and asked for while a test used it."""

    messages: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


def drag(page: Page, plot: str, low: float, high: float) -> None:
    """Zoom the first of some charts to a part of its width, with the mouse."""
    page.locator(plot).first.scroll_into_view_if_needed()
    box = page.locator(f"{plot} .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + low * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + high * box["width"], y + 2, steps=5)
    page.mouse.up()


@contextmanager
def watched(
    browser: Browser, viewport: ViewportSize = WIDE, scheme: str = "light"
) -> Iterator[Page]:
    """A page that must say nothing in the console, and ask nothing of another host."""
    context = browser.new_context(
        viewport=viewport,
        color_scheme="dark" if scheme == "dark" else "light",
        timezone_id="Europe/Berlin",
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    seen = Watched()
    page.on("console", lambda message: seen.messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.messages.append(f"error: {error}"))
    page.on("request", lambda request: seen.hosts.add(request.url.split("/")[2].split(":")[0]))
    try:
        yield page
    finally:
        context.close()
    assert seen.messages == []
    assert seen.hosts - {"", "127.0.0.1"} == set()
