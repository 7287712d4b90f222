"""From the arguments of ``mlflow run`` to a task in the store.

Everything that can be wrong is found before anything is made. The MLflow run is made next,
marked with the id of this submission; a file of that id, locked as long as we live, lets the
next agent end the run if we die before the task is in the store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import git
import mlflow
from mlflow.entities import Param
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.projects import utils as project_utils
from mlflow.utils.git_utils import get_git_commit, get_git_repo_url

from mlflow_rlsched import protocol
from mlflow_rlsched.config import ConfigError, RunConfig, find_knobs, resolve
from mlflow_rlsched.daemon import AgentFiles, home, submissions_dir, user_name
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.devices.demand import demand, suits
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.store import State, Store, Task, TaskSpec, open_store

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
# fmt: on
"""Environment variables that a task takes along, besides those of ``RECORDED_PREFIXES``."""

RECORDED_PREFIXES = (
    "LC_",
    "PYTHON",
    "CONDA_",
    "MLFLOW_",
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "DATABRICKS_",
    "HF_",
    "TRANSFORMERS_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "UV_",
    "PIP_",
    "RLSCHED_",
)

_PARAM_LIMIT = 6000


@dataclass(frozen=True)
class Request:
    """The arguments of a project backend's ``run``, and the run's name."""

    project_uri: str
    entry_point: str
    params: Mapping[str, Any]
    version: str | None
    backend_config: Mapping[str, Any]
    tracking_uri: str
    experiment_id: str
    run_name: str | None


def submit(request: Request, shield: Callable[[], None]) -> tuple[Task, RunConfig]:
    """Check a request, make its MLflow run and queue its task.

    Args:
        request: What was asked for.
        shield: Called when all is checked and before anything is made: from then on the caller
            holds signals back, so that no run is left without a task.

    Raises:
        ExecutionException: Something is wrong with the request or its surroundings; nothing
            was queued, and a run that was made already is FAILED.
        ConfigError: Something is wrong with the configuration; nothing was made.
        StoreError: The store cannot be used.
    """
    with _project(request) as (work_dir, fetched):
        project = project_utils.load_project(work_dir)
        entry_point = project.get_entry_point(request.entry_point)
        if entry_point is None:
            raise ExecutionException("Projects for Databricks Spark jobs cannot be scheduled here")
        params = {str(k): str(v) for k, v in request.params.items()}
        declared = {n: _text(p.default) for n, p in entry_point.parameters.items()}
        config = find_knobs(resolve(request.backend_config, Path(work_dir)), declared, params)
        parent = _parent(config)
        limit = _device_limit()
        _check_devices(config, limit, parent)
        command = _command(request, project, entry_point, params)
        tracking_uri = absolute_tracking_uri(request.tracking_uri)
        store = open_store(config.store)
        try:
            _initialise(tracking_uri)
            recorded = {k: _recorded(entry_point, k, v) for k, v in _all(declared, params).items()}
            client = mlflow.MlflowClient(tracking_uri=tracking_uri)
            resumed = _to_resume(client, store, config.resume_run_id)
            shield()
            with _announced(tracking_uri, request.experiment_id) as submission:
                tags = _tags(request, config, work_dir, parent, submission)
                run = (
                    _take_up(client, resumed, tags)
                    if resumed
                    else client.create_run(
                        request.experiment_id, tags=tags, run_name=request.run_name
                    )
                )
                try:
                    client.update_run(run.info.run_id, status="SCHEDULED")
                    if not resumed:
                        _log_params(client, run.info.run_id, recorded)
                    run_dir = _run_directory(run.info.run_id, tracking_uri, config)
                    if fetched:
                        work_dir = str(_keep_checkout(work_dir, fetched, run_dir))
                    spec = TaskSpec(
                        run_id=run.info.run_id,
                        experiment_id=run.info.experiment_id,
                        tracking_uri=_without_credentials(tracking_uri),
                        user=user_name(),
                        host=socket.gethostname(),
                        run_dir=str(run_dir),
                        project_uri=request.project_uri,
                        work_dir=work_dir,
                        entry_point=request.entry_point,
                        params=params,
                        recorded_params=recorded,
                        command=command,
                        project_env=_reserved(request.backend_config),
                        docker=bool(project.docker_env),
                        executable=sys.executable,
                        device_limit=limit,
                        parent_run_id=parent.run_id if parent else None,
                        parent_attempt_dir=parent.shared_dir if parent else None,
                        config=config.model_dump(mode="json"),
                        label=run.info.run_name or run.info.run_id[:8],
                    )
                    task = store.submit(spec, config.priority, time.time())
                except BaseException as error:
                    _fail(client, run.info.run_id, error)
                    raise
            return task, config
        finally:
            store.close()


# --- the project ------------------------------------------------------------------------------


@contextmanager
def _project(request: Request) -> Iterator[tuple[str, Path | None]]:
    """The folder to run in, and the checkout it is part of (removed if it is not kept)."""
    fetched: Path | None = None
    uri, subdirectory = project_utils._parse_subdirectory(request.project_uri)
    local = Path(project_utils._parse_file_uri(uri))
    try:
        if local.is_dir() and (request.version is not None or _is_bare(local)):
            # MLflow would check the version out in the user's own working tree.
            fetched = _clone(local, request.version)
            work_dir = str((fetched / subdirectory).resolve())
            project = project_utils.load_project(work_dir)
            entry_point = project.get_entry_point(request.entry_point)
            entry_point._validate_parameters(dict(request.params))
        else:
            work_dir = project_utils.fetch_and_validate_project(
                request.project_uri, request.version, request.entry_point, dict(request.params)
            )
            if not local.is_dir():
                fetched = Path(work_dir).parents[len(Path(subdirectory).parts) - 1]
                fetched = fetched if subdirectory else Path(work_dir)
        if not Path(work_dir).is_dir():
            raise ExecutionException(f"The project {request.project_uri} is not a folder")
        yield work_dir, fetched
    except git.exc.GitError as error:
        detail = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise ExecutionException(
            f"Cannot fetch the project {request.project_uri}: {detail[-1] if detail else error}"
        ) from error
    finally:
        if fetched is not None:
            shutil.rmtree(fetched, ignore_errors=True)


def _is_bare(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir()


def _clone(source: Path, version: str | None) -> Path:
    """A checkout of a local repository at a branch, tag or commit (short ones too)."""
    try:
        top = source if _is_bare(source) else git.Repo(source).working_tree_dir
    except git.exc.InvalidGitRepositoryError as error:
        raise ExecutionException(
            f"A version was given, but {source} is not the top of a git repository"
        ) from error
    target = Path(tempfile.mkdtemp(prefix="rlsched-project-"))
    repository = git.Repo.clone_from(str(top), target, no_checkout=version is not None)
    if version is not None:
        try:
            repository.git.checkout(version)
        except git.exc.GitCommandError as error:
            shutil.rmtree(target, ignore_errors=True)
            raise ExecutionException(
                f"The project {source} has no branch, tag or commit {version!r}"
            ) from error
    repository.git.submodule("update", "--init", "--recursive")
    return target


def _keep_checkout(work_dir: str, fetched: Path, run_dir: Path) -> Path:
    kept = run_dir / "project"
    shutil.move(str(fetched), str(kept))
    return kept / os.path.relpath(work_dir, fetched)


def _command(
    request: Request, project: Any, entry_point: Any, params: dict[str, str]
) -> str | None:
    """The entry point's shell command; None when MLflow has to prepare something at the start.

    No environment given and no environment file: the submitter's own interpreter.
    """
    manager = request.backend_config.get("ENV_MANAGER")
    wants = manager or ("local" if project.env_config_path is None else "virtualenv")
    if project.docker_env or wants != "local":
        return None
    values = _all({n: _text(p.default) for n, p in entry_point.parameters.items()}, params)
    paths = [values.get(n) for n, p in entry_point.parameters.items() if p.type == "path"]
    if any(path is not None and mlflow.data.is_uri(path) for path in paths):
        return None
    with tempfile.TemporaryDirectory() as unused:
        command: str = entry_point.compute_command(params, unused if paths else None)
        return command


# --- what is asked for ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parent:
    """The scheduled run that this submission comes from; ``shared_dir`` if it lends devices."""

    run_id: str
    shared_dir: str | None


def _parent(config: RunConfig) -> _Parent | None:
    run_dir, attempt_dir = (os.environ.get(f"RLSCHED_{n}_DIR") for n in ("RUN", "ATTEMPT"))
    if not run_dir or not attempt_dir:
        return None
    if config.nested == "share":
        return _Parent(Path(run_dir).name, attempt_dir)
    if os.environ.get("RLSCHED_NUM_GPUS", "0") != "0":
        raise ConfigError(
            'nested is "queue", but the run that submits holds devices: both could wait for ever; '
            'give the outer run "gpus": {"initial": 0} or this one "nested": "share"'
        )
    return _Parent(Path(run_dir).name, None)


def _device_limit() -> list[str] | None:
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [entry.strip() for entry in value.split(",")]


def _check_devices(config: RunConfig, limit: list[str] | None, parent: _Parent | None) -> None:
    """Refuse what this host could never grant."""
    if parent is not None and parent.shared_dir is not None:
        return
    host = socket.gethostname()
    if config.requires.host not in (None, host):
        raise ConfigError(
            f"requires.host is {config.requires.host!r}, but this store serves {host!r} only"
        )
    inventory = open_inventory()
    try:
        devices = inventory.allowed(limit)
        wanted = demand(config, nested=False, kind=inventory.kind).devices
        suited = [d for d in devices if suits(d, config)]
    finally:
        inventory.close()
    if wanted <= len(suited):
        return
    kind = "CPU slots" if inventory.kind == "cpu" else "GPUs"
    where = f"{host} has {len(devices)}"
    if limit is not None and inventory.kind != "cpu":
        where += f" within CUDA_VISIBLE_DEVICES={','.join(limit)}"
    if len(suited) < len(devices):
        where += f", {len(suited)} of them as `requires` asks"
    raise ConfigError(f"gpus.initial asks for {wanted} {kind}, but {where}")


# --- the MLflow run ---------------------------------------------------------------------------


def absolute_tracking_uri(uri: str) -> str:
    """The same tracking URI, but true from any folder."""
    if uri.startswith("sqlite:///"):
        path = uri.removeprefix("sqlite:///")
        if path and not path.startswith("/") and not path.startswith(":"):
            return "sqlite:///" + os.path.abspath(path)
    elif "://" not in uri and ":" not in uri.split("/")[0] and uri != "databricks":
        return "file://" + os.path.abspath(uri)
    return uri


def _initialise(tracking_uri: str) -> None:
    """Let the tracking server answer once, one of us at a time.

    First starts on a fresh SQLite file break each other's migrations.
    """
    folder = home() / "locks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(folder / hashlib.sha256(tracking_uri.encode()).hexdigest()[:16])
    while not lock.acquire():
        time.sleep(0.05)
    try:
        mlflow.MlflowClient(tracking_uri=tracking_uri).search_experiments(max_results=1)
    except Exception as error:
        raise ExecutionException(
            f"The tracking server {_without_credentials(tracking_uri)} does not answer: "
            f"{_one_line(error)}"
        ) from error
    finally:
        lock.release()


def _tags(
    request: Request, config: RunConfig, work_dir: str, parent: _Parent | None, submission: str
) -> dict[str, str]:
    """Tags of the run from its first moment, those that MLflow's own backend sets among them."""
    outer = mlflow.active_run()
    branch = project_utils._is_valid_branch_name(work_dir, request.version)
    repository = get_git_repo_url(work_dir)
    tags = {
        "mlflow.user": user_name(),
        "mlflow.source.name": repository or request.project_uri,
        "mlflow.source.type": "PROJECT",
        "mlflow.source.git.commit": get_git_commit(work_dir),
        "mlflow.source.git.repoURL": repository,
        "mlflow.source.git.branch": request.version if branch else None,
        "mlflow.project.entryPoint": request.entry_point,
        "mlflow.project.backend": "rlsched",
        "mlflow.parentRunId": outer.info.run_id if outer else parent and parent.run_id,
        "rlsched.policy": config.policy,
        "rlsched.state": State.QUEUED.value,
        "rlsched.submission": submission,
    }
    return {name: value for name, value in tags.items() if value}


