"""A host of its own for a test: home, locks, CPU slots, tracking store and a real agent."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import mlflow
from mlflow.entities import Run

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.backend import RlschedSubmittedRun
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import State, Store, Task, open_store

ROOT = Path(__file__).parent.parent
PROJECTS = ROOT / "projects"
FAULTY = PROJECTS / "faulty"

T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 30.0) -> T:
    """Poll until the condition is true; its value, or a failed test."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(0.02)
    return value


@functools.cache
def _empty_tracking_store() -> Path:
    """A tracking store as MLflow makes it, made once: its migrations take seconds."""
    path = Path(tempfile.mkdtemp(prefix="rlsched-test-")) / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments(max_results=1)
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return path


def make_tracking_database(path: Path, artifacts: str) -> None:
    """A tracking database without runs, whose default experiment has its artifacts there."""
    shutil.copy(_empty_tracking_store(), path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ?", (artifacts,))


def copy_database(source: Path, target: Path) -> None:
    """Copy a database over another one so that those who have that open see the change."""
    with (
        contextlib.closing(sqlite3.connect(source)) as one,
        contextlib.closing(sqlite3.connect(target)) as other,
    ):
        one.backup(other)


class World:
    """Everything that a test's runs touch, below one folder.

    Args:
        root: Folder of the test.
        environ: The environment to change: submissions from this process read it too.
        slots: CPU slots of the host.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], slots: int = 2) -> None:
        self.root = root
        self.home = root / "home"
        self.folder = root / "work"
        self.locks = root / "locks"
        for folder in (self.home, self.folder, self.locks):
            folder.mkdir(exist_ok=True)
        self.tracking_uri = f"sqlite:///{self.folder}/mlflow.db"
        self.store_url = f"sqlite:///{self.home}/rlsched.db"
        self.agent = AgentFiles(self.store_url)
        ours = {
            "RLSCHED_HOME": str(self.home),
            "RLSCHED_LOCK_DIR": str(self.locks),
            "RLSCHED_CPU_SLOTS": str(slots),
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "XDG_CONFIG_HOME": str(root / "config"),
            "RLSCHED_CFG_POLICY": "fixed",  # what is no test of a policy is not tuned
        }
        self.env = {
            k: v
            for k, v in environ.items()
            if not k.startswith(("RLSCHED_", "MLFLOW_")) and k != "CUDA_VISIBLE_DEVICES"
        } | ours
        self._store: Store | None = None
        make_tracking_database(self.folder / "mlflow.db", f"file://{self.folder}/mlruns/0")

    @property
    def store(self) -> Store:
        """The store, opened by this process."""
        if self._store is None:
            self._store = open_store(self.store_url)
        return self._store

    @property
    def client(self) -> mlflow.MlflowClient:
        """A client of the tracking store."""
        return mlflow.MlflowClient(self.tracking_uri)

    def command(self, *args: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command of the virtual environment (``mlflow``, ``rlsched``) in the folder."""
        program = Path(sys.executable).with_name(args[0])
        settings = {"env": self.env, "cwd": self.folder, "text": True} | more
        return subprocess.Popen(
            [str(program), *args[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **settings,
        )

    def mlflow_run(
        self, project: Path | str, *args: str, config: Mapping[str, Any] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        """Start ``mlflow run PROJECT --backend rlsched ARGS``."""
        settings = ["--backend-config", json.dumps(config)] if config is not None else []
        return self.command(
            "mlflow", "run", str(project), "--backend", "rlsched", *settings, *args, **more
        )

    def rlsched(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run an ``rlsched`` command to its end."""
        process = self.command("rlsched", *args)
        output, _ = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, output)

    def submit(
        self,
        project: Path | str,
        entry_point: str = "main",
        params: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> RlschedSubmittedRun:
        """Queue a run from this process (its environment must be ``env``); returns at once."""
        mlflow.set_tracking_uri(self.tracking_uri)
        run = mlflow.projects.run(
            str(project),
            entry_point,
            parameters=dict(params or {}),
            backend="rlsched",
            backend_config=dict(config or {}),
            synchronous=False,
            experiment_id="0",
            **more,
        )
        assert isinstance(run, RlschedSubmittedRun)
        return run

    def task(self, run_id: str) -> Task:
        """The task of a run."""
        task = self.store.get(run_id)
        assert task is not None
        return task

    def over(self, run_id: str, seconds: float = 60.0) -> Task:
        """The task, once it is over and MLflow knows."""

        def tracked() -> Task | None:
            task = self.task(run_id)
            return task if task.state.final and task.tracked else None

        value = wait_for(tracked, seconds)
        assert value is not None
        return value

    def running(self, run_id: str, attempt: int = 1, seconds: float = 30.0) -> Path:
        """The folder of an attempt, once it runs."""
        wait_for(lambda: self.task(run_id).attempt >= attempt, seconds)
        folder = protocol.attempt_dir(Path(self.task(run_id).spec.run_dir), attempt)
        wait_for(lambda: (folder / "output.log").exists(), seconds)
        return folder

    def run_of(self, run_id: str) -> Run:
        """The MLflow run."""
        return self.client.get_run(run_id)

    def agent_process(self) -> processes.Identity | None:
        """The living agent."""
        identity = processes.Identity.from_json(self.agent.identity().get("process"))
        return identity if identity is not None and identity.alive() else None

    def shim_process(self, folder: Path) -> processes.Identity | None:
        """The living shim of an attempt."""
        identity = processes.Identity.from_json(protocol.read_json(folder / "shim.json"))
        return identity if identity is not None and identity.alive() else None

    def training_processes(self) -> list[int]:
        """Processes of any attempt."""
        found = []
        for run_dir in (self.home / "runs").glob("*/attempts/*"):
            found += processes.with_environment("RLSCHED_ATTEMPT_DIR", str(run_dir))
        return found

    def all_processes(self) -> list[int]:
        """Whatever lives of this host: agents, shims, trainings, submitters."""
        return processes.with_environment("RLSCHED_HOME", str(self.home))

    def unfinished(self) -> list[Task]:
        """Tasks that are not over."""
        return self.store.tasks([State.QUEUED, State.RUNNING])

    def end(self) -> None:
        """Kill all that is left."""
        if self._store is not None:
            self._store.close()
        processes.end(self.all_processes, lambda: False)


def signal_all(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes, dead ones too."""
    processes.send(pids, number)


def environment_of(world: World) -> Mapping[str, str]:
    """Variables to set so that this process submits into the world."""
    return {k: v for k, v in world.env.items() if os.environ.get(k) != v}
