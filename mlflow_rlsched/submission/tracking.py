"""The MLflow run of a submission, and the tracking server that holds it."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Param, Run
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.tracking._tracking_service import utils as tracking_utils
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.git_utils import get_git_commit, get_git_repo_url
from mlflow.utils.rest_utils import http_request
from mlflow.utils.validation import _validate_param

from mlflow_rlsched.config import ConfigError, RunConfig
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.daemon import locks_dir, user_name
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.store import State, Store
from mlflow_rlsched.submission.demands import Parent
from mlflow_rlsched.submission.errors import reason
from mlflow_rlsched.submission.project import Source
from mlflow_rlsched.submission.request import Request

ANSWER_WITHIN_S = 10
_PARAM_LIMIT = 6000
_PARAMS_AT_ONCE = 100
_SQLITE = "sqlite:///"


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Keep MLflow from printing a traceback for each error of a database; we say what is wrong."""
    logger = logging.getLogger("mlflow.store.db.utils")

    def has_none(record: logging.LogRecord) -> bool:
        return not record.exc_info

    logger.addFilter(has_none)
    try:
        yield
    finally:
        logger.removeFilter(has_none)


def absolute_tracking_uri(uri: str) -> str:
    """The same tracking URI, but true from any folder."""
    if uri.startswith(_SQLITE):
        path = uri.removeprefix(_SQLITE)
        if path and not path.startswith(("/", ":")):
            return _SQLITE + str(Path(path).absolute())
    elif "://" not in uri and ":" not in uri.split("/")[0] and uri != "databricks":
        return "file://" + str(Path(uri).absolute())
    return uri


def without_credentials(uri: str) -> str:
    """A URI less the user name and password in it."""
    return redacted(uri).replace("…@", "")


def contact(uri: str, experiment_id: str) -> mlflow.MlflowClient:
    """A client of a tracking server that answers, and where the experiment can take a run.

    Raises:
        ExecutionException: The server does not answer, or has no such experiment.
    """
    scheme = tracking_utils._get_tracking_scheme(uri)
    if scheme == "None":
        raise ExecutionException(
            f"MLFLOW_TRACKING_URI is {redacted(uri)!r}, which MLflow knows no store for: write "
            "sqlite:///FILE, postgresql://HOST/DATABASE or http://HOST:PORT"
        )
    try:
        if scheme in ("http", "https"):
            # MLflow's own calls go on trying for minutes.
            credentials = get_default_host_creds(uri)
            http_request(credentials, "/health", "GET", max_retries=0, timeout=ANSWER_WITHIN_S)
            return _client(uri, experiment_id)
        with _first_use(uri):
            if scheme in tracking_utils.DATABASE_ENGINES:
                _try_database(uri)
            return _client(uri, experiment_id)
    except ExecutionException:
        raise
    except Exception as error:  # MLflow's stores raise all kinds
        raise ExecutionException(
            f"The tracking server {redacted(uri)} cannot be used: {reason(error)}; start or mend "
            "it, or name another one by MLFLOW_TRACKING_URI"
        ) from error


