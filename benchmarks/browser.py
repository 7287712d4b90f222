"""A dashboard in a process of its own, and a browser that looks at it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from playwright.sync_api import Page, ViewportSize, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE = ViewportSize(width=1440, height=1000)
START_WITHIN_S = 60.0
PATIENCE_MS = 60_000


@dataclass(frozen=True)
class Served:
    """A dashboard that answers: its address, without a slash at the end, and its process."""

    url: str
    process: psutil.Process


@contextmanager
def dashboard(
    env: Mapping[str, str], folder: Path, *options: str, port: int | None = None
) -> Iterator[Served]:
    """``rlsched dashboard`` with these variables and options, until the block is left.

    Args:
        env: Variables.
        folder: Where it is started, and its log is.
        options: Options of the command.
        port: Where it listens; by default where nobody else does.

    Raises:
        RuntimeError: It ended, or did not answer in time; the text is what it printed.
    """
    port = port or free_port()
    program = str(Path(sys.executable).with_name("rlsched"))
    url = f"http://127.0.0.1:{port}"
    log = folder / "dashboard.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [program, "dashboard", "--port", str(port), *options],
            env=dict(env),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the dashboard does not answer:\n{log.read_text()}")
            time.sleep(0.1)
        yield Served(url, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server is there, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def chromium() -> str | None:
    """The program, or None where it is not installed."""
    return shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def page(viewport: ViewportSize = WIDE, scale: float = 1) -> Iterator[Page]:
    """A page of Chromium's, light.

    Args:
        viewport: Its size, CSS pixels.
        scale: Device pixels per CSS pixel.
    """
    path = chromium()
    if path is None:
        raise click.ClickException("no browser: `make system` installs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        context = browser.new_context(
            viewport=viewport, device_scale_factor=scale, color_scheme="light"
        )
        value = context.new_page()
        value.set_default_timeout(PATIENCE_MS)
        yield value
        browser.close()
