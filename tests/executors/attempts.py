"""A run directory with one attempt, and the executor that runs it."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.executors.local import LocalExecutor
from tests.world import wait_for


class Attempt:
    """A run directory with one attempt, and the executor that runs it."""

    def __init__(self, root: Path) -> None:
        self.run_dir = root / "run"
        self.run_dir.mkdir()
        self.folder = protocol.attempt_dir(self.run_dir, 1)
        self.executor = LocalExecutor(os.environ)
        self.locks = root / "locks"
        self.locks.mkdir()
        self.agent = root / "agent"
        self.agent.mkdir()
        self.agent_argv = ["true"]

    def start(self, *argv: str, grace_s: float = 5.0, **more: object) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RLSCHED_")}
        protocol.write_json(self.run_dir / "environment.json", environment)
        values: dict[str, object] = {
            "run_id": "r",
            "attempt": 1,
            "argv": list(argv),
            "cwd": str(self.run_dir),
            "env": {"RLSCHED_ATTEMPT_DIR": str(self.folder)},
            "locks": [{"device": "cpu-0", "amount": 100, "parent": None}],
            "lock_dir": str(self.locks),
            "grace_s": grace_s,
            "parent_attempt_dir": None,
            "container": None,
            "agent_argv": self.agent_argv,
            "agent_dir": str(self.agent),
        }
        self.executor.launch(self.run_dir, protocol.AttemptSpec(**{**values, **more}))  # type: ignore[arg-type]

    def ended(self, seconds: float = 20.0) -> protocol.Exit:
        value = wait_for(lambda: self.executor.ended(self.folder), seconds)
        assert isinstance(value, protocol.Exit)
        return value

    def wrote(self, name: str) -> str:
        path = self.run_dir / name
        return str(wait_for(lambda: path.exists() and path.read_text()))

    def left(self) -> list[int]:
        return processes.with_environment("RLSCHED_ATTEMPT_DIR", str(self.folder))


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", textwrap.dedent(code)