def _client(uri: str, experiment_id: str) -> mlflow.MlflowClient:
    client = mlflow.MlflowClient(tracking_uri=uri)
    try:
        experiment = client.get_experiment(experiment_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise ExecutionException(
            f"There is no experiment with the id {experiment_id} at {redacted(uri)}: name one by "
            "--experiment-name"
        ) from None
    if experiment.lifecycle_stage == "deleted":
        raise ExecutionException(
            f"The experiment {experiment.name!r} was deleted: bring it back by "
            f"`mlflow experiments restore --experiment-id {experiment_id}`, or name another one"
        )
    return client


@contextmanager
def _first_use(uri: str) -> Iterator[None]:
    """Let one of us at a time open a store: first starts break each other's migrations."""
    lock = FileLock(locks_dir() / hashlib.sha256(uri.encode()).hexdigest()[:16])
    try:
        lock.acquire(math.inf)
        yield
    finally:
        lock.release()


def _try_database(uri: str) -> None:
    """See whether a database can be opened (MLflow itself goes on trying for minutes)."""
    import sqlalchemy

    if uri.startswith(_SQLITE):
        Path(uri.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    engine = sqlalchemy.create_engine(uri)
    try:
        with engine.connect() as connection:
            if uri.startswith(_SQLITE):
                connection.exec_driver_sql("PRAGMA schema_version")  # reads the file
    finally:
        engine.dispose()


def to_resume(
    client: Any, store: Store, run_id: str | None, params: Mapping[str, str]
) -> Run | None:
    """The run that is to be resumed with these parameters, or None for a new one.

    Raises:
        ConfigError: There is no such run, or it cannot be resumed.
    """
    if run_id is None:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise ConfigError(f"resume_run_id is {run_id!r}: there is no such run") from None
    if run.info.lifecycle_stage == "deleted":
        raise ConfigError(f"resume_run_id is {run_id!r}: that run was deleted")
    task = store.get(run.info.run_id)
    if task is not None and not task.state.final:
        raise ConfigError(f"resume_run_id is {run_id!r}: that run is {task.state.value} now")
    for name, held in run.data.params.items():
        if params.get(name, held)[:_PARAM_LIMIT] != held:
            raise ConfigError(
                f"resume_run_id is {run_id!r}: that run has {name}={held}, not {params[name]}; "
                "MLflow lets no parameter of a run change"
            )
    return run


def check_params(params: Mapping[str, str]) -> None:
    """Refuse parameters that MLflow cannot hold.

    Raises:
        ExecutionException: A value cannot stand on a command line.
        MlflowException: A name has a character that is not allowed, or is too long.
    """
    for name, value in params.items():
        if "\0" in value:
            raise ExecutionException(f"Parameter {name!r} holds a NUL character: leave it out")
        _validate_param(name, value[:_PARAM_LIMIT])


def tags_of(
    request: Request, config: RunConfig, source: Source, parent: Parent | None, submission: str
) -> dict[str, str]:
    """Tags of the run from its first moment, those that MLflow's own backend sets among them."""
    outer = mlflow.active_run()
    shown = redacted(request.project_uri)
    if source.origin is not None:
        shown = tracking_utils._get_git_url_if_present(str(source.origin.absolute()))
    tags = {
        "mlflow.user": user_name(),
        "mlflow.source.name": shown,
        "mlflow.source.type": "PROJECT",
        "mlflow.source.git.commit": get_git_commit(str(source.folder)),
        "mlflow.source.git.repoURL": get_git_repo_url(str(source.origin or source.folder)),
        "mlflow.source.git.branch": source.branch,
        "mlflow.project.entryPoint": request.entry_point,
        "mlflow.project.backend": "rlsched",
        "mlflow.parentRunId": outer.info.run_id if outer else parent and parent.run_id,
        "rlsched.policy": config.policy,
        "rlsched.state": State.QUEUED.value,
        "rlsched.submission": submission,
        **request.tags,
    }
    return {name: value for name, value in tags.items() if value}


def begin(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    """Make a new run SCHEDULED and log its parameters."""
    client.update_run(run_id, status="SCHEDULED")
    logged = [Param(name, value[:_PARAM_LIMIT]) for name, value in params.items()]
    for first in range(0, len(logged), _PARAMS_AT_ONCE):
        client.log_batch(run_id, params=logged[first : first + _PARAMS_AT_ONCE])


def take_up(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """Make a run that is resumed SCHEDULED again."""
    for name, value in tags.items():
        if name.startswith(("rlsched.", "mlflow.project.")):
            client.set_tag(run_id, name, value)
    client.update_run(run_id, status="SCHEDULED")


def give_up(
    client: Any, experiment_id: str, submission: str, resumed: Run | None, error: BaseException
) -> list[str]:
    """End the run of a submission that failed, if it was made; leave a resumed one as it was.

    Returns:
        The runs that were ended.
    """
    if resumed is not None:
        client.set_terminated(resumed.info.run_id, resumed.info.status, resumed.info.end_time)
        return []
    query = f"tags.`rlsched.submission` = '{submission}'"
    made = [run.info.run_id for run in client.search_runs([experiment_id], query)]
    for run_id in made:
        client.set_tag(run_id, "rlsched.exit_reason", "submission_failed")
        client.set_tag(run_id, "rlsched.message", reason(error))
        client.set_terminated(run_id, "FAILED")
    return made
