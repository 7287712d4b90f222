"""Users of one host, each with an agent of their own, share its devices through one store."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mlflow_rlsched import processes
from mlflow_rlsched.sharing import SIDE_FILES
from tests.world import ROOT, make_tracking_database, wait_for

WAIT_S = 60.0
ENDLESS = {"steps": 1_000_000, "step_s": 0.05, "every": 1}
QUICK = {"steps": 2, "step_s": 0}


class Person:
    """An operating-system user with a home and a tracking database of their own."""

    def __init__(self, name: str, root: Path, common: dict[str, str]) -> None:
        self.name = name
        self.home = root / name
        (self.home / "work").mkdir(parents=True)
        make_tracking_database(self.home / "mlflow.db", f"file://{self.home}/mlruns/0")
        subprocess.run(["chown", "-R", name, self.home], check=True)
        self.home.chmod(0o700)
        env = common | {
            "HOME": str(self.home),
            "RLSCHED_HOME": str(self.home / ".rlsched"),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.home}/mlflow.db",
        }
        self._errors = root / f"{name}.log"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                ["unshare", "--mount", sys.executable, "-m", "tests.live.os_user", name],
                env=env,
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Have this person do something; what came of it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([operation, *arguments]), file=stdin, flush=True)
        line = stdout.readline()
        assert line, self._errors.read_text()
        answer = json.loads(line)
        assert "value" in answer, answer
        return answer["value"]

    def submit(self, params: dict[str, Any], priority: int = 0, entry_point: str = "count") -> str:
        return str(self.ask("submit", entry_point, params, {"priority": priority, "grace_s": 5}))

    def task(self, run_id: str) -> dict[str, Any]:
        found = self.ask("task", run_id)
        assert isinstance(found, dict)
        return found

    def until(self, run_id: str, **wanted: Any) -> dict[str, Any]:
        """The task, once its columns are as wanted."""

        def as_wanted() -> dict[str, Any] | None:
            found = self.task(run_id)
            return found if wanted.items() <= found.items() else None

        found = wait_for(as_wanted, WAIT_S)
        assert found is not None
        return found

    def end(self) -> None:
        """End all processes of this user."""

        def left() -> list[int]:
            number = pwd.getpwnam(self.name).pw_uid
            return [p.pid for p in psutil.process_iter() if p.uids().real == number]

        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        processes.end(left, lambda: False)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def people() -> Iterator[dict[str, Person]]:
    """Ada and Bob, who share one CPU slot, and Carol, who administers it; set up as documented."""
    if os.getuid() != 0:
        pytest.skip("no root, who alone makes users")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no root who may mount, so that other users can read this Python")
    root = Path(tempfile.mkdtemp(prefix="rlsched-pool-"))
    root.chmod(0o755)
    group = f"rlsched{os.getpid()}"
    names = {name: f"{name}{os.getpid()}" for name in ("ada", "bob", "carol")}
    made: dict[str, Person] = {}
    try:
        subprocess.run(["groupadd", group], check=True)
        for name in names.values():
            subprocess.run(["useradd", "-M", "-N", "-g", group, name], check=True)
        pool = root / "pool"
        subprocess.run(["install", "-d", "-m", "0750", "-g", group, pool], check=True)
        for end in ("", *SIDE_FILES):
            file = pool / f"pool.db{end}"
            subprocess.run(["install", "-m", "0660", "-g", group, os.devnull, file], check=True)
        requests = pool / "pool.db-requests"
        subprocess.run(["install", "-d", "-m", "0770", "-g", group, requests], check=True)
        for name in names.values():
            own = pool / "pool.db-agents" / name
            subprocess.run(["install", "-d", "-m", "0755", own.parent], check=True)
            subprocess.run(["install", "-d", "-m", "0700", "-o", name, own], check=True)
        (root / "pool.toml").write_text(f'administrators = ["{names["carol"]}"]\n')
        (root / "locks").mkdir()
        (root / "locks").chmod(0o1777)
        common = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "RLSCHED_CFG_STORE": f"sqlite:///{pool}/pool.db",
            "RLSCHED_CFG_POLICY": "fixed",
            "RLSCHED_CPU_SLOTS": "1",
            "RLSCHED_LOCK_DIR": str(root / "locks"),
            "RLSCHED_POOL_FILE": str(root / "pool.toml"),
        }
        for role, name in names.items():
            made[role] = Person(name, root, common)
        yield made
    finally:
        for person in made.values():
            person.end()
        for name in names.values():
            subprocess.run(["userdel", name], check=False, capture_output=True)
        subprocess.run(["groupdel", group], check=False, capture_output=True)
        shutil.rmtree(root)


def test_users_share_a_pool(people: dict[str, Person]) -> None:
    ada, bob, carol = people["ada"], people["bob"], people["carol"]
    long = ada.submit(ENDLESS)
    ada.until(long, state="running")
    bobs = bob.submit(QUICK)
    adas = ada.submit(QUICK)

    # One order of waiting, whoever looks: Bob holds less.
    for person in (ada, bob):
        code, text = person.ask("rlsched", "queue", "--json")
        rows = json.loads(text)["runs"]
        assert code == 0
        assert [(row["run_id"], row["user"]) for row in rows] == [
            (long, ada.name),
            (bobs, bob.name),
            (adas, ada.name),
        ]

    code, text = bob.ask("rlsched", "show", long)
    assert (code, ada.name in text) == (0, True)

    # Each cancels only their own, by the command or behind its back.
    code, text = bob.ask("rlsched", "cancel", long)
    assert code == 1
    assert f"only {ada.name} or an administrator ({carol.name}) may ask that" in text
    bob.ask("sql", "UPDATE tasks SET cancel_by = ? WHERE run_id = ?", ada.name, long)

    # Nobody runs anything as somebody else.
    (spec,) = bob.ask("sql", "SELECT spec FROM tasks WHERE run_id = ?", long)[0]
    evil = ada.home.parent / "evil"
    forged = json.loads(spec) | {"run_id": "forged", "command": f"touch {evil}"}
    columns = "state, priority, submitted_at, attempt, retries, ooms, not_before, exit_reason"
    bob.ask(
        "sql",
        f'INSERT INTO tasks (run_id, spec, "order", {columns}, message, samples, tracked, host,'
        f" proofs) SELECT 'forged', ?, 99, 'queued', 9, submitted_at, 0, 0, 0, 0, '', '', 0, 0,"
        " host, proofs FROM tasks WHERE run_id = ?",
        json.dumps(forged),
        long,
    )
    refused = bob.until("forged", state="failed")
    assert refused["exit_reason"] == "forged"
    assert f"{ada.name} did not sign it" in refused["message"]
    assert not evil.exists()
    ada.until(long, cancel_by=None, state="running")

    # What is more urgent is made way for, at a checkpoint, by the agent of the other user.
    urgent = bob.submit(QUICK, priority=5)
    bob.until(urgent, state="finished")
    assert ada.task(long)["attempts"][0] == "preempted"

    # An administrator cancels what is anybody's.
    code, text = carol.ask("rlsched", "cancel", long)
    assert (code, f"as soon as the agent of {ada.name} looks" in text) == (0, True)
    killed = ada.until(long, state="killed", tracked=True)
    assert killed["message"] == f"cancelled by {carol.name}"
    assert ada.ask("mlflow_status", long) == "KILLED"
    first = bob.until(bobs, state="finished")
    second = ada.until(adas, state="finished")
    assert first["started_at"] < second["started_at"]
