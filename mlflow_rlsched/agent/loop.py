"""The scheduling of one user's tasks on one host."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mlflow_rlsched import __version__, protocol, run_warnings
from mlflow_rlsched.agent.authority import Authority
from mlflow_rlsched.agent.budgets import BUDGET_S
from mlflow_rlsched.agent.configs import Configs
from mlflow_rlsched.agent.launching import launch
from mlflow_rlsched.agent.offers import Offers
from mlflow_rlsched.agent.others import Others
from mlflow_rlsched.agent.outbox import OUTBOX, Outbox
from mlflow_rlsched.agent.placement import Grant
from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.agent.pool import Pool
from mlflow_rlsched.agent.preemption import PREEMPTED
from mlflow_rlsched.agent.ranking import RESIZED
from mlflow_rlsched.agent.recovery import decide
from mlflow_rlsched.agent.scheduling import Scheduling
from mlflow_rlsched.agent.strays import Strays
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.agent.telemetry import Sampler, Target
from mlflow_rlsched.agent.telling import Teller
from mlflow_rlsched.agent.tracking import Tracker
from mlflow_rlsched.agent.tuning import Outcome
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.devices.demand import gpus_held
from mlflow_rlsched.executors.local import LocalExecutor
from mlflow_rlsched.learning.outcomes import review
from mlflow_rlsched.sharing import is_shared
from mlflow_rlsched.store import AgentRecord, Attempt, Ending, Lease, State, Task, open_store
from mlflow_rlsched.versions import Versions

_logger = logging.getLogger(__name__)

PASS_S = 5.0
SAMPLE_S = 5.0
REGISTER_S = 10.0
UPLOAD_S = 600.0
REQUESTS_S = 3600.0
STOP_S = 10.0

_UNFINISHED = (State.QUEUED, State.RUNNING)


class Agent:
    """Claims, places, watches and recovers the tasks of one user on this host.

    Args:
        files: The agent's folder; its lock is held by this process.
    """

    def __init__(self, files: AgentFiles) -> None:
        self._files = files
        self._host = socket.gethostname()
        self._user = user_name()
        self._is_shared = is_shared(files.store)
        self._configs = Configs(self._is_shared)
        limit = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._store = open_store(files.store)
        self._pool = Pool(
            open_inventory(), self._store, self._host, None if limit is None else limit.split(",")
        )
        self._offers = Offers(self._pool, self._store, self._host, self._configs)
        self._executor = LocalExecutor(os.environ)
        self._sampler = Sampler(self._pool.inventory)
        self._versions = Versions()
        self._policies = Policies(self._versions, max(1, len(self._pool.inventory.devices())))
        self._outbox = Outbox(files.folder / OUTBOX)
        self._tracker = Tracker(self._store, self._outbox)
        self._teller = Teller(self._tracker)
        self._waiting = Waiting()
        self._authority = Authority(
            files.store, self._store, self._is_shared, self._configs.administrators
        )
        self._others = Others(
            self._store, self._host, self._user, self._is_shared, self._configs, self._waiting
        )
        self._running: dict[str, Supervised] = {}
        self._strays = Strays(self._executor, files.folder)
        self._scheduling = Scheduling(
            self._user,
            self._offers,
            self._others,
            self._waiting,
            self._running,
            self._start,
            self._preempt,
        )
        self._started_at = time.time()
        self._has_taken_over = False
        self._interrupted = True  # a tick, or an earlier agent, that could not tell all
        self._drained = False
        self._alarms: dict[Callable[[], None], float] = {}

    def tick(self, woken: bool) -> bool:
        """Do what is to be done now.

        Args:
            woken: Whether something may have happened: look at all tasks at once.

        Returns:
            Whether a task of this host is not over.

        Raises:
            StoreGone: The store vanished.
            StoreError: The store cannot be used now.
            OSError: A file cannot be used now.
        """
        if not self._has_taken_over:
            self._take_over()
            self._tracker.start()
            self._has_taken_over = True
        if self._interrupted:
            for task in self._store.untracked(self._host):
                if task.spec.user == self._user:
                    self._over(task)
        self._interrupted = True
        ended = self._supervise()
        self._drained = False
        self._every(PASS_S, self._drain, woken or ended or self._pool.draining)
        self._every(REGISTER_S, self._register)
        self._every(SAMPLE_S, self._sample)
        self._every(UPLOAD_S, self._upload)
        self._every(REQUESTS_S, self._authority.remove_answered)
        at_once = woken or ended or self._drained or self.pause_s(PASS_S) == 0.0
        crowded = bool(self._scheduling.blocked)
        self._every(PASS_S, self._schedule, at_once)
        self._every(BUDGET_S, self._scheduling.share, crowded and not self._scheduling.blocked)
        self._interrupted = False
        return self.has_work()

    def _drain(self) -> None:
        """End the leases of attempts that are over, once their devices are empty."""
        running = self._store.tasks([State.RUNNING], self._host)
        kept = self._others.kept(running, self._pool.unlocked)
        self._drained = self._pool.drain(kept, self._warn_of_remains)

    def _warn_of_remains(self, lease: Lease, text: str) -> None:
        task = self._store.get(lease.run_id)
        if task is not None:
            self._warn(task, lease.attempt, lease.share.device, text)

    def _warn(self, task: Task, attempt: int, about: str, text: str) -> None:
        """Tell people something of a run that goes on, or is over, all the same."""
        with _contained(task.run_id):
            if run_warnings.add(Path(task.spec.run_dir), attempt, about, text):
                _logger.warning("run %s, attempt %d: %s", task.run_id, attempt, text)
                self._teller.warning(task, text)

    def pause_s(self, longest: float) -> float:
        """Seconds until the next tick has something to do, at most ``longest``."""
        left = self._waiting.next_look_s()
        return longest if left is None else min(longest, left)

    def has_work(self) -> bool:
        """Whether a task of our user on this host is not over."""
        if self._running or self._strays.are_left():
            return True
        first = self._store.tasks(_UNFINISHED, self._host, 1)
        ours = [task.spec.user == self._user for task in first]
        return any(ours) or bool(first and self._tasks(_UNFINISHED))

    def has_told_all(self) -> bool:
        """Whether tracking servers know all that there is to know."""
        return self._tracker.is_idle()

    def sign_off(self) -> None:
        """Let the store forget this agent."""
        self._store.unregister_agent(self._host, self._user)

    def close(self) -> None:
        """Deliver what can be delivered soon, and give back what the agent holds."""
        if self._has_taken_over:
            self._tracker.stop(STOP_S)
        self._outbox.close()
        self._executor.close()
        self._pool.inventory.close()
        self._store.close()

    def _every(self, seconds: float, action: Callable[[], None], at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now >= self._alarms.get(action, 0.0):
            self._alarms[action] = now + seconds
            action()

    def _tasks(self, states: Iterable[State]) -> list[Task]:
        """Our user's tasks of this host."""
        return [t for t in self._store.tasks(states, self._host) if t.spec.user == self._user]

    # Running attempts

    def _take_over(self) -> None:
        """Adopt what ran under an earlier agent."""
        self._configs.renew()
        for task in self._tasks([State.RUNNING]):
            with _contained(task.run_id):
                if not self._authority.refuses(task):
                    self._adopt(task)
        self._end_strays()

    def _end_strays(self) -> None:
        """End what runs on although others took its task out of the store, or changed it."""
        if self._is_shared:
            tasks = self._tasks([State.RUNNING])
            known = {protocol.attempt_dir(Path(t.spec.run_dir), t.attempt) for t in tasks}
            self._strays.end(known | {s.folder for s in self._running.values()})

    def _adopt(self, task: Task) -> None:
        """Look after a running attempt from now on."""
        attempts = self._store.attempts(task.run_id)
        attempt = attempts[-1]
        if attempt.number != task.attempt:
            raise ValueError(f"its attempt {task.attempt} is not in the store")
        folder = protocol.attempt_dir(Path(task.spec.run_dir), attempt.number)
        held = {share.device for share in attempt.devices}
        self._running[task.run_id] = supervised = Supervised(
            task,
            self._configs(task),
            folder,
            [device for device in self._pool.inventory.devices() if device.id in held],
            self._gpus_held(task, attempt),
            self._sampler.memory_total,
            self._policies,
            _ran_s(attempts[:-1]),
            self._executor.age_s(folder),
        )
        supervised.catch_up()
        self._keep_transitions(supervised)
        self._teller.running(task, attempt)

    def _gpus_held(self, task: Task, attempt: Attempt) -> int:
        nested = task.spec.parent_attempt_dir is not None
        kind = self._pool.inventory.kind
        return gpus_held(self._configs(task), nested, kind, len(attempt.devices))

    def _supervise(self) -> bool:
        """Look after running attempts; returns whether one of them ended."""
        ended = False
        for supervised in list(self._running.values()):
            with _contained(supervised.run_id):
                ended |= self._look_after(supervised)
        return ended

    def _look_after(self, supervised: Supervised) -> bool:
        """See how an attempt is, end it when it has to end; returns whether it ended."""
        supervised.observe()
        if supervised.can is None:
            supervised.watch(self._tracker.latest.get(supervised.run_id, {}))
        ending = self._executor.ended(supervised.folder)
        if ending is not None:
            self._finish(supervised, ending)
            return True
        reason = supervised.must_end()
        if supervised.run_id in self._tracker.gone:
            reason = "run_deleted"
        if reason is not None:
            self._stop(supervised, reason)
        elif supervised.stopping is None and supervised.tuning.is_due():
            free, pressure = None, self._scheduling.pressure
            if supervised.tuning.is_elastic:
                others = self._running.values()
                free = 0 if pressure > 0 else self._offers.more_gpus(supervised, others)
            budget = self._scheduling.budget(supervised.run_id)
            self._keep(supervised, supervised.tuning.decide(pressure, free, budget))
        return False

    def _keep(self, supervised: Supervised, outcome: Outcome) -> None:
        """Tell a decision, and keep its transition."""
        self._teller.decision(supervised.task, outcome)
        if outcome.transition is not None:
            supervised.unkept.append(outcome.transition)
        self._keep_transitions(supervised)

    def _keep_transitions(self, supervised: Supervised) -> None:
        """Keep the transitions that are new, and those that the store did not take before."""
        if supervised.unkept:
            self._store.add_transitions(supervised.unkept)
            supervised.unkept.clear()

    def _stop(self, supervised: Supervised, reason: str) -> None:
        """End an attempt; one that takes more memory than is its own, with no grace for more."""
        grace_s, message = supervised.config.grace_s, ""
        if reason == "oom":
            grace_s, message = 0.0, supervised.memory.exceeded or ""
        if supervised.stopping is None or (reason == "oom" and supervised.stopping != "oom"):
            self._executor.stop(supervised.folder, reason, grace_s, message)
            supervised.stopping = reason

    def _preempt(self, supervised: Supervised, why: str) -> None:
        """Have an attempt make way: at a checkpoint where it resumes."""
        if "resume" in (supervised.can or ()):
            supervised.tuning.ask_to_stop(why)
        else:
            self._stop(supervised, PREEMPTED)

    def _finish(self, supervised: Supervised, exit_: protocol.Exit) -> None:
        """Record how an attempt ended and what becomes of its task."""
        task = self._store.get(supervised.run_id)
        if task is not None and task.attempt == supervised.number:
            task = self._authority.checked(task)
            evidence = supervised.evidence(exit_)
            ending = decide(task, supervised.config, evidence, time.time())
            text = "run %s, attempt %d: %s %s"
            _logger.info(text, task.run_id, task.attempt, ending.reason, ending.message)
            self._pool.used(supervised.devices, ending)
            with _contained(task.run_id):  # its folder may be full or gone: it is over all the same
                outcome = None if ending.reason == RESIZED else supervised.close(ending)
                if outcome is not None:
                    self._keep(supervised, outcome)
            self._store.end_attempt(task.run_id, task.attempt, ending, time.time())
            self._tell_if_over(task.run_id)
            if ending.state.final and not self._is_shared:  # others' transitions prove nothing
                with _contained(task.run_id):
                    self._review(task.run_id)
        del self._running[supervised.run_id]
        self._scheduling.forget(supervised.run_id)

    def _review(self, run_id: str) -> None:
        """See what a run that is over says of the policy that decided on it."""
        transitions = [transition for _, transition in self._store.transitions(run_id)]
        reason = review(self._versions, transitions)
        if reason is not None:
            _logger.warning("the policy is rolled back: %s", reason)

    def _tell_if_over(self, run_id: str) -> None:
        """Tell MLflow that a task is over, if it is."""
        task = self._store.get(run_id)
        if task is not None and task.state.final:
            self._configs.forget(run_id)
            self._waiting.forget(run_id)
            self._over(task)

    def _over(self, task: Task) -> None:
        """Tell MLflow that a task is over, if it was our user's wish."""
        known = self._running.get(task.run_id)
        if known is not None:
            task = replace(task, spec=known.task.spec, submitted_at=known.task.submitted_at)
        elif self._authority.why_refused(task) is not None:
            self._store.mark_tracked(task.run_id)
            return
        with _contained(task.run_id):
            self._authority.over(task)
        self._teller.over(task)

    # Waiting tasks

    def _schedule(self) -> None:
        """One pass over all that is not finished: cancellations, time-outs, grants."""
        self._configs.renew()
        self._waiting.look()
        tasks = self._store.tasks(_UNFINISHED, self._host)
        ready = []
        for task in [task for task in tasks if task.spec.user == self._user]:
            with _contained(task.run_id):
                if task.run_id in self._running:
                    self._pass_running(self._authority.checked(task))
                elif self._authority.refuses(task):
                    self._end_strays()
                elif task.state is State.RUNNING:
                    self._adopt(task)
                    self._pass_running(self._authority.checked(task))
                elif self._pass_waiting(self._authority.checked(task)):
                    ready.append(task)
        self._scheduling.look_at_others(tasks)
        self._scheduling.place(ready)
        self._tracker.watch(s.run_id for s in self._running.values() if s.can is None)

    def _pass_running(self, task: Task) -> None:
        if task.cancel_by is not None:
            self._stop(self._running[task.run_id], "cancelled")

    def _pass_waiting(self, task: Task) -> bool:
        """Whether a waiting task may start now; ends it when its waiting is in vain."""
        config = self._configs(task)
        if self._waiting.see(task, config) and task.attempt > 0:
            self._teller.waiting(task)
        ending = self._waiting.end_of(task, config, self._tracker.gone, self._running)
        if ending is None:
            return self._waiting.is_ready(task)
        if self._store.end_queued(task.run_id, ending, time.time()):
            self._tell_if_over(task.run_id)
        return False

    def _start(self, grant: Grant) -> None:
        """Claim a task and launch its next attempt."""
        # Its delay is over by our clock; the store compares with the one that set it.
        now = max(time.time(), grant.task.not_before)
        attempt = self._store.claim(grant.task.run_id, self._host, grant.shares, now)
        task = self._store.get(grant.task.run_id)
        if attempt is None or task is None:
            return
        self._waiting.forget(task.run_id)
        config = self._configs(task)
        try:
            launch(self._executor, task, attempt, config, self._pool.inventory, self._files)
        except (OSError, ValueError) as error:
            text = f"the run directory {task.spec.run_dir} cannot be used: {error}"
            ending = Ending(State.FAILED, "start_failed", text)
            self._store.end_attempt(task.run_id, attempt.number, ending, time.time())
            self._tell_if_over(task.run_id)
            return
        devices = ",".join(share.device for share in attempt.devices)
        _logger.info("run %s, attempt %d: started on %s", task.run_id, attempt.number, devices)
        self._adopt(task)

    # Now and then

    def _register(self) -> None:
        """Renew what the store says of this agent."""
        self._pool.free()  # renews the notes, also while nobody waits
        now = time.time()
        notes = [{"id": device, "note": note} for device, note in self._pool.notes.items()]
        record = AgentRecord(self._host, self._user, __version__, self._started_at, now, notes)
        self._store.register_agent(record, now)

    def _upload(self) -> None:
        """Have MLflow show the decisions and the output of what still runs."""
        for run_id in self._running:
            self._teller.files(run_id)

    def _sample(self) -> None:
        """Sample the devices and processes of all running attempts."""
        if not self._running:
            return
        targets = []
        for supervised in self._running.values():
            shim = self._executor.shim(supervised.folder)
            pid = shim.pid if shim is not None else None
            devices, cap = tuple(supervised.devices), supervised.memory.host_cap
            targets.append(Target(supervised.run_id, pid, devices, cap))
        sampled = self._sampler.sample(targets)
        # Counted before they are told: whatever dies in between, no step is used twice.
        counts = {s.run_id: s.samples + 1 for s in self._running.values()}
        self._store.heartbeat(self._host, counts, time.time())
        for run_id, sample in sampled.items():
            supervised = self._running[run_id]
            warning = supervised.take(sample)
            if warning is not None:
                self._warn(supervised.task, supervised.number, *warning)
            self._teller.sample(supervised.task, sample.metrics, supervised.samples)
            supervised.samples += 1


@contextlib.contextmanager
def _contained(run_id: str) -> Iterator[None]:
    """Keep the trouble with one run's files or configuration from the others."""
    try:
        yield
    except (OSError, ValueError) as error:
        _logger.error("run %s: %s", run_id, error)


def _ran_s(attempts: Iterable[Attempt]) -> float:
    """Seconds that attempts which are over ran."""
    return sum(max(0.0, (a.ended_at or a.started_at) - a.started_at) for a in attempts)
