"""A person at this host, for tests: a process of another operating-system user that does as told.

Run by root as ``unshare --mount … python -m tests.live.os_user USER``. Reads one JSON list a line,
an operation and its arguments, and answers each with a line.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def let_read(paths: Iterable[str | Path]) -> None:
    """Show these folders at their places although folders above them are closed to others.

    For this process and those that it starts, which have mounts of their own.
    """
    holds: dict[Path, Path] = {}
    closed: set[Path] = set()
    for path in {Path(each).resolve() for each in paths}:
        above = [p for p in reversed(path.parents) if not p.stat().st_mode & 0o001]
        if above:
            closed.add(above[0])
            holds[path] = Path(tempfile.mkdtemp())
            subprocess.run(["mount", "--bind", path, holds[path]], check=True)
    for folder in closed:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", folder], check=True)
    for path, hold in holds.items():
        path.mkdir(parents=True)
        subprocess.run(["mount", "--move", hold, path], check=True)
        hold.rmdir()


def become(name: str) -> None:
    """Be this user for good."""
    user = pwd.getpwnam(name)
    groups = [group.gr_gid for group in grp.getgrall() if name in group.gr_mem]
    os.setgroups([user.pw_gid, *groups])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def submit(entry_point: str, params: dict[str, Any], config: dict[str, Any]) -> str:
    import mlflow

    run = mlflow.projects.run(
        str(ROOT / "projects" / "faulty"),
        entry_point,
        parameters=params,
        backend="rlsched",
        backend_config=config,
        synchronous=False,
        experiment_id="0",
    )
    return str(run.run_id)


def rlsched(*args: str) -> list[Any]:
    """Exit code and output of a command."""
    from click.testing import CliRunner

    from mlflow_rlsched.cli import main

    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return [result.exit_code, result.output]


def task(run_id: str) -> dict[str, Any]:
    """A task as the store has it, with how its attempts ended."""
    from mlflow_rlsched.store import open_store

    with closing(open_store(os.environ["RLSCHED_CFG_STORE"])) as store:
        found = store.get(run_id)
        assert found is not None
        attempts = [attempt.reason for attempt in store.attempts(run_id)]
        return asdict(found) | {"state": found.state.value, "attempts": attempts}


def sql(statement: str, *values: Any) -> list[Any]:
    """What a member of the group can do who does not use ``rlsched``."""
    path = os.environ["RLSCHED_CFG_STORE"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def mlflow_status(run_id: str) -> str:
    import mlflow

    return str(mlflow.MlflowClient().get_run(run_id).info.status)


OPERATIONS = {f.__name__: f for f in (submit, rlsched, task, sql, mlflow_status)}


def main() -> None:
    let_read([sys.base_prefix, sys.prefix, ROOT])
    become(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        operation, *arguments = json.loads(line)
        try:
            answer: Any = {"value": OPERATIONS[operation](*arguments)}
        except Exception as error:  # noqa: BLE001 - the test shall see it
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
