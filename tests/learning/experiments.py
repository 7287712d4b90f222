"""MLflow experiments whose runs were decided on, as an agent leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient

from mlflow_rlsched import decision_log
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.simulator.parameters import Effects, Ranges
from mlflow_rlsched.simulator.run import Runs
from tests.learning.recording import Record, record
from tests.world import make_tracking_database

SHORT = Ranges(decisions=(15, 20), gpus_max=(1, 2), lr_optimum=(1, 1), plan=(1, 1))
QUIET = Effects(missing=False, late=False, device_loss=False)


def tracking(folder: Path) -> MlflowClient:
    """A tracking database without runs."""
    make_tracking_database(folder / "mlflow.db", str(folder / "artifacts"))
    return MlflowClient(f"sqlite:///{folder}/mlflow.db")


def decided(count: int = 2) -> list[list[Record]]:
    """The decisions on so many runs."""
    return record(Runs(count, 5, QUIET, SHORT), lambda _: Goodput(), most=12)


def publish(
    client: MlflowClient, folder: Path, experiment: str, records: Sequence[Record], started: int = 0
) -> str:
    """A run with these decisions; returns its id."""
    found = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if found is None else found.experiment_id
    tags = {"rlsched.policy_version": "1"}
    run_id = str(client.create_run(place, start_time=started, tags=tags).info.run_id)
    run_dir = folder / run_id
    run_dir.mkdir()
    for each in records:
        decision_log.append(run_dir, each)
    (run_dir / "output.log").write_text("said\n")
    for path in run_dir.iterdir():
        client.log_artifact(run_id, str(path), "rlsched")
    return run_id


def damage(client: MlflowClient, folder: Path, run_id: str, text: str) -> None:
    """Put something else in the place of a run's decisions."""
    path = folder / run_id / decision_log.NAME
    path.write_text(text)
    client.log_artifact(run_id, str(path), "rlsched")
