"""What a search is going to run, checked before anything is made."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.exceptions import ExecutionException

from mlflow_rlsched.config import RunConfig, find_knobs, resolve
from mlflow_rlsched.config.errors import near, shown
from mlflow_rlsched.search.space import Space
from mlflow_rlsched.studies import as_text
from mlflow_rlsched.submission.project import Project, fetch
from mlflow_rlsched.submission.request import Parameters, Request

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SEEDS = frozenset({"seed", "random_seed", "random_state"})
"""Parameters that make no other training: runs that differ in them alone are compared."""


@dataclass(frozen=True)
class Plan:
    """A search, as far as it does not depend on its study.

    Attributes:
        request: What every trial asks for, less the values of its own.
        space: What is searched.
        alike: Values of all other parameters but seeds, the entry point's defaults among them: a
            past run that has others was another training.
        metric: The objective.
        direction: ``minimize`` or ``maximize``.
        store: URL of the store that holds the runs.
    """

    request: Request
    space: Space
    alike: Mapping[str, str]
    metric: str
    direction: str
    store: str


def planned(request: Request, space: Space) -> Plan:
    """Check a search.

    Raises:
        ExecutionException: The project cannot be used so.
        ConfigError: The configuration is wrong, or does not go with the parameters.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = fetch(request.project_uri, request.version, Path(folder) / "project")
        project = Project.read(source, request.entry_point)
        declared = project.entry_point.parameters
        for name in space.searched:
            if declared and name not in declared:
                raise ExecutionException(
                    f"The entry point {request.entry_point!r} has no parameter {shown(name)}"
                    + (near(name, declared) or f"; it has {', '.join(declared)}")
                )
        some = {name: as_text(_some_value(each)) for name, each in space.searched.items()}
        parameters = Parameters(project, {**space.fixed, **some})
        settings = resolve(request.backend_config, source.folder)
        config = find_knobs(settings, parameters.defaults, parameters.given)
        recorded = parameters.recorded(config)
    objective = config.objective
    return Plan(
        replace(request, backend_config=_bounded(request.backend_config, config, space)),
        space,
        {k: v for k, v in recorded.items() if k not in space.searched and k not in SEEDS},
        objective.metric,
        "minimize" if objective.mode == "min" else "maximize",
        config.store,
    )


def _some_value(distribution: BaseDistribution) -> Any:
    """A value that the distribution has."""
    if hasattr(distribution, "choices"):
        return distribution.choices[0]
    return distribution.high


def _bounded(given: Mapping[str, Any], config: RunConfig, space: Space) -> dict[str, Any]:
    """A configuration whose knobs stay inside the space, unless it has bounds of its own.

    What a policy finds outside of it could not be learned from.
    """
    bounded = dict(given)
    for key in ("batch_size", "learning_rate"):
        knob = getattr(config, key)
        searched = space.searched.get(knob.param)
        if searched is None or hasattr(searched, "choices"):
            continue
        bounds = {}
        if knob.min is None and searched.low > 0:
            bounds["min"] = searched.low
        if knob.max is None:
            bounds["max"] = searched.high
        bounded[key] = {**bounded.get(key, {}), **bounds}
    return bounded
