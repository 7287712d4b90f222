"""The scheduling process of one user, host and store."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mlflow_rlsched import __version__, protocol
from mlflow_rlsched.agent.launching import launch
from mlflow_rlsched.agent.outbox import Outbox
from mlflow_rlsched.agent.placement import Grant, plan
from mlflow_rlsched.agent.pool import Pool
from mlflow_rlsched.agent.recovery import decide
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.agent.telemetry import Sampler, Target
from mlflow_rlsched.agent.tracking import Tracker
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.executors.local import LocalExecutor
from mlflow_rlsched.store import (
    AgentRecord,
    Ending,
    State,
    StoreError,
    StoreGone,
    Task,
    open_store,
)

_logger = logging.getLogger(__name__)

TICK_S = 1.0
PASS_S = 5.0
SAMPLE_S = 5.0
VOUCH_S = 10.0
STOP_S = 10.0

_SAMPLES_LEFT_OUT = 3  # after a restart: more than can have been logged since the last heartbeat
_STATUS = {State.FINISHED: "FINISHED", State.FAILED: "FAILED", State.KILLED: "KILLED"}
_UNFINISHED = (State.QUEUED, State.RUNNING)


class Agent:
    """Claims, places, watches and recovers the tasks of one user on this host.

    Args:
        files: The agent's folder; its lock is held by this process.
        idle_timeout_s: End after so many seconds with nothing to do; None never ends.
    """

    def __init__(self, files: AgentFiles, idle_timeout_s: float | None) -> None:
        self._files = files
        self._idle_timeout_s = idle_timeout_s
        self._host = socket.gethostname()
        self._user = user_name()
        limit = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._store = open_store(files.store)
        self._pool = Pool(
            open_inventory(), self._store, self._host, None if limit is None else limit.split(",")
        )
        self._executor = LocalExecutor(os.environ)
        self._sampler = Sampler(self._pool.inventory)
        self._outbox = Outbox(files.folder / "outbox.db")
        self._tracker = Tracker(self._store, self._outbox)
        self._running: dict[str, Supervised] = {}
        self._configs: dict[str, RunConfig] = {}
        self._first_seen: dict[str, tuple[int, float]] = {}
        self._ready_at: dict[str, tuple[float, float]] = {}
        self._started_at = time.time()
        self._stopping = False
        self._alarms: dict[Callable[[], None], float] = {}

    def run(self) -> None:
        """Work until told to stop, idle for long enough, or robbed of the store."""
        wake = [self._files.open_wake(), self._stop_on_signals()]
        self._tracker.start()
        self._take_over()
        idle_since = time.monotonic()
        woken = True
        while not self._stopping:
            try:
                self._tick(woken)
                if self._running or self._store.tasks(_UNFINISHED, self._host, 1):
                    idle_since = time.monotonic()
            except StoreGone as error:
                _logger.error("%s: ending", error)
                break
            except StoreError as error:
                _logger.error("%s", error)
            idle = time.monotonic() - idle_since
            if self._idle_timeout_s is not None and idle > self._idle_timeout_s and self._leave():
                break
            ready, _, _ = select.select(wake, [], [], TICK_S)
            for descriptor in ready:
                os.read(descriptor, 65536)
            woken = bool(ready)
        self._tracker.stop(STOP_S)
        self._outbox.close()
        self._pool.inventory.close()
        self._store.close()

    def _stop_on_signals(self) -> int:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def stop(*_: object) -> None:
            self._stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reader

    def _leave(self) -> bool:
        """Give the lock back when there is nothing to do; False when there is again."""
        if self._outbox.runs():
            return False
        self._store.unregister_agent(self._host, self._user)
        self._files.lock.release()
        # A submission that saw the lock still held relies on this second look.
        if self._store.tasks(_UNFINISHED, self._host, 1) and self._files.lock.acquire():
            return False
        _logger.info("nothing to do: ending")
        return True

    def _every(self, seconds: float, action: Callable[[], None], at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now >= self._alarms.get(action, 0.0):
            self._alarms[action] = now + seconds
            action()

    def _tick(self, woken: bool) -> None:
        changed = self._supervise()
        changed |= self._pool.drain({(s.run_id, s.number) for s in self._running.values()})
        self._every(VOUCH_S, self._vouch)
        self._every(SAMPLE_S, self._sample)
        self._every(PASS_S, self._schedule, at_once=woken or changed or self._retry_is_due())

    def _retry_is_due(self) -> bool:
        now = time.monotonic()
        return any(at <= now for _, at in self._ready_at.values())

    def _take_over(self) -> None:
        """Adopt what ran under an earlier agent, and tell MLflow what that one could not."""
        for task in self._store.tasks([State.RUNNING], self._host):
            self._adopt(task)
        for task in self._store.untracked(self._host):
            self._tell_final(task, [])

    def _config(self, task: Task) -> RunConfig:
        if task.run_id not in self._configs:
            self._configs[task.run_id] = RunConfig.model_validate(task.spec.config)
        return self._configs[task.run_id]

    def _adopt(self, task: Task) -> None:
        attempts = self._store.attempts(task.run_id)
        held = {share.device for share in attempts[-1].devices}
        now = time.time()
        spent = [max(0.0, (a.ended_at or now) - a.started_at) for a in attempts]
        self._running[task.run_id] = supervised = Supervised(
            task,
            self._config(task),
            protocol.attempt_dir(Path(task.spec.run_dir), task.attempt),
            [d for d in self._pool.inventory.devices() if d.id in held],
            sum(spent),
        )
        supervised.samples += _SAMPLES_LEFT_OUT if task.samples else 0

    def _supervise(self) -> bool:
        """Look after running attempts; returns whether one of them ended."""
        ended = False
        for supervised in list(self._running.values()):
            supervised.observe()
            ending = self._executor.ended(supervised.folder)
            if ending is not None:
                self._finish(supervised, ending)
                ended = True
                continue
            reason = supervised.overdue()
            if supervised.run_id in self._tracker.gone:
                reason = "run_deleted"
            elif supervised.device_lost is not None:
                reason = "device_fault"
            if reason is not None:
                self._stop(supervised, reason)
        return ended

    def _stop(self, supervised: Supervised, reason: str) -> None:
        if supervised.stopping is None:
            supervised.stopping = reason
            self._executor.stop(supervised.folder, reason, supervised.config.grace_s)

    def _finish(self, supervised: Supervised, exit_: protocol.Exit) -> None:
        task = self._store.get(supervised.run_id)
        del self._running[supervised.run_id]
        if task is None or task.attempt != supervised.number:
            return
        evidence = supervised.evidence(exit_)
        ending = decide(task, supervised.config, evidence, time.time())
        _logger.info(
            "run %s, attempt %d: %s %s", task.run_id, task.attempt, ending.reason, ending.message
        )
        if ending.reason == "device_fault":
            for device in supervised.devices:
                self._pool.fault(device.id, ending.message)
        elif ending.state is State.FINISHED:
            self._pool.proved({device.id for device in supervised.devices})
        self._store.end_attempt(task.run_id, task.attempt, ending, time.time())
        self._tell_ended(task.run_id, supervised.retry_run_id)

    def _tell_ended(self, run_id: str, retry_run_id: str | None) -> None:
        """Tell MLflow how the store now sees a run whose attempt ended."""
        task = self._store.get(run_id)
        if task is None:
            return
        if task.state.final:
            self._tell_final(task, [retry_run_id] if retry_run_id else [])
            return
        self._ready_at[run_id] = (
            task.not_before,
            time.monotonic() + max(0.0, task.not_before - time.time()),
        )
        if retry_run_id is not None:
            self._tracker.put(run_id, "status", {"of": retry_run_id, "status": "FAILED"})
        self._tracker.put(run_id, "status", {"of": run_id, "status": "SCHEDULED"})
        self._tracker.put(
            run_id,
            "tags",
            {"rlsched.state": task.state.value, "rlsched.exit_reason": task.exit_reason},
        )

    def _tell_final(self, task: Task, also: list[str]) -> None:
        self._configs.pop(task.run_id, None)
        self._first_seen.pop(task.run_id, None)
        self._ready_at.pop(task.run_id, None)
        tags = {
            "rlsched.state": task.state.value,
            "rlsched.exit_reason": task.exit_reason,
            "rlsched.attempts": str(task.attempt),
        }
        if task.message:
            tags["rlsched.message"] = task.message[:5000]
        ended_at = task.ended_at or time.time()
        self._tracker.put(
            task.run_id,
            "final",
            {
                "status": _STATUS[task.state],
                "end_time_ms": int(1000 * ended_at),
                "tags": tags,
                "also": also,
            },
        )

    def _schedule(self) -> None:
        """One pass over all that is not finished: cancellations, time-outs, grants."""
        waiting = []
        for task in self._store.tasks(_UNFINISHED, self._host):
            if task.spec.user != self._user:
                continue
            if task.state is State.RUNNING:
                if task.run_id not in self._running:
                    self._adopt(task)
                if task.cancel_by is not None:
                    self._stop(self._running[task.run_id], "cancelled")
                continue
            ending = self._end_of_waiting(task)
            if ending is not None:
                if self._store.end_queued(task.run_id, ending, time.time()):
                    self._tell_ended(task.run_id, None)
            elif self._is_ready(task):
                waiting.append(task)
        if waiting:
            self._grant(waiting)
        self._tracker.watch(s.run_id for s in self._running.values() if s.can is None)

    def _end_of_waiting(self, task: Task) -> Ending | None:
        """Why a waiting task is over before it started, if it is."""
        if task.cancel_by is not None:
            return Ending(State.KILLED, "cancelled", f"cancelled by {task.cancel_by}")
        if task.run_id in self._tracker.gone:
            return Ending(State.KILLED, "run_deleted", "the MLflow run was deleted")
        parent = task.spec.parent_run_id
        if task.spec.parent_attempt_dir is not None and parent not in self._running:
            return Ending(State.KILLED, "parent_ended", "the run that it was nested in has ended")
        limit = self._config(task).queue_timeout_s
        attempt, since = self._first_seen.get(task.run_id, (-1, 0.0))
        if attempt != task.attempt:
            waited = max(0.0, time.time() - task.submitted_at) if task.attempt == 0 else 0.0
            since = time.monotonic() - waited
            self._first_seen[task.run_id] = (task.attempt, since)
        if limit is not None and time.monotonic() - since > limit:
            text = f"it waited longer than queue_timeout_s ({limit:g} s)"
            return Ending(State.FAILED, "queue_timeout", text)
        return None

    def _is_ready(self, task: Task) -> bool:
        """Whether a retry's delay is over, by our own clock where we set it."""
        wall, monotonic = self._ready_at.get(task.run_id, (0.0, 0.0))
        if wall == task.not_before and wall:
            return time.monotonic() >= monotonic
        return time.time() >= task.not_before

    def _grant(self, waiting: list[Task]) -> None:
        grants = plan(
            waiting,
            self._config,
            self._offered,
            self._pool.free(),
            self._pool.inventory.kind,
        )
        for grant in grants:
            self._start(grant)

    def _offered(self, task: Task) -> list[Device]:
        mine = self._pool.devices()
        if task.spec.device_limit is None:
            return mine
        allowed = {device.id for device in self._pool.inventory.allowed(task.spec.device_limit)}
        return [device for device in mine if device.id in allowed]

    def _start(self, grant: Grant) -> None:
        now = max(time.time(), grant.task.not_before)
        attempt = self._store.claim(grant.task.run_id, self._host, grant.shares, now)
        task = self._store.get(grant.task.run_id)
        if attempt is None or task is None:
            return
        self._ready_at.pop(task.run_id, None)
        self._first_seen.pop(task.run_id, None)
        config = self._config(task)
        try:
            launch(self._executor, task, attempt, config, self._pool.inventory, self._files)
        except OSError as error:
            text = f"the run directory {task.spec.run_dir} cannot be used: {error}"
            ending = Ending(State.FAILED, "start_failed", text)
            self._store.end_attempt(task.run_id, attempt.number, ending, time.time())
            self._tell_ended(task.run_id, None)
            return
        self._adopt(task)
        devices = ",".join(share.device for share in attempt.devices)
        _logger.info("run %s, attempt %d: started on %s", task.run_id, attempt.number, devices)
        self._tracker.put(task.run_id, "status", {"of": task.run_id, "status": "RUNNING"})
        tags = {
            "rlsched.state": task.state.value,
            "rlsched.attempts": str(attempt.number),
            "rlsched.devices": devices,
        }
        self._tracker.put(task.run_id, "tags", tags)
        if attempt.number == 1:
            waited = max(0.0, attempt.started_at - task.submitted_at)
            point = ["rlsched/queue_seconds", waited, int(1000 * time.time()), 0]
            self._tracker.put(task.run_id, "metrics", [point])

    def _vouch(self) -> None:
        """Renew what the store says of this agent and its attempts."""
        now = time.time()
        self._store.heartbeat(
            self._host, {s.run_id: s.samples for s in self._running.values()}, now
        )
        notes = [{"id": device, "note": note} for device, note in self._pool.notes.items()]
        record = AgentRecord(self._host, self._user, __version__, self._started_at, now, notes)
        self._store.register_agent(record, now)

    def _sample(self) -> None:
        """Sample the devices and processes of all running attempts."""
        targets = []
        for supervised in self._running.values():
            shim = self._executor.shim(supervised.folder)
            pid = shim.pid if shim is not None else None
            targets.append(Target(supervised.run_id, pid, tuple(supervised.devices)))
        now_ms = int(1000 * time.time())
        for run_id, metrics in self._sampler.sample(targets).items():
            supervised = self._running[run_id]
            supervised.show_life(metrics)
            supervised.device_lost = self._sampler.lost.get(run_id)
            values = supervised.progress.sample()
            if supervised.can is None:
                values |= _own_loss(self._tracker.latest.get(run_id, {}), supervised.config)
            values["gpus"] = supervised.config.gpus.initial
            metrics.update({f"rlsched/{name}": value for name, value in values.items()})
            points = [[k, v, now_ms, supervised.samples] for k, v in metrics.items()]
            self._tracker.put(run_id, "metrics", points)
            supervised.samples += 1


def _own_loss(metrics: Mapping[str, float], config: RunConfig) -> dict[str, float]:
    """The loss that a training which does not report to us has logged by itself."""
    for name in (config.objective.metric, "loss", "train_loss", "training_loss", "val_loss"):
        if name in metrics:
            return {"loss": metrics[name]}
    return {}


def run_agent(store: str, idle_timeout_s: float | None) -> int:
    """Be the agent of a store, unless there is one.

    Args:
        store: Absolute URL of the store.
        idle_timeout_s: End after so many seconds with nothing to do; None never ends.

    Returns:
        Exit code: 0, also when another agent serves the store already.

    Raises:
        StoreError: The store cannot be opened.
    """
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    files = AgentFiles(store)
    files.create()
    if not files.lock.acquire():
        _logger.info("another agent serves %s already", store)
        return 0
    files.introduce(__version__)
    _logger.info("agent %s serves %s", __version__, store)
    Agent(files, idle_timeout_s).run()
    return 0
