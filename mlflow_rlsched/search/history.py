"""Past runs as MLflow has them: how they ended, what they reached, and the way there."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_rlsched import effective

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PRUNED = "rlsched.pruned"
"""Tag of a run that a pruner stopped."""

SEARCH = "rlsched.search"
"""Tag of a search's runs, and user attribute of its study and its trials: the search's id."""

TRIAL = "rlsched.trial"
"""Tag of a trial's run: the number of the trial."""

RUNS_PAGE = 1000
CURVES = 250
"""Runs whose curves are asked for at once."""

STEPS = frozenset(range(16)).union(
    *(range(1 << power, 2 << power, 1 << power - 3) for power in range(4, 40))
)
"""Steps whose values are handed to Optuna: all below 16, then 8 per octave.

They depend on nothing, so that curves of any length have the same ones, which pruners compare.
"""

LARGEST = 1.79e308
"""MLflow's databases keep infinities as the largest number."""

_NEVER_TRAINED = ("submission_failed", "start_failed", "environment_failure", "forged")


class LeftOutError(Exception):
    """A run that makes no trial; the text says why, the same for all runs of its kind."""


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        state: ``complete``, ``pruned`` or ``failed``.
        value: The objective's last value; None of a failed run.
    """

    state: str
    value: float | None


def ended(run: Run, metric: str) -> Ended:
    """How a run that is over ended.

    Raises:
        LeftOutError: It is not over, or tells nothing.
    """
    status, tags = run.info.status, run.data.tags
    if run.info.lifecycle_stage == "deleted":
        raise LeftOutError("deleted in MLflow")
    if status in ("RUNNING", "SCHEDULED"):
        raise LeftOutError("not over yet")
    if status == "FAILED":
        if tags.get("rlsched.exit_reason") in _NEVER_TRAINED:
            raise LeftOutError("never began to train")
        return Ended("failed", None)
    pruned = PRUNED in tags
    if status == "KILLED" and not pruned:
        raise LeftOutError("cancelled")
    value = run.data.metrics.get(metric)
    if value is None:
        raise LeftOutError(f"has no metric {metric}")
    if not is_finite(value):
        raise LeftOutError(f"{metric} is not finite")
    return Ended("pruned" if pruned and status == "KILLED" else "complete", value)


def check_origin(run: Run, project: str | None, entry_point: str | None) -> None:
    """See whether a run is one of a project, where it says so of itself.

    Args:
        run: The run.
        project: Folder or address of the project, None for any.
        entry_point: Its entry point, None for any.

    Raises:
        LeftOutError: It is a run of something else.
    """
    tags = run.data.tags
    if tags.get("mlflow.source.type") != "PROJECT":
        return
    of = _last_part(tags.get("mlflow.source.name", ""))
    if project is not None and of != _last_part(os.path.abspath(project)):
        raise LeftOutError(f"is of another project, {of}")
    point = tags.get("mlflow.project.entryPoint", "main")
    if entry_point is not None and point != entry_point:
        raise LeftOutError(f"is of another entry point, {point}")


def _last_part(address: str) -> str:
    """What a project is called, wherever it is checked out."""
    return re.split(r"[/#]", address.rstrip("/#"))[-1].removesuffix(".git")


def trained_with(run: Run) -> Mapping[str, str]:
    """Parameters of a run, those that were tuned as they were in force, as texts by name.

    Raises:
        LeftOutError: It was tuned, and nobody recorded to what.
    """
    tags = run.data.tags
    found = effective.of_tag(tags.get(effective.TAG))
    if tags.get("rlsched.tuned") == "true" and not found:
        raise LeftOutError("was tuned while it ran, and does not tell to what")
    return {**run.data.params, **{name: repr(value) for name, value in found.items()}}


def is_finite(value: float) -> bool:
    """Whether a metric's value, as MLflow returns it, is a finite number."""
    return math.isfinite(value) and abs(value) < LARGEST


def runs_of(client: MlflowClient, experiment_id: str) -> Iterator[Run]:
    """All runs of an experiment, deleted ones too, oldest first."""
    from mlflow.entities import ViewType

    token = None
    while True:
        page = client.search_runs(
            [experiment_id],
            run_view_type=ViewType.ALL,
            max_results=RUNS_PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def curves(
    client: MlflowClient, run_ids: Sequence[str], metric: str
) -> dict[str, dict[int, float]]:
    """Finite values of a metric at ``STEPS``, by run; of a step that was logged twice the last."""
    found: dict[str, dict[int, float]] = {run_id: {} for run_id in run_ids}
    # MlflowClient reads the history of one run at a time.
    store = client._tracking_client.store
    if not hasattr(store, "ManagedSessionMaker"):
        for run_id in run_ids:
            for point in client.get_metric_history(run_id, metric):
                _keep(found[run_id], point.step, point.value)
        return found
    for first in range(0, len(run_ids), CURVES):
        for run_id, step, value in _rows(store, run_ids[first : first + CURVES], metric):
            _keep(found[run_id], step, value)
    return found


def _keep(curve: dict[int, float], step: int, value: float) -> None:
    if step in STEPS and is_finite(value):
        curve[step] = value


def _rows(store: Any, run_ids: Sequence[str], metric: str) -> list[tuple[str, int, float]]:
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    columns = (SqlMetric.run_uuid, SqlMetric.step, SqlMetric.value)
    with store.ManagedSessionMaker() as session:
        query = session.query(*columns).filter(
            SqlMetric.key == metric,
            SqlMetric.run_uuid.in_(run_ids),
            SqlMetric.step.in_(STEPS),
            SqlMetric.is_nan == False,  # noqa: E712 - SQL's, not Python's
        )
        return list(query.order_by(SqlMetric.step, SqlMetric.timestamp).all())
