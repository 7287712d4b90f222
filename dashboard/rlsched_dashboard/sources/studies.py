"""Studies of hyper-parameters, as Optuna's storage has them."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_rlsched import studies
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.search.history import SEARCH
from mlflow_rlsched.search.seeding import LEFT_OUT, RUN_ID, SET_ASIDE

FEWEST = 10
"""Complete trials from which it can be told what matters."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that a study searches.

    Attributes:
        name: Its name.
        log: Whether its logarithm is what matters.
        choices: Its values where it is one of a few, as texts.
    """

    name: str
    log: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A trial that is over.

    Attributes:
        number: Its number.
        state: ``complete``, ``pruned`` or ``fail``.
        value: The objective, the last value of a pruned trial, or None.
        params: Values by name.
        run_id: Its MLflow run, or None.
        seeded: Whether it is a past run.
    """

    number: int
    state: str
    value: float | None
    params: Mapping[str, Any]
    run_id: str | None
    seeded: bool


@dataclass(frozen=True)
class Studied:
    """A study as it is now.

    Attributes:
        name: Its name.
        maximizes: Whether more is better.
        parameters: What is searched.
        trials: Trials that are over, by number; those that were set aside are not among them.
        running: How many run.
        importances: Share of each parameter in what the values differ by; empty where not known.
        left_out: Past runs that the last seeding left out, by reason.
    """

    name: str
    maximizes: bool
    parameters: tuple[Parameter, ...]
    trials: tuple[Trial, ...]
    running: int
    importances: Mapping[str, float]
    left_out: Mapping[str, int]

    @property
    def seeded(self) -> Mapping[str, int]:
        """Past runs that are trials, by state."""
        return Counter(t.state for t in self.trials if t.seeded)

    @property
    def complete(self) -> list[Trial]:
        """Trials with a value that counts."""
        return [t for t in self.trials if t.state == "complete" and t.value is not None]

    @property
    def entire(self) -> list[Trial]:
        """Those of them that have all parameters."""
        names = {each.name for each in self.parameters}
        return [t for t in self.complete if t.params.keys() >= names]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, None where none is complete."""
        sign = -1 if self.maximizes else 1
        return min(self.complete, key=lambda t: sign * (t.value or 0.0), default=None)


class Studies:
    """Reads the studies of one storage.

    Args:
        url: Where they are kept; None for this user's own.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = url or studies.default_storage()
        self._lock = threading.Lock()
        self._storage: Any = None
        self._known: tuple[Any, Studied] | None = None

    def names(self) -> list[str]:
        """Names of the studies with one objective, the newest last.

        Raises:
            StudyError: Optuna is not installed, or the storage cannot be used.
        """
        studies.import_optuna()
        with self._lock:
            if self._storage is None:
                if not studies.storage_exists(self.url):
                    return []
                self._storage = studies.open_storage(self.url)
            with self._in_sentences():
                found = self._storage.get_all_studies()
            return [each.study_name for each in found if len(each.directions) == 1]

    def study(self, name: str) -> Studied:
        """A study that ``names`` has.

        Raises:
            StudyError: It is gone, or the storage cannot be used.
        """
        optuna = studies.import_optuna()
        if name not in self.names():
            raise studies.StudyError(f"there is no study {name!r} in this storage")
        with self._lock, self._in_sentences():
            study = optuna.load_study(study_name=name, storage=self._storage)
            trials = study.get_trials(deepcopy=False)
            seen = (name, [trial.state for trial in trials], study.user_attrs)
            if self._known is None or self._known[0] != seen:
                self._known = seen, _studied(study, trials)
            return self._known[1]

    @contextlib.contextmanager
    def _in_sentences(self) -> Iterator[None]:
        unusable: tuple[type[Exception], ...] = (*studies.storage_errors(), OSError)
        try:
            yield
        except unusable as error:
            self._storage = None
            why = studies.first_line(error.__cause__ or error)
            raise studies.StudyError(
                f"the storage {redacted(self.url)} cannot be read ({why})"
            ) from error


def _studied(study: Any, trials: list[Any]) -> Studied:
    shown = [
        _trial(trial)
        for trial in trials
        if trial.state.is_finished() and SET_ASIDE not in trial.user_attrs
    ]
    distributions = {k: v for trial in trials for k, v in trial.distributions.items()}
    return Studied(
        name=study.study_name,
        maximizes=study.direction.name == "MAXIMIZE",
        parameters=tuple(
            Parameter(name, bool(getattr(each, "log", False)), _choices(each))
            for name, each in sorted(distributions.items())
        ),
        trials=tuple(shown),
        running=sum(trial.state.name == "RUNNING" for trial in trials),
        importances=_importances(study),
        left_out=study.user_attrs.get(LEFT_OUT, {}),
    )


def _trial(trial: Any) -> Trial:
    value = trial.value
    run_id = trial.user_attrs.get(RUN_ID)
    return Trial(
        number=trial.number,
        state=trial.state.name.lower(),
        value=value if value is not None and math.isfinite(value) else None,
        params=trial.params,
        run_id=run_id,
        seeded=run_id is not None and SEARCH not in trial.user_attrs,
    )


def _choices(distribution: Any) -> tuple[str, ...]:
    return tuple(str(choice) for choice in getattr(distribution, "choices", ()))


def _importances(study: Any) -> dict[str, float]:
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if sum(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False)) < FEWEST:
        return {}
    try:
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):  # all alike
        return {}
    return {name: float(share) for name, share in found.items() if math.isfinite(share)}
