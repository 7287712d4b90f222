"""What past runs are worth to a search, and how long it takes to make trials of many of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figures import Figure, command
from benchmarks.host import host

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from mlflow_rlsched.search import Seeded

TRIALS = 40
SEEDS = 20
HISTORY = 60
MANY = 10_000
EPOCHS = 4
STEPS = 20
"""Points of the curve of each of many runs."""

PARAMS = ("lr", "batch_size", "momentum")


class Digits:
    """A network of one hidden layer on half of scikit-learn's digits, in NumPy: real training.

    Args:
        classes: The digits that it tells apart, five of them.
        width: Size of the hidden layer.
    """

    def __init__(self, classes: range, width: int) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        chosen = np.isin(labels, list(classes))
        self._x = images[chosen] / 16
        self._y = labels[chosen] - classes.start
        self._width = width
        order = np.random.default_rng(0).permutation(len(self._y))
        self._learned, self._held = order[200:], order[:200]

    def loss(self, params: Mapping[str, Any], seed: int) -> float:
        """Validation loss after ``EPOCHS``; 10 where it diverged, the worst that is told apart."""
        rng = np.random.default_rng(seed)
        shapes = ((self._x.shape[1], self._width), (self._width, 5))
        weights = [rng.normal(0, shape[0] ** -0.5, shape) for shape in shapes]
        speeds = [np.zeros_like(each) for each in weights]
        batch = params["batch_size"]
        with np.errstate(all="ignore"):
            for _ in range(EPOCHS):
                order = rng.permutation(self._learned)
                for rows in np.split(order, range(batch, len(order), batch)):
                    for n, gradient in enumerate(self._gradients(weights, rows)):
                        speeds[n] = params["momentum"] * speeds[n] - params["lr"] * gradient
                        weights[n] = weights[n] + speeds[n]
            found = self._probabilities(weights, self._held)[1]
            right = found[np.arange(len(self._held)), self._y[self._held]]
            value = float(-np.log(np.maximum(right, 1e-12)).mean())
        return min(value, 10.0) if np.isfinite(value) else 10.0

    def _probabilities(self, weights: list[Any], rows: Any) -> tuple[Any, Any]:
        hidden = np.maximum(self._x[rows] @ weights[0], 0)
        scores = hidden @ weights[1]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def _gradients(self, weights: list[Any], rows: Any) -> list[Any]:
        hidden, error = self._probabilities(weights, rows)
        error[np.arange(len(rows)), self._y[rows]] -= 1
        error /= len(rows)
        below = (error @ weights[1].T) * (hidden > 0)
        return [self._x[rows].T @ below, hidden.T @ error]


def measure(quick: bool) -> list[Figure]:
    """All figures."""
    with host(slots=1) as place:
        os.environ.update(place.env)
        import mlflow

        from mlflow_rlsched.studies import quiet_optuna

        quiet_optuna()

        mlflow.set_tracking_uri(place.env["MLFLOW_TRACKING_URI"])
        client = mlflow.MlflowClient()
        return [
            fewer_trials(client, 4 if quick else SEEDS),
            *seconds_to_seed(client, 500 if quick else MANY),
        ]


def space() -> dict[str, Any]:
    """What is searched."""
    from optuna.distributions import FloatDistribution, IntDistribution

    lr, batch_size, momentum = PARAMS
    return {
        lr: FloatDistribution(1e-4, 10.0, log=True),
        batch_size: IntDistribution(8, 256, log=True),
        momentum: FloatDistribution(0.0, 0.99),
    }


def fewer_trials(client: MlflowClient, seeds: int) -> Figure:
    """Trials of a seeded study over those of an unseeded one, to the same best value."""
    first, second = Digits(range(5), 32), Digits(range(5, 10), 64)
    experiment = client.create_experiment("first project")
    for n, (params, value) in enumerate(_searched(first, 1000, HISTORY)):
        _log(client, experiment, params, [value], n)
    ratios, reached = [], 0
    for seed in range(seeds):
        unseeded = [value for _, value in _searched(second, seed, TRIALS)]
        target = min(unseeded)
        needed = 1 + unseeded.index(target)
        seeded = [value for _, value in _searched(second, seed, TRIALS, "first project")]
        found = next((n for n, value in enumerate(seeded, 1) if value <= target), None)
        reached += found is not None
        ratios.append((found or TRIALS) / needed)
    note = (
        f"real trainings (digits 0 to 4, then 5 to 9 with a wider network); {seeds} seeds, paired;"
        f" {HISTORY} past runs; best of {TRIALS} trials; {reached} of {seeds} got there within"
        f" {TRIALS}, the others count with that; median, mean {statistics.mean(ratios):.2f}"
    )
    value = statistics.median(ratios)
    return Figure("trials to the best value, seeded over unseeded", value, "", 0.5, 1.0, note)


def _searched(
    project: Digits, seed: int, trials: int, history: str | None = None
) -> list[tuple[dict[str, Any], float]]:
    """Parameters and values of the trials of a study."""
    from mlflow_rlsched.search import seed_study
    from mlflow_rlsched.studies import import_optuna

    optuna = import_optuna()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    if history is not None:
        seed_study(study, experiment=history, params=space())
    done = []
    for _ in range(trials):
        trial = study.ask(space())
        value = project.loss(trial.params, seed)
        study.tell(trial, value)
        done.append((trial.params, value))
    return done


def _log(
    client: MlflowClient, experiment: str, params: Mapping[str, Any], curve: list[float], at: int
) -> str:
    from mlflow.entities import Metric, Param

    run_id = str(client.create_run(experiment, start_time=1_000_000 + at).info.run_id)
    client.log_batch(
        run_id,
        metrics=[Metric("val_loss", value, 1000 + n, n) for n, value in enumerate(curve)],
        params=[Param(name, str(value)) for name, value in params.items()],
    )
    client.set_terminated(run_id)
    return run_id


def seconds_to_seed(client: MlflowClient, runs: int) -> list[Figure]:
    """Seconds to make trials of many past runs, in the storage that a search uses by default."""
    from mlflow_rlsched import studies
    from mlflow_rlsched.search import seed_study

    experiment = client.create_experiment("many runs")
    params = {"lr": 0.01, "batch_size": 64, "momentum": 0.5}
    curve = [1.0 / (1 + n) for n in range(STEPS)]
    run_id = _log(client, experiment, params, curve, 0)
    _copy(client, run_id, runs - 1)
    optuna = studies.import_optuna()
    study = optuna.create_study(storage=studies.open_storage(studies.default_storage()))
    began, used = time.perf_counter(), time.process_time()
    found: Seeded = seed_study(study, experiment="many runs", params=space())
    took, used = time.perf_counter() - began, time.process_time() - used
    if found.complete != runs:
        raise RuntimeError(f"{found.complete} of {runs} runs became trials")
    size = Path(studies.default_storage().removeprefix(studies.JOURNAL)).stat().st_size
    note = f"curves of {STEPS} points, MLflow in SQLite, a journal of {size / 1e6:.0f} MB"
    name = f"seeding from {runs:,} runs"
    return [
        Figure(name, took, "s", 30.0, None, note),
        Figure(f"{name}: processor time", used, "s", 30.0, None, "of the process that seeds"),
    ]


def _copy(client: MlflowClient, run_id: str, count: int) -> None:
    """Put more runs like one into MLflow's database at once: one by one it would take minutes."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import insert, select

    tables = (
        models.SqlRun,
        models.SqlTag,
        models.SqlParam,
        models.SqlLatestMetric,
        models.SqlMetric,
    )
    with client._tracking_client.store.ManagedSessionMaker() as session:
        for table in (each.__table__ for each in tables):
            rows = session.execute(select(table).where(table.c.run_uuid == run_id)).mappings().all()
            for first in range(0, count, 1000):
                copies = [
                    {**row, "run_uuid": f"{number:032x}"}
                    for number in range(first, min(first + 1000, count))
                    for row in rows
                ]
                session.execute(insert(table), copies)


main = command(measure)

if __name__ == "__main__":
    main()
