"""Past runs of MLflow become trials of a study, each once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.search import history
from mlflow_rlsched.search.history import LeftOutError
from mlflow_rlsched.search.values import UnusableError, converted, same, unquoted
from mlflow_rlsched.studies import import_optuna, lock_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

RUN_ID = "rlsched.run_id"
"""User attribute of a trial: the MLflow run that it is."""

SET_ASIDE = "rlsched.set_aside"
"""User attribute of a trial that does not count, and why."""

LEFT_OUT = "rlsched.left_out"
"""User attribute of a study: the past runs that its last seeding left out, by reason."""

FAR = 10.0
"""Interquartile ranges beyond the quartiles from which a value is an outlier."""

FEWEST = 8
"""Values from which it can be told what an outlier is."""


class SeedingError(Exception):
    """A study that cannot be seeded so, and why, in a sentence."""


@dataclass(frozen=True)
class Seeded:
    """What became of past runs.

    Attributes:
        complete: Trials added with their value.
        pruned: Trials added of runs that a pruner had stopped.
        failed: Trials added of runs that failed; samplers do not look at them.
        known: Runs that were trials of the study already.
        left_out: Runs that make no trial, by reason.
    """

    complete: int = 0
    pruned: int = 0
    failed: int = 0
    known: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def added(self) -> int:
        """Trials that were added."""
        return self.complete + self.pruned + self.failed


@dataclass(frozen=True)
class _Wanted:
    """What a run must be to make a trial: the arguments of ``seed_study``."""

    params: Mapping[str, BaseDistribution]
    metric: str
    fixed: Mapping[str, str]
    project: str | None
    entry_point: str | None


@dataclass(frozen=True)
class _Candidate:
    """A run that makes a trial, unless its value is an outlier."""

    run_id: str
    ended: history.Ended
    params: Mapping[str, Any]


def seed_study(
    study: Study,
    *,
    experiment: str,
    params: Mapping[str, BaseDistribution],
    metric: str = "val_loss",
    fixed: Mapping[str, str] | None = None,
    project: str | None = None,
    entry_point: str | None = None,
    tracking_uri: str | None = None,
) -> Seeded:
    """Add the past runs of an experiment to a study, as trials, each once and for all.

    A finished run is a complete trial, one that a pruner stopped a pruned trial, one that failed a
    failed trial; all with the values that they trained with, which a policy may have changed while
    they ran (``rlsched.effective``), and with the metric's values by step. A run that makes no
    trial is counted by its reason. Whatever the sampler and the storage; a run that is in the study
    already (user attribute ``rlsched.run_id``) is not added again, also when two processes of one
    user on one host do this at once.

    Args:
        study: A study with one objective.
        experiment: Name of the MLflow experiment.
        params: Distribution by name of the parameters that the study searches. A run that has one
            of them not at all, or outside its distribution, makes no trial.
        metric: The objective: the metric whose last value a run is judged by.
        fixed: Values that other parameters must have for a run to count, where it has them.
        project: Folder or address of the project that a run must be of, where it is one of a
            project; the last part of it is compared.
        entry_point: The entry point that such a run must be of.
        tracking_uri: MLflow tracking URI; None for the current one.

    Raises:
        SeedingError: There is no such experiment, or the study does not go with ``params``.
        Exception: What MLflow's and Optuna's storages raise, of any kind.
    """
    import mlflow

    check(study, params)
    uri = tracking_uri or mlflow.get_tracking_uri()
    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None or found.lifecycle_stage == "deleted":
        what = "there is no experiment" if found is None else "deleted is the experiment"
        raise SeedingError(f"{what} {experiment!r} at {redacted(uri)}")
    lock = FileLock(lock_path(study.study_name, "seeding"))
    lock.acquire(math.inf)
    try:
        wanted = _Wanted(params, metric, fixed or {}, project, entry_point)
        return _seed(study, client, found.experiment_id, wanted)
    finally:
        lock.release()


def check(study: Study, params: Mapping[str, BaseDistribution]) -> None:
    """See whether trials of a study can have these distributions.

    Raises:
        SeedingError: It has trials with others, or more than one objective.
    """
    from optuna.distributions import check_distribution_compatibility

    if len(study.directions) != 1:
        raise SeedingError(f"the study {study.study_name!r} has more than one objective")
    for trial in study.get_trials(deepcopy=False):
        for name, distribution in trial.distributions.items():
            if name not in params:
                continue
            try:
                check_distribution_compatibility(distribution, params[name])
            except ValueError:
                raise SeedingError(
                    f"the study {study.study_name!r} has {name} as {distribution}, not as"
                    f" {params[name]}: search that, or begin another study"
                ) from None


def _seed(study: Study, client: MlflowClient, experiment_id: str, wanted: _Wanted) -> Seeded:
    left_out: Counter[str] = Counter()
    trials = study.get_trials(deepcopy=False)
    known = {trial.user_attrs.get(RUN_ID) for trial in trials}
    own = study.user_attrs.get(history.SEARCH)
    candidates, seen = [], 0
    for run in history.runs_of(client, experiment_id):
        # A run of this very search becomes a trial by itself.
        if run.info.run_id in known or (own and run.data.tags.get(history.SEARCH) == own):
            seen += history.TRIAL in run.data.tags or run.info.run_id in known
            continue
        try:
            candidates.append(_candidate(run, wanted))
        except LeftOutError as reason:
            left_out[str(reason)] += 1
    values = [trial.value for trial in trials if trial.state.name == "COMPLETE"]
    usable = _without_outliers(candidates, values, wanted.metric, left_out)
    told = [each.run_id for each in usable if each.ended.state != "failed"]
    curves = history.curves(client, told, wanted.metric)
    added: Counter[str] = Counter()
    for each in usable:
        curve = curves.get(each.run_id, {})
        if each.ended.state == "pruned" and not curve:
            left_out[f"has no {wanted.metric} by step"] += 1
            continue
        attributes = {RUN_ID: each.run_id}
        study.add_trial(trial_of(each.ended, each.params, wanted.params, curve, attributes))
        added[each.ended.state] += 1
    seeded = Seeded(**added, known=seen, left_out=dict(left_out.most_common()))
    if study.user_attrs.get(LEFT_OUT) != seeded.left_out:
        study.set_user_attr(LEFT_OUT, seeded.left_out)
    return seeded


def _candidate(run: Run, wanted: _Wanted) -> _Candidate:
    if history.SEARCH in run.data.tags and history.TRIAL not in run.data.tags:
        raise LeftOutError("is the parent run of a search")
    ended = history.ended(run, wanted.metric)
    history.check_origin(run, wanted.project, wanted.entry_point)
    return _Candidate(run.info.run_id, ended, values_of(run, wanted.params, wanted.fixed))


def values_of(
    run: Run, params: Mapping[str, BaseDistribution], fixed: Mapping[str, str]
) -> dict[str, Any]:
    """What a run trained with, as values of distributions.

    Raises:
        LeftOutError: It trained otherwise than the study's trials do.
    """
    texts = history.trained_with(run)
    values = {}
    for name, distribution in params.items():
        if name not in texts:
            raise LeftOutError(f"has no parameter {name}")
        try:
            values[name] = converted(texts[name], distribution, name)
        except UnusableError as error:
            raise LeftOutError(str(error)) from error
    for name, text in fixed.items():
        if name in texts and not same(texts[name], text):
            raise LeftOutError(f"{name} is not {unquoted(text)[:60]}")
    return values


def trial_of(
    ended: history.Ended,
    values: Mapping[str, Any],
    params: Mapping[str, BaseDistribution],
    curve: Mapping[int, float],
    attributes: Mapping[str, Any],
) -> FrozenTrial:
    """The trial that a run makes."""
    import_optuna()
    from optuna.trial import TrialState, create_trial

    state = {
        "complete": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }[ended.state]
    return create_trial(
        state=state,
        value=ended.value,
        params=dict(values),
        distributions=dict(params),
        intermediate_values=dict(curve),
        user_attrs=dict(attributes),
    )


def _without_outliers(
    candidates: Sequence[_Candidate],
    known: Sequence[float],
    metric: str,
    left_out: Counter[str],
) -> list[_Candidate]:
    """Those whose value is not absurdly far from all others', to either side."""
    import numpy as np

    values = [each.ended.value for each in candidates if each.ended.state == "complete"]
    if len(values) + len(known) < FEWEST:
        return list(candidates)
    low, high = np.percentile(np.array([*known, *values], dtype=float), [25, 75])
    margin = FAR * (high - low)
    usable = [
        each
        for each in candidates
        if not margin
        or each.ended.value is None
        or low - margin <= each.ended.value <= high + margin
    ]
    if len(usable) < len(candidates):
        left_out[f"{metric} is an outlier"] = len(candidates) - len(usable)
    return usable
