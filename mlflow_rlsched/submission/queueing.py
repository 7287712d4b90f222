"""The submission itself, step by step."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from collections.abc import Callable, Mapping

from mlflow_rlsched.config import RunConfig, find_knobs, resolve
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.sharing import is_shared
from mlflow_rlsched.store import Task, TaskSpec, open_store
from mlflow_rlsched.submission import tracking
from mlflow_rlsched.submission.demands import check_devices, device_limit, parent_run
from mlflow_rlsched.submission.directory import (
    Announcement,
    announced,
    prepare,
    run_directory,
    settled,
)
from mlflow_rlsched.submission.learning import start_if_due
from mlflow_rlsched.submission.policies import find_policy
from mlflow_rlsched.submission.project import Project, fetch
from mlflow_rlsched.submission.request import Parameters, Request, command
from mlflow_rlsched.submission.starts import with_starts
from mlflow_rlsched.trust import proofs_of_submission, queue_time


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
        CpuSlotsError: ``RLSCHED_CPU_SLOTS`` is wrong.
        StoreError: The store cannot be used.
        MlflowException: The tracking server refuses.
        OSError: The home folder, the agent's folder or the device locks cannot be used.
    """
    uri = tracking.absolute_tracking_uri(request.tracking_uri)
    with tracking.without_tracebacks(), announced(uri, request.experiment_id) as announcement:
        spec, config, tags = _checked(request, uri, announcement)
        store = open_store(config.store)
        try:
            AgentFiles(config.store).create()
            client = tracking.contact(uri, request.experiment_id)
            run_id, params = config.resume_run_id, spec.recorded_params
            resumed = tracking.to_resume(client, store, run_id, params)
            shield()
            announcement.begin(config.store)
            try:
                if resumed is not None:
                    run = resumed
                    tracking.take_up(client, run.info.run_id, tags)
                else:
                    run = client.create_run(request.experiment_id, None, tags, request.run_name)
                    tracking.begin(client, run.info.run_id, spec.recorded_params)
                spec = settled(run, spec, announcement)
                now = queue_time(store.get(spec.run_id))
                proofs = {}
                if is_shared(config.store):
                    proofs = proofs_of_submission(config.store, spec, config.priority, now)
                task = store.submit(spec, config.priority, now, proofs)
            except BaseException as error:
                with contextlib.suppress(Exception):  # or else the next agent does it
                    made = tracking.give_up(
                        client, request.experiment_id, announcement.id, resumed, error
                    )
                    announcement.pending = False
                    for run_id in made:
                        shutil.rmtree(run_directory(run_id), ignore_errors=True)
                raise
            announcement.pending = False
            start_if_due(store, config, uri)
            return task, config
        finally:
            store.close()


def _checked(
    request: Request, uri: str, announcement: Announcement
) -> tuple[TaskSpec, RunConfig, Mapping[str, str]]:
    """The specification of a run that is still to be made, and its tags."""
    source = fetch(request.project_uri, request.version, announcement.folder / "project")
    project = Project.read(source, request.entry_point)
    parameters = Parameters(project, request.texts())
    settings = resolve(request.backend_config, source.folder)
    parameters, settings = with_starts(project, parameters, settings)
    config = find_knobs(settings, parameters.defaults, parameters.given)
    parent, limit = parent_run(config), device_limit()
    if parent is None or parent.shared_dir is None:
        check_devices(config, limit)
    config = find_policy(config, uri, request.experiment_id)
    recorded = parameters.recorded(config)
    tracking.check_params(recorded)
    docker_auth = request.backend_config.get("docker_auth")
    prepare(announcement.folder, uri, config.store, config.env, docker_auth)
    spec = TaskSpec(
        run_id="",
        experiment_id=request.experiment_id,
        tracking_uri=tracking.without_credentials(uri),
        user=user_name(),
        host=socket.gethostname(),
        run_dir="",
        project_uri=tracking.without_credentials(request.project_uri),
        work_dir=str(source.folder),
        entry_point=request.entry_point,
        params=parameters.given,
        recorded_params=recorded,
        command=command(request, project, parameters, config),
        project_env=request.project_env(),
        docker=bool(project.spec.docker_env),
        executable=sys.executable,
        device_limit=limit,
        parent_run_id=parent.run_id if parent else None,
        parent_attempt_dir=parent.shared_dir if parent else None,
        config=config.model_dump(mode="json"),
        label="",
    )
    return spec, config, tracking.tags_of(request, config, source, parent, announcement.id)
