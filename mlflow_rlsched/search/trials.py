"""The trials of a search: each is a run of the queue, below one parent run.

What is known of a trial stands in the study, so that a search that was killed goes on: a trial gets
its marks in the moment in which it is made, its run the trial's number in the moment in which that
is made. A trial whose run is not to be found is set aside and its values are asked for again; a
trial that was tuned while it ran is set aside for one with the values that it trained with.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlflow.exceptions import ExecutionException, MlflowException

from mlflow_rlsched import requests
from mlflow_rlsched.asking import impatient
from mlflow_rlsched.backend import queue_task
from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.requests import RefusedError
from mlflow_rlsched.search import history
from mlflow_rlsched.search.history import PRUNED, SEARCH, TRIAL, LeftOutError
from mlflow_rlsched.search.plan import Plan
from mlflow_rlsched.search.seeding import RUN_ID, SET_ASIDE, trial_of, values_of
from mlflow_rlsched.store import Store, open_store
from mlflow_rlsched.studies import as_text, import_optuna
from mlflow_rlsched.submission.errors import reason
from mlflow_rlsched.waiting import Keeper

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

_logger = logging.getLogger("mlflow.rlsched")

HOST = "rlsched.host"
"""User attribute of a trial: the host whose search follows it."""

REASON = "rlsched.reason"
"""User attribute of a failed trial: why."""

ASKED = "rlsched.asked"
"""User attribute of a trial of a tuned run: number of the trial with the values asked for."""

POLL_S = 0.5
CURVE_S = 2.0


@dataclass
class Running:
    """A trial whose run is not over.

    Attributes:
        trial: The trial.
        run_id: Its run.
        reported: Steps that the pruner knows.
        looked_at: When its curve was read last, seconds of the monotonic clock.
        pruned: Whether its end was asked for.
    """

    trial: Trial
    run_id: str
    reported: set[int] = field(default_factory=set)
    looked_at: float = 0.0
    pruned: bool = False


class Search:
    """Runs the trials of a study until there are enough.

    Args:
        study: The study; nobody else runs its trials on this host.
        plan: What to run.
        client: A client of the tracking server.
        trials: How many trials the study shall have in the end, seeded ones apart.
        jobs: How many of them wait or run at once.
        ended: Called with each trial that ended.
    """

    def __init__(
        self,
        study: Study,
        plan: Plan,
        client: MlflowClient,
        trials: int,
        jobs: int,
        ended: Callable[[FrozenTrial], None],
    ) -> None:
        self.study = study
        self.running: dict[int, Running] = {}
        self._plan = plan
        self._client = client
        self._trials = trials
        self._jobs = jobs
        self._ended = ended
        self._warned = False
        self._signals: list[int] = []
        if SEARCH not in study.user_attrs:
            study.set_user_attr(SEARCH, uuid.uuid4().hex)
        self._id: str = study.user_attrs[SEARCH]
        self._marks = {SEARCH: self._id, HOST: socket.gethostname()}

    def own(self) -> list[FrozenTrial]:
        """Trials of the search that are over and count."""
        return [
            trial
            for trial in self.study.get_trials(deepcopy=False)
            if trial.user_attrs.get(SEARCH) == self._id
            and trial.state.is_finished()
            and SET_ASIDE not in trial.user_attrs
        ]

    def run(self, signals: list[int]) -> str:
        """Run trials until there are enough, or a signal arrived.

        Args:
            signals: Interrupts that arrived, which the caller collects. Trials that run then go on
                in the queue.

        Returns:
            The parent run.

        Raises:
            ExecutionException: A trial cannot be submitted.
            StoreError: The store of the runs cannot be used.
        """
        self._signals = signals
        parent = self._parent()
        status = "FAILED"
        try:
            with contextlib.closing(open_store(self._plan.store)) as store:
                self._take_up(store)
                self._follow_all(store, parent)
            status = "KILLED" if signals else "FINISHED"
        finally:
            with self._bearing():
                self._client.set_terminated(parent, status)
        return parent

    def _follow_all(self, store: Store, parent: str) -> None:
        keeper = Keeper(AgentFiles(self._plan.store))
        while not self._signals:
            while len(self.running) < min(self._jobs, self._trials - len(self.own())):
                self._start(parent)
                if self._signals:
                    return
            if not self.running:
                return
            for each in list(self.running.values()):
                self._follow(store, each)
            keeper.look(time.monotonic())
            time.sleep(POLL_S)

    def _parent(self) -> str:
        """The parent run: the one that there is, or a new one."""
        experiment = self._plan.request.experiment_id
        query = f"tags.`{SEARCH}` = '{self._id}'"
        order = ["attributes.start_time ASC"]
        for run in self._client.search_runs([experiment], query, order_by=order):
            if TRIAL not in run.data.tags:
                self._client.update_run(run.info.run_id, status="RUNNING")
                return str(run.info.run_id)
        tags = {
            SEARCH: self._id,
            "mlflow.user": user_name(),
            "mlflow.source.type": "PROJECT",
            "mlflow.source.name": redacted(self._plan.request.project_uri),
        }
        name = self.study.study_name
        return str(self._client.create_run(experiment, tags=tags, run_name=name).info.run_id)

    # Beginning

    def _ask(self) -> Trial:
        """A trial with values that the study proposes, which bears our marks from its beginning."""
        optuna = import_optuna()
        waiting = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        if not any(trial.user_attrs.get(SEARCH) == self._id for trial in waiting):
            self.study.enqueue_trial({}, user_attrs=self._marks)
        trial = self.study.ask(self._plan.space.searched)
        for name, text in self._marks.items():
            if trial.user_attrs.get(name) != text:  # somebody else has put it there
                trial.set_user_attr(name, text)
        return trial

    def _start(self, parent: str) -> None:
        """Queue a run of a new trial."""
        trial = self._ask()
        values = {name: as_text(trial.params[name]) for name in self._plan.space.searched}
        request = replace(
            self._plan.request,
            params={**self._plan.space.fixed, **values},
            run_name=f"{self.study.study_name}-{trial.number}",
            tags={"mlflow.parentRunId": parent, SEARCH: self._id, TRIAL: str(trial.number)},
        )
        try:
            with contextlib.ExitStack() as shield:
                task, _ = queue_task(request, self._signals, shield)
        except ExecutionException:
            self._set_aside(trial.number, trial, "it could not be submitted")
            raise
        trial.set_user_attr(RUN_ID, task.run_id)
        self.running[trial.number] = Running(trial, task.run_id)

    def _take_up(self, store: Store) -> None:
        """Find the runs of trials that a search which is gone has begun."""
        optuna = import_optuna()
        trials = self.study.get_trials(deepcopy=False)
        told = {t.user_attrs.get(RUN_ID) for t in trials if t.state.is_finished()}
        for frozen in trials:
            marks = {name: frozen.user_attrs.get(name) for name in self._marks}
            if frozen.state is not optuna.trial.TrialState.RUNNING or marks != self._marks:
                continue
            trial = optuna.trial.Trial(self.study, frozen._trial_id)
            run_id = frozen.user_attrs.get(RUN_ID) or self._run_of(frozen.number)
            if run_id in told or SET_ASIDE in frozen.user_attrs:
                self._set_aside(frozen.number, trial, "it was told already")
            elif run_id is None:
                self._ask_again(trial)
            else:
                trial.set_user_attr(RUN_ID, run_id)
                each = Running(trial, run_id, set(frozen.intermediate_values))
                self.running[frozen.number] = each
                task = store.get(run_id)
                if task is not None and PRUNED in self._client.get_run(run_id).data.tags:
                    self._prune(store, each)

    def _run_of(self, number: int) -> str | None:
        """The run that was made for a trial before anybody could note it."""
        query = f"tags.`{SEARCH}` = '{self._id}' AND tags.`{TRIAL}` = '{number}'"
        found = self._client.search_runs([self._plan.request.experiment_id], query)
        return found[0].info.run_id if found else None

    def _ask_again(self, trial: Trial) -> None:
        """Set a trial aside that has no run, and ask for its values once more."""
        params = dict(trial.params)
        self._set_aside(trial.number, trial, "its run was lost")
        self.study.enqueue_trial(params, user_attrs=self._marks)

    def _set_aside(self, number: int, trial: Trial, why: str) -> None:
        state = import_optuna().trial.TrialState.FAIL
        trial.set_user_attr(SET_ASIDE, why)
        self.study.tell(number, state=state, skip_if_finished=True)
        self.running.pop(number, None)

    # Following

    def _follow(self, store: Store, each: Running) -> None:
        with self._bearing():
            try:
                self._look(store, each)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                self._fail(each, "its run was removed from MLflow for good")

    def _look(self, store: Store, each: Running) -> None:
        task = store.get(each.run_id)
        over = task is None or (task.state.final and task.tracked)
        now = time.monotonic()
        if not over and now < each.looked_at + CURVE_S:
            return
        each.looked_at = now
        curve = history.curves(self._client, [each.run_id], self._plan.metric)[each.run_id]
        if not over:
            self._report(store, each, curve)
            return
        run = self._with_metric(self._client.get_run(each.run_id))
        if task is None and run.info.end_time is None:
            self._ask_again(each.trial)
        else:
            self._report(None, each, curve)
            self._conclude(each, run)

    def _report(self, store: Store | None, each: Running, curve: Mapping[int, float]) -> None:
        """Tell the pruner what is new, and stop a run that it has seen enough of."""
        for step in sorted(curve.keys() - each.reported):
            each.trial.report(curve[step], step)
            each.reported.add(step)
            if store is not None and not each.pruned and each.trial.should_prune():
                self._prune(store, each)

    def _prune(self, store: Store, each: Running) -> None:
        """End a run as a person would; it says by its tag that it was a pruner."""
        self._client.set_tag(each.run_id, PRUNED, "true")
        each.pruned = True
        task = store.get(each.run_id)
        if task is not None:
            with contextlib.suppress(RefusedError):  # it is over by itself
                requests.cancel(store, self._plan.store, task)

    def _with_metric(self, run: Run) -> Run:
        """The run that holds the metric: after out of memory a script logs to a nested one."""
        other = run.data.tags.get("rlsched.retry_run_id")
        if other is None or self._plan.metric in run.data.metrics:
            return run
        return self._client.get_run(other)

    def _conclude(self, each: Running, run: Run) -> None:
        """Tell the study how a run ended."""
        states = import_optuna().trial.TrialState
        number, space = each.trial.number, self._plan.space.searched
        try:
            ended = history.ended(run, self._plan.metric)
            values = values_of(run, space, {})
            if ended.state == "failed":
                raise LeftOutError(run.data.tags.get("rlsched.message") or "its run failed")
            curve = {
                step: value
                for step, value in self._frozen(number).intermediate_values.items()
                if history.is_finite(value)
            }
            if ended.state == "pruned" and not curve:
                raise LeftOutError(f"it has no {self._plan.metric} by step")
        except LeftOutError as why:
            self._fail(each, str(why))
            return
        if values != {name: each.trial.params[name] for name in space}:
            attributes = {**self._marks, RUN_ID: each.run_id, ASKED: number}
            self.study.add_trial(trial_of(ended, values, space, curve, attributes))
            self._set_aside(number, each.trial, "it was tuned: another trial has its values")
        elif ended.state == "pruned":
            self.study.tell(number, state=states.PRUNED, skip_if_finished=True)
        else:
            self.study.tell(number, ended.value, skip_if_finished=True)
        self._over(each)

    def _fail(self, each: Running, why: str) -> None:
        number, state = each.trial.number, import_optuna().trial.TrialState.FAIL
        each.trial.set_user_attr(REASON, why)
        self.study.tell(number, state=state, skip_if_finished=True)
        self._over(each)

    def _over(self, each: Running) -> None:
        """Say of a trial, or of the one that has its place, that it ended."""
        number = each.trial.number
        self.running.pop(number, None)
        trials = self.study.get_trials(deepcopy=False)[number:]
        told = [t for t in trials if number in (t.number, t.user_attrs.get(ASKED))]
        self._ended(told[-1])

    def _frozen(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    @contextlib.contextmanager
    def _bearing(self) -> Iterator[None]:
        """Let the tracking server be away; said once, and asked again at the next look."""
        try:
            with impatient():
                yield
        except MlflowException as error:
            if not self._warned:
                _logger.warning("=== MLflow does not answer, trials wait: %s ===", reason(error))
            self._warned = True
        else:
            self._warned = False


def describe(trial: FrozenTrial, metric: str) -> dict[str, Any]:
    """A trial as JSON."""
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "metric": metric,
        "value": trial.value,
        "params": dict(trial.params),
        "run_id": trial.user_attrs.get(RUN_ID),
        "reason": trial.user_attrs.get(REASON),
    }