def _log_params(client: Any, run_id: str, recorded: Mapping[str, str]) -> None:
    params = [Param(name, value[:_PARAM_LIMIT]) for name, value in recorded.items()]
    client.log_batch(run_id, params=params)


def _to_resume(client: Any, store: Store, run_id: str | None) -> Any:
    """The run that is to be resumed, or None for a new one."""
    if run_id is None:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise ConfigError(f"resume_run_id is {run_id!r}: there is no such run") from error
    if run.info.lifecycle_stage == "deleted":
        raise ConfigError(f"resume_run_id is {run_id!r}: that run was deleted")
    task = store.get(run.info.run_id)
    if task is not None and not task.state.final:
        raise ConfigError(f"resume_run_id is {run_id!r}: that run is {task.state.value} now")
    return run


def _take_up(client: Any, run: Any, tags: Mapping[str, str]) -> Any:
    for name, value in tags.items():
        if name.startswith(("rlsched.", "mlflow.project.")):
            client.set_tag(run.info.run_id, name, value)
    return run


@contextmanager
def _announced(tracking_uri: str, experiment_id: str) -> Iterator[str]:
    """The id of this submission, on record as long as it is not complete."""
    submission = uuid.uuid4().hex
    folder = submissions_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(folder / f"{submission}.lock")
    record = folder / f"{submission}.json"
    lock.acquire()
    protocol.write_json(
        record,
        {
            "experiment_id": experiment_id,
            "environment": {**_environment(()), "MLFLOW_TRACKING_URI": tracking_uri},
        },
    )
    try:
        yield submission
    finally:
        record.unlink(missing_ok=True)
        lock.path.unlink(missing_ok=True)
        lock.release()


