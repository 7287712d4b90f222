"""What was recorded of the runs of an MLflow experiment, from the artifacts of these runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlflow_rlsched.asking import DECISIONS, decisions_of
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.learning.workloads import NEWEST, Recorded, recorded

if TYPE_CHECKING:
    from mlflow import MlflowClient

_DECIDED = "tags.`rlsched.policy_version` LIKE '%'"  # the first decision on a run sets it


class RecordingError(LookupError):
    """There are no decisions to read, and why, in a sentence."""


def decided_runs(client: MlflowClient, experiment: str) -> list[str]:
    """Ids of the runs of an experiment that were decided on, the newest first.

    Args:
        client: Of the tracking server.
        experiment: Name of the experiment.

    Raises:
        RecordingError: There is no such experiment, or none of its runs was decided on.
        Exception: What MLflow's stores raise, of any kind.
    """
    found = client.get_experiment_by_name(experiment)
    where = redacted(client.tracking_uri)
    if found is None:
        raise RecordingError(f"there is no experiment {experiment!r} at {where}")
    if found.lifecycle_stage == "deleted":
        raise RecordingError(
            f"the experiment {experiment!r} at {where} was deleted: bring it back by `mlflow"
            f" experiments restore --experiment-id {found.experiment_id}`"
        )
    order = ["attributes.start_time DESC"]
    runs = client.search_runs([found.experiment_id], _DECIDED, max_results=NEWEST, order_by=order)
    if not runs:
        raise RecordingError(
            f"no run of the experiment {experiment!r} was decided on: they have to be runs of"
            " `mlflow run --backend rlsched` with a policy, whose trainings report"
        )
    return [run.info.run_id for run in runs]


def recorded_run(client: MlflowClient, run_id: str) -> Recorded | None:
    """What the decisions on a run tell of it; None where they do not tell its step time.

    Nothing but the file of its decisions is downloaded.

    Args:
        client: Of the tracking server.
        run_id: The run.

    Raises:
        RecordingError: The run has no such artifact, or a damaged one.
        Exception: What MLflow's stores raise, of any kind.
    """
    records = decisions_of(client, run_id)
    if records is None:
        raise RecordingError(f"it has no artifact {DECISIONS} (yet)")
    try:
        found = recorded(records)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordingError(f"its artifact {DECISIONS} is damaged ({error!r})") from error
    if not records:
        raise RecordingError(f"its artifact {DECISIONS} holds no decision")
    return found
