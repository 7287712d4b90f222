"""``rlsched agent``, and what all commands share."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_rlsched import __version__
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.store import Store
from tests.cli.conftest import Rlsched, submit
from tests.world import World

HOST = socket.gethostname()


def test_no_agent(rlsched: Rlsched, url: str, store: Store) -> None:
    for run_id, user in (("aaaa1111", user_name()), ("bbbb2222", user_name()), ("cccc", "bob")):
        submit(store, run_id, user=user, host=HOST)
    store.claim("aaaa1111", HOST, [], now=1.0)
    result = rlsched("agent", "status")
    assert result.exit_code == 1
    assert "no agent lives (a submission starts it)\n1 running, 1 waiting" in result.stdout
    value = json.loads(rlsched("agent", "status", "--json").stdout)
    assert (value["alive"], value["running"], value["waiting"]) == (False, 1, 1)
    assert value["log"] == str(AgentFiles(url).log)


def test_a_living_agent(rlsched: Rlsched, url: str, woken: Callable[[], bool]) -> None:
    AgentFiles(url).introduce("9.9.9")
    result = rlsched("agent", "status")
    assert result.exit_code == 0
    assert "version 9.9.9" in result.stdout
    value = json.loads(rlsched("agent", "status", "--json").stdout)
    assert value["alive"] is True
    assert 0 < value["uptime_s"] < 7200
    assert "runs already" in rlsched("agent", "start").stdout


def test_stop_keeps_agents_from_starting_until_start(rlsched: Rlsched, url: str) -> None:
    files = AgentFiles(url)
    assert rlsched("agent", "stop").exit_code == 0
    assert files.held.exists()
    files.start()
    assert not files.log.exists(), "a waiting command would start one now"
    assert "stopped on purpose" in rlsched("agent", "status").stdout


def test_a_real_agent_starts_lives_and_stops(world: World) -> None:
    started = world.rlsched("agent", "start")
    assert started.returncode == 0
    agent = world.agent_process()
    assert agent is not None
    assert f"process {agent.pid}" in started.stdout
    assert world.rlsched("agent", "status").returncode == 0
    stopped = world.rlsched("agent", "stop")
    assert (stopped.returncode, stopped.stdout) == (0, "the agent has stopped\n")
    assert not agent.alive()
    assert world.rlsched("agent", "status").returncode == 1


def test_what_is_wrong_with_the_store_is_said_at_once(rlsched: Rlsched, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x" * 1000)
    result = rlsched("agent", "start", "--store", f"sqlite:///{tmp_path}/notes.txt")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "not a store" in result.stderr


@pytest.mark.parametrize(
    "args", [("queue",), ("show", "aaaa"), ("agent", "status"), ("cancel", "aaaa"), ("devices",)]
)
def test_a_wrong_store_is_one_sentence(
    rlsched: Rlsched, args: tuple[str, ...], tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("no database")
    for text, code in (("redis://x", 2), (f"sqlite:///{tmp_path}", 2), (f"sqlite:///{notes}", 1)):
        result = rlsched(*args, "--store", text)
        assert result.exit_code == code, text
        assert result.stderr.startswith("Error: ")
        assert "\n" not in result.stderr.rstrip("\n")


@pytest.mark.parametrize(
    "args", [("nonsense",), ("cancel",), ("prioritize", "aaaa"), ("queue", "x")]
)
def test_wrong_usage_is_2(rlsched: Rlsched, args: tuple[str, ...]) -> None:
    assert rlsched(*args).exit_code == 2


def test_a_folder_that_cannot_be_written_is_one_sentence(rlsched: Rlsched) -> None:
    result = rlsched("agent", "stop", "--store", "sqlite:////proc/nowhere/store.db")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: /proc/nowhere")


def test_version_and_help_are_quick() -> None:
    started = time.process_time()
    heavy = ("mlflow", "pydantic", "sqlalchemy", "rich", "mlflow_rlsched.agent")
    program = (
        "import sys; from mlflow_rlsched.cli import main\n"
        "try: main()\n"
        f"finally: print(sorted(m for m in {heavy} if m in sys.modules), file=sys.stderr)"
    )
    for option, words in (("--help", "prioritize"), ("--version", __version__)):
        done = subprocess.run(
            [sys.executable, "-c", program, option], capture_output=True, text=True, check=True
        )
        assert words in done.stdout
        assert done.stderr == "[]\n"
    assert time.process_time() - started < 1.0
