"""The files of a submission: its record while it is under way, then the run directory."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlflow.entities import Run

from mlflow_rlsched import protocol
from mlflow_rlsched.daemon import home, submissions_dir
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.store import TaskSpec

# fmt: off
RECORDED_VARIABLES = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM",
        "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
        "LD_LIBRARY_PATH", "LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
        "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "DOCKER_HOST",
        "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "PYENV_ROOT",
        "WANDB_API_KEY", "KERAS_BACKEND", "KERAS_HOME",
    }
)
"""Environment variables that a task takes along, besides those of ``RECORDED_PREFIXES``."""

RECORDED_PREFIXES = (
    "LC_", "PYTHON", "CONDA_", "MLFLOW_", "AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_", "HF_",
    "TRANSFORMERS_", "TORCH_", "PYTORCH_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_",
    "OPENBLAS_", "NUMEXPR_", "UV_", "PIP_", "RLSCHED_",
)
# fmt: on


@dataclass
class Announcement:
    """A submission under way.

    Attributes:
        id: Marks its MLflow run (tag ``rlsched.submission``).
        folder: Where the run directory is prepared.
        pending: Whether there may be an MLflow run without a task: the next agent has to look.
        content: What is on record.
    """

    id: str
    folder: Path
    pending: bool = False
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> Path:
        """The file that is there as long as the submission is not complete."""
        return self.folder.with_suffix(".json")

    def begin(self, store: str) -> None:
        """Note that an MLflow run is about to be made whose task will be in this store."""
        self.content["store"] = store
        protocol.write_json(self.record, self.content)
        self.pending = True


@contextmanager
def announced(tracking_uri: str, experiment_id: str) -> Iterator[Announcement]:
    """Keep a submission on record as long as it is not complete.

    Raises:
        OSError: The home folder cannot be written.
    """
    submission = uuid.uuid4().hex
    home().mkdir(mode=0o700, parents=True, exist_ok=True)
    submissions_dir().mkdir(mode=0o700, exist_ok=True)
    environment = {**_environment(()), "MLFLOW_TRACKING_URI": tracking_uri}
    announcement = Announcement(
        submission,
        submissions_dir() / submission,
        content={"experiment_id": experiment_id, "environment": environment},
    )
    lock = FileLock(announcement.folder.with_suffix(".lock"))
    try:
        # Locked before it is written: an agent takes a record without a lock for abandoned.
        lock.acquire()
        protocol.write_json(announcement.record, announcement.content)
        announcement.folder.mkdir(mode=0o700)
        yield announcement
    finally:
        shutil.rmtree(announcement.folder, ignore_errors=True)
        if not announcement.pending:
            announcement.record.unlink(missing_ok=True)
            lock.path.unlink(missing_ok=True)
        lock.release()


def prepare(
    folder: Path,
    tracking_uri: str,
    store: str,
    named: tuple[str, ...],
    docker_auth: dict[str, Any] | None,
) -> None:
    """Write what a run directory holds from the start: the submitter's environment.

    Args:
        folder: Where the run directory is prepared.
        tracking_uri: Absolute tracking URI, with credentials if it has any.
        store: Absolute URL of the store that the task will be in.
        named: Further variables to take along.
        docker_auth: Credentials for a Docker registry, or None.
    """
    environment = _environment(named)
    bin_dir = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([bin_dir, environment.get("PATH", os.defpath)])
    environment["MLFLOW_TRACKING_URI"] = tracking_uri
    environment["RLSCHED_HOME"] = str(home())
    environment["RLSCHED_CFG_STORE"] = store  # also tells whose folder it is
    environment.setdefault("PYTHONUNBUFFERED", "1")  # so that output streams
    protocol.write_json(folder / "environment.json", environment)
    if docker_auth:
        protocol.write_json(folder / "docker_auth.json", docker_auth)


def run_directory(run_id: str) -> Path:
    """Where the files of a run are."""
    return home() / "runs" / run_id


def settled(run: Run, spec: TaskSpec, announcement: Announcement) -> TaskSpec:
    """Give the run its directory; its specification."""
    run_id = run.info.run_id
    run_dir = run_directory(run_id)
    _settle(announcement.folder, run_dir)
    work_dir = spec.work_dir
    if work_dir.startswith(f"{announcement.folder}{os.sep}"):
        work_dir = str(run_dir / os.path.relpath(work_dir, announcement.folder))
    return replace(
        spec,
        run_id=run_id,
        experiment_id=run.info.experiment_id,
        run_dir=str(run_dir),
        work_dir=work_dir,
        label=run.info.run_name or run_id[:8],
    )


def _settle(folder: Path, run_dir: Path) -> None:
    """Move what was prepared into the run directory, which a resumed run has already."""
    run_dir.parent.mkdir(mode=0o700, exist_ok=True)
    run_dir.mkdir(mode=0o700, exist_ok=True)
    for item in folder.iterdir():
        target = run_dir / item.name
        if target.is_dir():
            shutil.rmtree(target)
        item.replace(target)


def _environment(named: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in RECORDED_VARIABLES or name in named or name.startswith(RECORDED_PREFIXES)
    }
