"""What MLflow tells: runs and metric histories. What was read is kept, and only news asked for."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlflow_rlsched.asking import decisions_of
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.registry import MODEL
from mlflow_rlsched.words import short
from rlsched_dashboard.sources.histories import EMPTY, History, newer, restored

if TYPE_CHECKING:
    from mlflow.entities import Run

T = TypeVar("T")

SCHEDULED = "tags.`rlsched.state` != ''"
OVER = ("FINISHED", "FAILED", "KILLED")
UNFINISHED = " AND ".join(f"attributes.status != '{status}'" for status in OVER)
FRESH_S = 1.0
WHOLE_S = 60.0
"""How often all runs are read again: MLflow does not tell which were renamed or deleted."""

RETRY_S = 5.0
RUNS_PAGE = 200
"""Runs asked for at once: MLflow takes a hundred times the memory of what it returns."""
LEARNING_RUNS = 100
"""Runs of learning that are looked at, the newest."""

KEPT_POINTS = 2_000_000
"""Points of histories that are kept in memory, 24 bytes each."""


class TrackingError(Exception):
    """MLflow does not answer; the text says why and what to do."""


class RunGone(LookupError):
    """MLflow does not have such a run, or it was deleted there."""


class RunDeleted(RunGone):
    """The run was deleted in MLflow, and can be brought back there."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as MLflow has it.

    Attributes:
        run_id: The run.
        experiment_id: Its experiment.
        experiment: The experiment's name.
        name: The run's name.
        user: Who submitted it.
        status: ``SCHEDULED``, ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
        started_at: Seconds since the epoch.
        ended_at: Seconds since the epoch; None before it is over.
        tags: Tags by name.
        params: Parameters by name.
        metrics: Latest values by name.
    """

    run_id: str
    experiment_id: str
    experiment: str
    name: str
    user: str
    status: str
    started_at: float
    ended_at: float | None
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether it is not expected to change any more."""
        return self.status in OVER

    @property
    def attempts(self) -> int | None:
        """How often it was launched, as its tag has it; None where nobody wrote a number there."""
        text = self.tags.get("rlsched.attempts", "")
        return int(text[:9]) if text.isdecimal() else None


