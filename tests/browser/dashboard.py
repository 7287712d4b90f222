"""A dashboard in a process of its own, and a page that is watched while a test looks at it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize

from tests.world import wait_for

PATIENCE_MS = 60_000
WIDE = ViewportSize(width=1440, height=1000)
PHONE = ViewportSize(width=400, height=800)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return int(reply.status) == 200
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False


@contextmanager
def served(env: Mapping[str, str], folder: Path, *options: str, prefix: str = "/") -> Iterator[str]:
    """`rlsched dashboard` with these variables; its address, without a slash at the end."""
    port = free_port()
    program = str(Path(sys.executable).with_name("rlsched"))
    command = [program, "dashboard", "--port", str(port), "--url-prefix", prefix, *options]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "dashboard.log", "wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, cwd=folder, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}{prefix.rstrip('/')}"
    try:
        wait_for(lambda: answers(url + "/") or process.poll() is not None, 60)
        assert process.poll() is None, (folder / "dashboard.log").read_text()
        yield url
    finally:
        process.terminate()
        process.wait(20)


@dataclass
class Watched:
    """What a page said and asked for while a test used it."""

    messages: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


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
