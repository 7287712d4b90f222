"""Policy versions as models of MLflow's registry.

A registered version is a run with the policy's file among its artifacts, and a version of the
registered model that points there: no pickle, and nothing that has to be trusted, since the file is
checked like any other.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched.config.keys import ADDRESS
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.versions import SUFFIX, Versions

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODEL = "rlsched-policy"
"""Name of the registered model, and of the experiment that holds the files of its versions."""

CHAMPION = "champion"
TAG = "rlsched.version"

_FOLDER = "policy"


def register(client: MlflowClient, version: Version, path: Path) -> str:
    """Register a version, unless it is, and give it the alias ``champion``.

    Args:
        client: Of the tracking server and its registry.
        version: The version.
        path: Its file.

    Returns:
        Address of the model version, ``models:/rlsched-policy/<number>``.

    Raises:
        Exception: What MLflow's stores raise, of any kind.
    """
    number = _registered(client, version.name) or _create(client, version, path)
    client.set_registered_model_alias(MODEL, CHAMPION, number)
    return f"models:/{MODEL}/{number}"


def experiment_id(client: MlflowClient) -> str:
    """The experiment of what concerns policies, made when it is not there.

    Raises:
        MlflowException: The tracking server refuses.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(MODEL)
    try:
        return str(client.create_experiment(MODEL) if found is None else found.experiment_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return str(client.get_experiment_by_name(MODEL).experiment_id)


def download(client: MlflowClient, address: str, versions: Versions) -> Path:
    """The file of a registered version in the user's folder, brought there if it is not.

    Args:
        client: Of the tracking server and its registry.
        address: ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION``.
        versions: The user's versions.

    Raises:
        PolicyFileError: There is no such model version, or it holds no policy that can be used.
        Exception: What MLflow's stores raise, of any kind.
    """
    from mlflow.artifacts import download_artifacts

    found = _find(client, address)
    name = found.tags.get(TAG)
    if name in versions.names():
        try:
            versions.read(name)
            return versions.path(name)
        except PolicyFileError:
            pass  # taken anew
    source = client.get_model_version_download_uri(found.name, found.version)
    with tempfile.TemporaryDirectory() as folder:
        local = download_artifacts(
            artifact_uri=source, dst_path=folder, tracking_uri=client.tracking_uri
        )
        files = [path for path in Path(local).rglob("*" + SUFFIX) if path.is_file()]
        if len(files) != 1:
            raise PolicyFileError(
                f"{address} holds {len(files)} files that end with {SUFFIX}, must be one; name a"
                " model that `rlsched policy promote` registered"
            )
        return versions.add(Version.read(files[0]))


def _find(client: MlflowClient, address: str) -> Any:
    from mlflow.exceptions import MlflowException

    parts = ADDRESS.fullmatch(address)
    assert parts is not None
    try:
        if parts["alias"] is not None:
            return client.get_model_version_by_alias(parts["model"], parts["alias"])
        return client.get_model_version(parts["model"], parts["number"])
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise PolicyFileError(
            f"there is no {address} in the model registry: {error.message}"
        ) from (error)


def _registered(client: MlflowClient, name: str) -> str | None:
    """Number of the model version of a policy version, None when it is not registered."""
    found = client.search_model_versions(f"name = '{MODEL}' and tags.`{TAG}` = '{name}'")
    return str(found[0].version) if found else None


def _create(client: MlflowClient, version: Version, path: Path) -> str:
    from mlflow.exceptions import MlflowException

    run = client.create_run(experiment_id(client), run_name=version.name, tags={TAG: version.name})
    client.log_artifact(run.info.run_id, str(path), _FOLDER)
    client.log_dict(run.info.run_id, dict(version.card), f"{_FOLDER}/card.json")
    client.update_run(run.info.run_id, "FINISHED")  # quiet, where set_terminated prints
    try:
        client.create_registered_model(MODEL, description="Scheduling policies of rlsched.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{run.info.artifact_uri}/{_FOLDER}"
    made = client.create_model_version(
        MODEL, source, run.info.run_id, tags={TAG: version.name}, await_creation_for=0
    )
    return str(made.version)