def _fail(client: Any, run_id: str, error: BaseException) -> None:
    client.set_tag(run_id, "rlsched.exit_reason", "submission_failed")
    client.set_tag(run_id, "rlsched.message", _one_line(error))
    client.set_terminated(run_id, "FAILED")


def _recorded(entry_point: Any, name: str, value: str) -> str:
    """A parameter as the run shall hold it: as the training itself would log it.

    MLflow's own backend stores shell-quoted text, and a training that logs ``lr=0.001`` where
    ``1e-3`` was given is refused; so values stand unquoted, and floats as Python writes them.
    """
    declared = entry_point.parameters.get(name)
    if declared is not None and declared.type == "float":
        try:
            return repr(float(value))
        except ValueError:
            return value
    return value


# --- the run directory ------------------------------------------------------------------------


def _run_directory(run_id: str, tracking_uri: str, config: RunConfig) -> Path:
    run_dir = home() / "runs" / run_id
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = _environment(config.env)
    bin_dir = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([bin_dir, environment.get("PATH", os.defpath)])
    environment["MLFLOW_TRACKING_URI"] = tracking_uri
    environment["RLSCHED_HOME"] = str(home())
    environment.setdefault("PYTHONUNBUFFERED", "1")  # so that output streams
    protocol.write_json(run_dir / "environment.json", environment)
    return run_dir


def _environment(named: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in RECORDED_VARIABLES or name in named or name.startswith(RECORDED_PREFIXES)
    }


def start_agent(config: RunConfig) -> AgentFiles:
    """Wake the store's agent, or start one; inside a scheduled run its shim does that."""
    files = AgentFiles(config.store)
    files.create()
    files.held.unlink(missing_ok=True)
    if "RLSCHED_ATTEMPT_DIR" not in os.environ:
        files.start()
    files.wake()
    return files


# --- small things -----------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _all(declared: Mapping[str, str | None], params: Mapping[str, str]) -> dict[str, str]:
    """Defaults and what was given."""
    return {**{k: v for k, v in declared.items() if v is not None}, **params}


def _reserved(backend_config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("ENV_MANAGER", "DOCKER_ARGS", "STORAGE_DIR", "build_image", "docker_auth")
    return {name: backend_config.get(name) for name in names}


def _without_credentials(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if separator and "@" in rest.split("/")[0]:
        return f"{scheme}://{rest.partition('@')[2]}"
    return uri


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]
