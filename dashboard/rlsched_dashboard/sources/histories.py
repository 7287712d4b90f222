"""Histories of metrics: MLflow is asked for those points alone that are not known yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

PAGE = 25_000
LARGEST = 1.79e308
"""MLflow's databases keep infinities as numbers beyond this."""


@dataclass(frozen=True)
class History:
    """All values of a metric, by the time at which they were logged.

    Attributes:
        times: Seconds since the epoch, ascending, shape (n,).
        steps: Steps, shape (n,).
        values: Values, NaN and infinities included, shape (n,).
    """

    times: Numbers
    steps: Numbers
    values: Numbers

    def __len__(self) -> int:
        return len(self.times)


EMPTY = History(np.empty(0), np.empty(0), np.empty(0))


def restored(value: float) -> float:
    """A value as it was logged."""
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


def newer(client: Any, run_id: str, metric: str, known: History) -> History:
    """What is known of a metric's history, and what came after it."""
    # MlflowClient itself always reads a history from its beginning.
    store = client._tracking_client.store
    if hasattr(store, "ManagedSessionMaker"):
        found = _rows(store, run_id, metric, known)
    else:
        found = _entities(store, run_id, metric, len(known))
    if not found:
        return known
    new = np.array(found, dtype=float)
    values = new[:, 2]
    values = np.where(np.abs(values) >= LARGEST, np.copysign(np.inf, values), values)
    return History(
        np.concatenate([known.times, new[:, 0] / 1000]),
        np.concatenate([known.steps, new[:, 1]]),
        np.concatenate([known.values, values]),
    )


def _rows(store: Any, run_id: str, metric: str, known: History) -> list[tuple[float, ...]]:
    """Points (ms, step, value) from a database: its rows are ten times as quick as entities."""
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    last = round(known.times[-1] * 1000) if len(known) else 0
    seen = int(np.count_nonzero(np.round(known.times * 1000) == last))
    columns = (SqlMetric.timestamp, SqlMetric.step, SqlMetric.value, SqlMetric.is_nan)
    with store.ManagedSessionMaker() as session:
        query = session.query(*columns).filter_by(run_uuid=run_id, key=metric)
        newer = query.filter(SqlMetric.timestamp >= last)
        rows = newer.order_by(SqlMetric.timestamp, SqlMetric.step, SqlMetric.value).all()
    return [(at, step, math.nan if is_nan else value) for at, step, value, is_nan in rows[seen:]]


def _entities(store: Any, run_id: str, metric: str, offset: int) -> list[tuple[float, ...]]:
    """Points (ms, step, value) from a server."""
    from mlflow.utils.search_utils import SearchUtils

    token = SearchUtils.create_page_token(offset) if offset else None
    found: list[tuple[float, ...]] = []
    while True:
        page = store.get_metric_history(run_id, metric, max_results=PAGE, page_token=token)
        found += [(each.timestamp, each.step, each.value) for each in page]
        token = page.token
        if not token:
            return found
