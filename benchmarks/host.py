"""A host of its own for a benchmark: home, locks and tracking store in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow_rlsched import processes

PROJECTS = Path(__file__).parent.parent / "projects"


@dataclass(frozen=True)
class Host:
    """Where a benchmark's runs live, and the environment that leads there."""

    root: Path
    env: Mapping[str, str]

    @property
    def store(self) -> str:
        """URL of the store."""
        return f"sqlite:///{self.root}/home/rlsched.db"

    def run(self, *args: str, **env: str) -> None:
        """Run a command of this Python's environment in the host's folder, to its end.

        Raises:
            RuntimeError: It failed; the text is what it printed.
        """
        program = Path(sys.executable).with_name(args[0])
        done = subprocess.run(
            [str(program), *args[1:]],
            env={**self.env, **env},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(args)}:\n{done.stdout}")


@contextmanager
def host(slots: int) -> Iterator[Host]:
    """A host with so many CPU slots; all that ran on it is killed at the end."""
    root = Path(tempfile.mkdtemp(prefix="rlsched-bench-"))
    for name in ("home", "locks"):
        (root / name).mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLSCHED_", "MLFLOW_"))}
    bin_dir = str(Path(sys.executable).parent)
    env |= {
        "PATH": os.pathsep.join([bin_dir, env.get("PATH", os.defpath)]),
        "RLSCHED_HOME": str(root / "home"),
        "RLSCHED_LOCK_DIR": str(root / "locks"),
        "RLSCHED_CPU_SLOTS": str(slots),
        "MLFLOW_TRACKING_URI": f"sqlite:///{root}/mlflow.db",
        # The thread count that a run with one CPU slot gets, for both backends.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    value = Host(root, env)
    try:
        yield value
    finally:
        processes.end(
            lambda: processes.with_environment("RLSCHED_HOME", env["RLSCHED_HOME"]), lambda: False
        )
        shutil.rmtree(root, ignore_errors=True)
