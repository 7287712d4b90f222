"""A browser for the tests, and what is to be true of every page that it opens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    for name in ("chromium", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no browser: `make system` installs Chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        value = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield value
        value.close()
