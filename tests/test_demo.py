"""``make demo``, with a smaller network."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from benchmarks.browser import answers, free_port
from mlflow_rlsched import processes
from tests.world import ROOT, wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    value = tmp_path / "demo"
    yield value
    processes.end(lambda: alive(value), patient=lambda: False)


def alive(folder: Path) -> list[int]:
    return processes.with_environment("RLSCHED_HOME", str(folder / "home"))


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--quick"]
    return subprocess.Popen(
        [*command, "--folder", str(folder)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_novice_start_with_and_without_us_and_a_kill(folder: Path) -> None:
    folder.mkdir()
    (folder / "left-over").mkdir()
    demo = start(folder)
    output, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, output
    for text in (
        "kill -9",
        "ended by SIGKILL",
        "before the kill were kept",
        "What was decided",
        "The same start, three ways to decide",
        "mlflow ui",
    ):
        assert text in output
    assert alive(folder) == []
    assert not (folder / "left-over").exists()
    assert names_shown_by(shlex.split(output.splitlines()[-1])) == {"rules", "ddpg"}


def names_shown_by(command: list[str]) -> set[str]:
    """Names of the runs on the page Runs of the dashboard that a command starts."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    asked = {
        "output": "page.children",
        "outputs": {"id": "page", "property": "children"},
        "inputs": [
            {
                "id": "view",
                "property": "data",
                "value": {"path": "/runs", "query": {}, "zone": "UTC"},
            }
        ],
        "changedPropIds": ["view.data"],
    }
    request = urllib.request.Request(
        f"{url}/_dash-update-component",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"},
    )
    process = subprocess.Popen([*command, "--port", str(port)])
    try:
        wait_for(lambda: answers(url) or process.poll() is not None, 60)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return set(
                re.findall(r'"run_id":"\w+","href":"[^"]+","name":"(\w+)"', reply.read().decode())
            )
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "rules"), (signal.SIGTERM, "fixed")])
def test_an_interrupt_leaves_nothing_alive(folder: Path, number: int, name: str) -> None:
    demo = start(folder)
    if name == "rules":
        attempts = folder / "home" / "runs"
        wait_for(lambda: list(attempts.glob("*/attempts/1/report.jsonl")), 240)
    else:
        log = folder / "run.log"
        wait_for(lambda: log.exists() and "epoch 2:" in log.read_text(), 120)
    second = start(folder)
    refusal, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert f"another demo runs in {folder}" in refusal
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1, output
    assert "Aborted!" in output
    assert "Traceback" not in output
    assert alive(folder) == []
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs(["0"], f"attributes.run_name = '{name}'")
    assert run.info.status in ("KILLED", "FAILED")


def test_what_goes_wrong_is_said(folder: Path) -> None:
    demo = start(folder, RLSCHED_CPU_SLOTS="many")
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert "RLSCHED_CPU_SLOTS" in output
    assert "Traceback" not in output