class Tracking:
    """Reads one tracking server or database.

    Args:
        uri: MLflow tracking URI.
    """

    def __init__(self, uri: str) -> None:
        # A page must not wait for minutes for a server that is down.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        self.uri = uri
        self._lock = threading.RLock()
        self._first = threading.Lock()
        self._client: Any = None
        self._failure: tuple[float, TrackingError] | None = None
        self._experiments: dict[str, str] = {}
        self._runs: dict[str, TrackedRun] = {}
        self._fresh_at = self._whole_at = -math.inf
        self._reading = False
        self._histories: OrderedDict[tuple[str, str], tuple[History, float]] = OrderedDict()

    def runs(self) -> list[TrackedRun]:
        """All scheduled runs that are not deleted, newest first.

        Raises:
            TrackingError: MLflow does not answer.
        """
        with self._first:
            if self._whole_at == -math.inf:
                self._read_whole()
        with self._lock:
            now = time.monotonic()
            if now - self._whole_at > WHOLE_S and not self._reading:
                # Takes seconds for thousands of runs, and is no reason to let anybody wait.
                self._reading = True
                threading.Thread(target=self._read_whole, daemon=True).start()
            if now - self._fresh_at > FRESH_S:
                self._renew()
                self._fresh_at = now
            return sorted(self._runs.values(), key=lambda run: -run.started_at)

    def read_ahead(self) -> None:
        """Begin to read all runs, which takes seconds for thousands, before anybody asks."""

        def read() -> None:
            with contextlib.suppress(TrackingError):  # who looks is told
                self.runs()

        threading.Thread(target=read, daemon=True).start()

    def _read_whole(self) -> None:
        """Read all runs."""
        try:
            self._read_experiments()
            found = {run.run_id: run for run in self._search(SCHEDULED)}
        except TrackingError:
            if not self._reading:
                raise
            return  # who looks next is told
        finally:
            self._reading = False
        with self._lock:
            self._runs = found
            self._fresh_at = self._whole_at = time.monotonic()

    def run(self, run_id: str) -> TrackedRun:
        """A run as it is now.

        Raises:
            RunGone: There is none, or it was deleted.
            TrackingError: MLflow does not answer.
        """
        with self._lock:
            found = self._runs.get(run_id)
            if found is not None and found.is_over and time.monotonic() - self._whole_at < WHOLE_S:
                return found
            return self._get(run_id)

    def learning_runs(self) -> list[TrackedRun]:
        """Runs in which a policy learned, newest first: those of the experiment of policies.

        Raises:
            TrackingError: MLflow does not answer.
        """
        if not self._exists():
            return []
        with self._lock:
            found = self._ask(lambda client: client.get_experiment_by_name(MODEL))
            if found is None:
                return []
            runs = self._ask(
                lambda client: client.search_runs(
                    [found.experiment_id], order_by=["start_time DESC"], max_results=LEARNING_RUNS
                )
            )
            return [self._tracked(run) for run in runs if run.data.metrics]

    def history(self, run_id: str, metric: str) -> History:
        """All that was logged of a metric so far; empty where nothing was.

        Raises:
            RunGone: There is no such run.
            TrackingError: MLflow does not answer.
        """
        key = run_id, metric
        now = time.monotonic()
        with self._lock:
            known, fresh_until = self._histories.pop(key, (EMPTY, -math.inf))
            if now > fresh_until:
                run = self._runs.get(run_id)
                over = run is not None and run.is_over
                known = self._ask(lambda client: newer(client, run_id, metric, known), run_id)
                fresh_until = now + (WHOLE_S if over else FRESH_S)
            self._histories[key] = known, fresh_until
            total = sum(len(each) for each, _ in self._histories.values())
            while total > KEPT_POINTS and len(self._histories) > 1:
                total -= len(self._histories.popitem(last=False)[1][0])
            return known

    def decisions(self, run_id: str) -> list[dict[str, Any]]:
        """Decisions of a run as its artifact has them; none where it has no such artifact.

        Raises:
            RunGone: There is no such run, or it was deleted.
            TrackingError: MLflow does not answer, or not the place of the run's artifacts.
        """

        def read(client: Any) -> list[dict[str, Any]]:
            client.get_run(run_id)
            try:
                return decisions_of(client, run_id) or []
            except Exception as error:
                # They are in a place of their own: of MLflow and of other runs it says nothing.
                raise TrackingError(
                    f"the artifacts of run {short(run_id)} cannot be read ({_first_line(error)})"
                ) from error

        return self._ask(read, run_id)

    def _renew(self) -> None:
        """Read what has begun since, and what was not over."""
        now = time.time()  # what claims to begin later says nothing of what has begun since
        began = (run.started_at for run in self._runs.values() if run.started_at <= now)
        newest = max(began, default=0.0)
        unfinished = {run.run_id for run in self._runs.values() if not run.is_over}
        found: dict[str, TrackedRun] = {}
        self._read_experiments()
        for what in (f"attributes.start_time >= {int(newest * 1000)}", UNFINISHED):
            found |= {run.run_id: run for run in self._search(f"{SCHEDULED} AND {what}")}
        for run_id in unfinished - found.keys():
            try:
                found[run_id] = self._get(run_id)
            except RunGone:
                self._runs.pop(run_id)
        self._runs |= found

    def _get(self, run_id: str) -> TrackedRun:
        run = self._ask(lambda client: client.get_run(run_id), run_id)
        if run.info.lifecycle_stage == "deleted":
            raise RunDeleted(run_id)
        return self._tracked(run)

    def _read_experiments(self) -> None:
        if not self._experiments and not self._exists():
            return
        self._experiments = self._ask(
            lambda client: {
                each.experiment_id: each.name
                for each in _pages(lambda token: client.search_experiments(page_token=token))
            }
        )

    def _search(self, query: str) -> Iterable[TrackedRun]:
        if not self._experiments:
            return []
        found = self._ask(
            lambda client: _pages(
                lambda token: client.search_runs(
                    list(self._experiments), query, max_results=RUNS_PAGE, page_token=token
                )
            )
        )
        return [self._tracked(run) for run in found]

    def _exists(self) -> bool:
        """False where asking would make a tracking database."""
        file = self.uri.removeprefix("sqlite:///")
        return file == self.uri or Path(file).exists()

    def _tracked(self, run: Run) -> TrackedRun:
        info, tags = run.info, run.data.tags
        return TrackedRun(
            run_id=info.run_id,
            experiment_id=info.experiment_id,
            experiment=self._experiments.get(info.experiment_id, info.experiment_id),
            name=(info.run_name or "").strip(),
            user=tags.get("mlflow.user", info.user_id or ""),
            status=info.status,
            started_at=(info.start_time or 0) / 1000,
            # A training that made way told MLflow that it ended, and goes on.
            ended_at=info.end_time / 1000 if info.end_time and info.status in OVER else None,
            tags=tags,
            params=run.data.params,
            metrics={name: restored(value) for name, value in run.data.metrics.items()},
        )

    def _ask(self, question: Callable[[Any], T], run_id: str | None = None) -> T:
        """MLflow's answer; ``run_id`` is the run of which it is asked, if it is of one."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        if run_id is not None and not self._exists():
            raise RunGone(run_id)
        if self._failure is not None and time.monotonic() < self._failure[0]:
            raise self._failure[1]
        try:
            if self._client is None:
                self._client = MlflowClient(self.uri)
            answer = question(self._client)
        except TrackingError:
            raise
        except Exception as error:
            absent = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE")
            if (
                run_id is not None
                and isinstance(error, MlflowException)
                and error.error_code in absent
            ):
                raise RunGone(run_id) from error
            told = TrackingError(
                f"{redacted(self.uri)} does not answer ({_first_line(error)}). Start it, or"
                " start the dashboard with another --tracking-uri; this page tries again by itself."
            )
            self._failure = (time.monotonic() + RETRY_S, told)
            raise told from error
        self._failure = None
        return answer


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redacted(lines[0])[:200]


def _pages(ask: Callable[[str | None], Any]) -> list[Any]:
    """All items of a search, page after page."""
    items: list[Any] = []
    token = None
    while True:
        page = ask(token)
        items += page
        token = page.token
        if not token:
            return items
