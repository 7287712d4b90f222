"""Parameters that begin with the best that a study found."""

from __future__ import annotations

from mlflow_rlsched.config import ConfigError, RunConfig, find_knobs
from mlflow_rlsched.config.keys import BatchSize, LearningRate
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.studies import StudyError, best_parameters
from mlflow_rlsched.submission.project import Project
from mlflow_rlsched.submission.request import Parameters


def with_starts(
    project: Project, parameters: Parameters, settings: RunConfig
) -> tuple[Parameters, RunConfig]:
    """The parameters, with the values of knobs that have a ``start`` and that the user left open.

    And the settings without those, which may hold the password of a storage.

    Raises:
        ConfigError: A study cannot be used, or there is no such parameter.
        ExecutionException: The project does not take the study's value.
    """
    knobs: dict[str, BatchSize | LearningRate] = {
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
    }
    if not any(knob.start for knob in knobs.values()):
        return parameters, settings
    config = find_knobs(settings, parameters.defaults, parameters.given)
    values: dict[str, str] = {}
    for key, knob in knobs.items():
        name = getattr(config, key).param
        if knob.start is None or name in parameters.given:
            continue
        where = f"{key}.start is {redacted(repr(knob.start))}"
        if name is None:
            raise ConfigError(f"{where}, but no parameter of the entry point is the {key}")
        try:
            best = best_parameters(knob.start)
        except StudyError as error:
            raise ConfigError(f"{where}: {error}") from error
        if name not in best:
            raise ConfigError(f"{where}, but that study does not search {name!r}")
        values[name] = best[name]
    without = {key: knob.model_copy(update={"start": None}) for key, knob in knobs.items()}
    return (
        Parameters(project, {**parameters.given, **values}),
        settings.model_copy(update=without),
    )
