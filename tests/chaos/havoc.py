"""Carries a plan out on a host, and sees everything to its end."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import time
from collections.abc import Callable, Hashable
from contextlib import closing
from datetime import datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from mlflow_rlsched import processes
from tests.chaos import submitter
from tests.chaos.plans import Await, Change, Event, Kill, Plan, Submit
from tests.world import FAULTY, World, wait_for

MOMENT_WITHIN_S = 0.7
MADE_WITHIN_S = 5.0
OVER_WITHIN_S = 90.0
AWAITED_WITHIN_S = 120.0
START_WITHIN_S = 2.0
SETTINGS = {"retry_delays_s": [0.05], "max_retries": 1000, "grace_s": 0.5}


class Havoc:
    """One repetition.

    Args:
        world: The host.

    Attributes:
        accepted: Runs whose submission returned.
        cancelled: Those of them whose cancellation was accepted.
    """

    def __init__(self, world: World) -> None:
        self.accepted: list[str] = []
        self.cancelled: set[str] = set()
        self._world = world
        self._submitters: list[ForkServerProcess] = []
        self._count = 0

    def wreak(self, plan: Plan) -> None:
        """Do what the plan says."""
        for event, pause in zip(plan.events, plan.pauses, strict=True):
            print(f"{datetime.now():%H:%M:%S.%f} {event}")  # shown when the test fails
            self._do(event)
            time.sleep(pause)

    def _do(self, event: Event) -> None:
        if isinstance(event, Submit):
            self._submit(event)
        elif isinstance(event, Kill):
            self._kill(event)
        elif isinstance(event, Change):
            self._change(event)
        elif isinstance(event, Await):
            wait_for(lambda: event.reason in self.endings(), AWAITED_WITHIN_S)
        else:
            self._restart_agent()

    def endings(self) -> set[str]:
        """How attempts of what was accepted ended."""
        attempts = map(self._world.store.attempts, self.accepted)
        return {attempt.reason for attempt in itertools.chain.from_iterable(attempts)}

    def see_to_the_end(self, patience_s: float, within_s: float = OVER_WITHIN_S) -> None:
        """Wait until all is over; start an agent where none is, as a person would."""
        print(f"{datetime.now():%H:%M:%S.%f} see to the end")
        world = self._world
        start_at = time.monotonic() + (patience_s if self._has_keepers() else 0.0)
        deadline = time.monotonic() + within_s
        while not self._is_over():
            now = time.monotonic()
            assert now < deadline, self._describe()
            if not world.agent.alive() and now > start_at:
                print(f"{datetime.now():%H:%M:%S.%f} start an agent")
                world.agent.start()
                start_at = now + START_WITHIN_S
            time.sleep(0.1)
        for process in self._submitters:
            process.join(30)
            assert process.exitcode is not None, "a submitter still waits"
        wait_for(lambda: not self._left(), 20)

    def _has_keepers(self) -> bool:
        """Whether something lives that starts an agent where there is none."""
        return bool(self._victims("shim") + self._victims("submitter"))

    def _left(self) -> list[int]:
        """Processes of the host besides the agent and the one shim that it has ready."""
        agent = self._world.agent_process()
        left = [p for p in self._world.all_processes() if agent is None or p != agent.pid]
        ready = self._victims("shim") if agent is not None else []
        return [p for p in left if [p] != ready]

    def _is_over(self) -> bool:
        world = self._world
        if not all(task.state.final and task.tracked for task in world.store.tasks()):
            return False
        if world.store.leases() or self._records():
            return False
        statuses = {run.info.status for run in world.client.search_runs(["0"])}
        return not statuses & {"RUNNING", "SCHEDULED"}

    def _describe(self) -> str:
        tasks = [(t.run_id, t.state.value, t.attempt, t.message) for t in self._world.store.tasks()]
        runs = [(r.info.run_id, r.info.status) for r in self._world.client.search_runs(["0"])]
        log = self._world.agent.log.read_text()[-5000:]
        return f"{tasks}\n{runs}\n{self._world.store.leases()}\n{log}"

    def _submit(self, what: Submit) -> None:
        world = self._world
        self._count += 1
        params = what.params | {"ledger": world.root / f"ledger-{self._count}"}
        config = SETTINGS | {"cpu_slots": what.slots} | what.config
        if not what.by_process:
            run = world.submit(FAULTY, what.entry_point, params, config)
            self.accepted.append(run.run_id)
            return
        arguments = {
            "uri": str(FAULTY),
            "entry_point": what.entry_point,
            "parameters": {name: str(value) for name, value in params.items()},
            "backend": "rlsched",
            "backend_config": config,
            "experiment_id": "0",
        }
        log = world.root / "submitter.log"
        self._submitters.append(submitter.start(world.env, world.folder, log, arguments))

    def _kill(self, kill: Kill) -> None:
        self._wait_for_moment(kill.moment)
        time.sleep(kill.delay_s)
        victims = sorted(self._victims(kill.victim))
        if victims and kill.which is not None:
            victims = [victims[kill.which % len(victims)]]
        processes.send(victims, signal.SIGKILL)
        if kill.restart:
            self._world.agent.start()

    def _change(self, change: Change) -> None:
        run_id = self.accepted[change.run % len(self.accepted)]
        if change.priority is not None:
            self._world.store.prioritize(run_id, change.priority)
        elif self._world.store.request_cancel(run_id, "somebody"):
            self.cancelled.add(run_id)
        self._world.agent.wake()

    def _restart_agent(self) -> None:
        agents = self._victims("agent")
        processes.send(agents, signal.SIGTERM)
        # What it has to tell is told first; a shim may have started the next one by then.
        wait_for(lambda: not set(agents) & set(self._victims("agent")), 90)
        self._world.agent.start()

    def _victims(self, kind: str) -> list[int]:
        submitters = [p.pid for p in self._submitters if p.is_alive() and p.pid is not None]
        if kind == "submitter":
            return submitters
        ours = self._world.all_processes()
        if kind == "all":
            return [*submitters, *ours]
        return [pid for pid in ours if _kind(pid) == kind]

    def _wait_for_moment(self, moment: str) -> None:
        if moment == "any":
            return
        look = self._looks()[moment]
        # A submission that was just started is there already.
        before = set() if moment == "announced" else look()
        deadline = time.monotonic() + (MADE_WITHIN_S if moment == "made" else MOMENT_WITHIN_S)
        while not look() - before and time.monotonic() < deadline:
            time.sleep(0.001 if moment in ("saving", "made") else 0.005)

    def _looks(self) -> dict[str, Callable[[], set[Hashable]]]:
        """What can be seen of each moment; something new is its sign."""
        runs = self._world.home / "runs"
        return {
            "claimed": lambda: {(t.run_id, t.attempt) for t in self._world.store.tasks()},
            "launched": lambda: set(runs.glob("*/attempts/*/attempt.json")),
            "saving": lambda: set(runs.glob("*/checkpoints/.*")),
            "ending": lambda: set(runs.glob("*/attempts/*/exit.json")) | set(self._done()),
            "announced": self._records,
            "made": self._runs,
        }

    def _records(self) -> set[Hashable]:
        """Submissions that are not complete."""
        return set((self._world.home / "submissions").glob("*.json"))

    def _runs(self) -> set[Hashable]:
        """MLflow runs; MLflow's own client is too slow to catch the moment after one is made."""
        with closing(sqlite3.connect(self._world.folder / "mlflow.db")) as connection:
            return {row[0] for row in connection.execute("SELECT run_uuid FROM runs")}

    def _done(self) -> list[Path]:
        ledgers = self._world.root.glob("ledger-*")
        return [ledger for ledger in ledgers if " done " in ledger.read_text()]


def _kind(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    if b"executors.shim" in command:
        return "shim"
    return "agent" if b"quick_agent" in command else "training"
