"""The run that a command analyses, and where it is tracked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlflow_rlsched.asking import ask_server, tracking_store_is_there
from mlflow_rlsched.cli.common import WrongUsage, find_task
from mlflow_rlsched.credentials import redacted

if TYPE_CHECKING:
    from mlflow.entities import Run

    from mlflow_rlsched.devices.interface import Device
    from mlflow_rlsched.store import Store, Task


def find_recorded(store: Store, text: str) -> Task:
    """The task of a run; of one that MLflow alone knows it is said why there is none."""
    try:
        return find_task(store, text)
    except WrongUsage:
        import mlflow

        run = _run(str(mlflow.get_tracking_uri()), text)
        if run is None:
            raise
        raise WrongUsage(_why_unrecorded(run)) from None


def _run(uri: str, run_id: str) -> Run | None:
    """The run in MLflow; None where it does not know it, or does not answer."""
    found: list[Run] = []

    def ask() -> None:
        from mlflow import MlflowClient

        found.append(MlflowClient(tracking_uri=uri).get_run(run_id))

    if tracking_store_is_there(uri):
        ask_server(ask)
    return found[0] if found else None


def _why_unrecorded(run: Run) -> str:
    run_id, tags = run.info.run_id, run.data.tags
    if run.info.lifecycle_stage == "deleted":
        return (
            f"run {run_id} was deleted in MLflow, and this store does not have it:"
            f" `mlflow runs restore --run-id {run_id}` brings it back"
        )
    if "rlsched.state" in tags:
        return f"run {run_id} was submitted to another store: name that by --store"
    backend = tags.get("mlflow.project.backend")
    by = f"by MLflow's backend {backend}" if backend else "without a project backend"
    return (
        f"run {run_id} was started {by}: only of runs of `mlflow run --backend rlsched` it is"
        " recorded where their time went"
    )


def tracking_uri(task: Task) -> str:
    """Where a run is tracked: with the credentials of this shell where it is the same place."""
    import mlflow

    own = str(mlflow.get_tracking_uri())
    return own if redacted(own) == redacted(task.spec.tracking_uri) else task.spec.tracking_uri


def priced_devices(tasks: list[Task]) -> dict[str, Device]:
    """This host's devices by id, where one of the runs has prices."""
    from contextlib import closing

    from mlflow_rlsched.devices import open_inventory

    if not any(task.spec.config.get("prices") for task in tasks):
        return {}
    try:
        with closing(open_inventory()) as inventory:
            return {device.id: device for device in inventory.devices()}
    except ValueError as error:
        raise WrongUsage(str(error)) from error
