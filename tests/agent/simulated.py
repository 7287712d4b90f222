"""A host in memory: the agent, its scheduling and its store are real, what is around them is not.

Faked are the clock, four GPUs (there are none here), the shims with their trainings (which would
take real time) and the tracking server. The agent can be killed at any of its state changes.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mlflow_rlsched import protocol
from mlflow_rlsched.agent import loop
from mlflow_rlsched.config import find_knobs, resolve
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.devices.interface import Device, Inventory, Reading
from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.proposal import Proposal
from mlflow_rlsched.store import State, Store, StoreError, Task, open_store
from mlflow_rlsched.trust import proofs_of_submission
from tests.task_specs import make_spec

GPUS = 4
MEMORY = 80_000_000_000
LEAST_BATCH = 8
START = 1_700_000_000.0


def folder_in_memory() -> Path:
    """A folder for a host: on a disk each change would have to be waited for."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="rlsched-", dir=memory if memory.is_dir() else None))


class Killed(BaseException):
    """kill -9 of the agent."""


class Clock:
    """Stands in for the module ``time``; the wall clock can be put forward and back."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = START

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.wall


class Gpus(Inventory):
    """Four GPUs, which an attempt that is over does not leave empty at once."""

    kind = "nvidia"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.dirty_until: Counter[str] = Counter()
        self.lost: set[str] = set()
        self._devices = [Device(f"GPU-{n}", "nvidia", n, "H100", MEMORY) for n in range(GPUS)]

    def devices(self) -> list[Device]:
        return list(self._devices)

    def read(self, device: Device) -> Reading:
        lost = device.id in self.lost
        return Reading(memory_used_bytes=0, memory_total_bytes=MEMORY, lost=lost)

    def occupied(self, device: Device, reading: Reading) -> str | None:
        return "memory is in use" if self.is_dirty(device.id) else None

    def unexplained(self, device: Device, reading: Reading) -> str | None:
        return self.occupied(device, reading)

    def is_dirty(self, device: str) -> bool:
        return self.dirty_until[device] > self._clock.now

    def environment(self, devices: Sequence[Device], slots_per_process: int) -> dict[str, str]:
        return {}

    def allowed(self, limit: Sequence[str] | None) -> list[Device]:
        return [device for device in self._devices if limit is None or device.id in limit]


@dataclass
class Training:
    """An attempt: a shim and its training.

    Attributes:
        spec: What it runs.
        folder: Its directory.
        started_at: When (monotonic).
        exit: How it ended, or None while it lives.
        asked: Why its shim was asked to end it, and until when.
        has_spoken: Whether it said what it can do.
        user: Whose processes these are.
    """

    spec: protocol.AttemptSpec
    folder: Path
    started_at: float
    exit: protocol.Exit | None = None
    asked: tuple[str, float] | None = None
    has_spoken: bool = False
    user: str = field(default_factory=lambda: loop.user_name())

    @property
    def run_id(self) -> str:
        return self.spec.run_id

    @property
    def amounts(self) -> dict[str, int]:
        """Hundredths by device id."""
        return {lock["device"]: lock["amount"] for lock in self.spec.locks}

    @property
    def leaves(self) -> bool:
        """Whether it was asked to save and leave."""
        directive = protocol.Directive.read(self.folder, self.spec.attempt)
        return directive is not None and directive.action == "stop"


class Tracker:
    """Stands for the tracking server and the thread that talks to it."""

    def __init__(self, store: Store, outbox: object) -> None:
        self.latest: dict[str, dict[str, float]] = {}
        self.gone: set[str] = set()
        self.told: list[str] = []

    def put(self, run_id: str, kind: str, body: Any) -> None:
        if kind == "final":
            self.told.append(run_id)

    def start(self) -> None: ...

    def watch(self, run_ids: Iterator[str]) -> None: ...


class Policies:
    """A policy that always wants the same."""

    name, version = "told", "1"

    def __init__(self) -> None:
        self.delta = 0

    def of(self, *_: object) -> Policies:
        return self

    def others(self, *_: object) -> list[Any]:
        return []

    def propose(self, *_: object) -> Proposal:
        return Proposal(Action(self.delta), "a test", predicted_gain=9.0)


class Fused:
    """A store whose calls are moments at which the agent may die or meet trouble."""

    def __init__(self, store: Store, host: Host) -> None:
        self._store = store
        self._host = host

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name == "close":
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self._host.moment()
            if name == "claim":
                self._host.on_claim(args[0])
            result = method(*args, **kwargs)
            self._host.moment()
            return result

        return call


class Host:
    """The host, and those who use it.

    Attributes:
        trainings: All attempts there were, by their directory.
        fuse: State changes until the agent dies (``Killed``) or its store is in trouble.
        on_claim: Called before each claim with the run.
    """

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.gpus = Gpus(self.clock)
        self.policies = Policies()
        self.trainings: dict[Path, Training] = {}
        self.fuse: tuple[int, type[BaseException]] | None = None
        self.on_claim: Callable[[str], None] = lambda run_id: None
        self.agent: loop.Agent | None = None
        self._can: dict[str, list[str]] = {}
        self._root = root
        self._numbers = itertools.count()
        self._files = AgentFiles(f"sqlite:///{root}/rlsched.db")
        self._files.folder.mkdir(parents=True)
        self.store = open_store(self._files.store)
        self._patches = ExitStack()
        for name, module in list(sys.modules.items()):
            if name.startswith("mlflow_rlsched.agent.") and getattr(module, "time", None) is time:
                self._patches.enter_context(patch.object(module, "time", self.clock))
        fakes: dict[str, Any] = {
            "open_inventory": lambda: self.gpus,
            "open_store": lambda url: Fused(open_store(url), self),
            "LocalExecutor": lambda environ: self,
            "Policies": lambda *_: self.policies,
            "Tracker": Tracker,
        }
        for name, fake in fakes.items():
            self._patches.enter_context(patch.object(loop, name, fake))

    def close(self) -> None:
        self.kill_agent()
        self.store.close()
        self._patches.close()

    # What people do

    def submit(
        self,
        priority: int = 0,
        limit: list[str] | None = None,
        can: Sequence[str] = (),
        user: str | None = None,
        **settings: Any,
    ) -> str:
        """Queue a run whose training can do this; ``settings`` are of its configuration."""
        number = next(self._numbers)
        run_id = f"run-{number:04}"
        run_dir = self._root / "runs" / run_id
        run_dir.mkdir(parents=True)
        protocol.write_json(run_dir / "environment.json", {})
        batch = {"batch_size": {"param": "batch_size", "min": LEAST_BATCH}, "priority": priority}
        config = find_knobs(resolve(batch | settings, None, {}), {"batch_size": "32"}, {})
        spec = make_spec(
            run_id,
            experiment_id=str(number % 2),
            user=user or user_name(),
            host=socket.gethostname(),
            run_dir=str(run_dir),
            device_limit=limit,
            config=config.model_dump(mode="json"),
        )
        now = self.clock.time()
        self.store.submit(
            spec, priority, now, proofs_of_submission(self._files.store, spec, priority, now)
        )
        self._can[run_id] = list(can)
        return run_id

    # What the agent does

    def tick(self) -> None:
        """Let the agent work once; one that is dead is started before."""
        try:
            if self.agent is None:
                self.agent = loop.Agent(self._files)
            self.agent.tick(True)
        except Killed:
            self.kill_agent()
        except StoreError:
            pass  # as agent.service does: the next tick tries again
        else:
            self._deliver()

    def kill_agent(self) -> None:
        """kill -9: nothing is said or saved."""
        if self.agent is not None:
            self.agent._store.close()
            self.agent._outbox.close()
        self.agent = None
        self.fuse = None

    def _deliver(self) -> None:
        assert self.agent is not None
        tracker: Any = self.agent._tracker
        for run_id in tracker.told:
            self.store.mark_tracked(run_id)
        tracker.told.clear()

    def moment(self) -> None:
        """A state change: the agent dies here, or meets trouble, where the fuse says so."""
        if self.fuse is None:
            return
        left, trouble = self.fuse
        self.fuse = (left - 1, trouble) if left else None
        if not left:
            raise trouble("the disk is full")

    # What the shims do, in the place of the executor

    def launch(self, run_dir: Path, spec: protocol.AttemptSpec) -> Path:
        self.moment()
        training = Training(spec, protocol.attempt_dir(run_dir, spec.attempt), self.clock.now)
        assert training.folder not in self.trainings, "an attempt is launched once"
        assert all(other.run_id != spec.run_id for other in self.live()), "one attempt at a time"
        used = sum((Counter(other.amounts) for other in self.live()), Counter())
        for device, amount in training.amounts.items():
            assert used[device] + amount <= 100, f"{device} is over-leased"
            if amount == 100:
                assert not self.gpus.is_dirty(device), f"{device} is not empty yet"
        self.trainings[training.folder] = training
        self.moment()
        return training.folder

    def stop(self, folder: Path, reason: str, grace_s: float, message: str = "") -> None:
        self.moment()
        training = self.trainings.get(folder)
        if training is not None:
            first, until = training.asked or (reason, self.clock.now + grace_s)
            training.asked = first, min(until, self.clock.now + grace_s)

    def alive(self, agent: Path) -> dict[Path, protocol.AttemptSpec]:
        return {each.folder: each.spec for each in self.live() if each.user == loop.user_name()}

    def age_s(self, folder: Path) -> float:
        training = self.trainings.get(folder)
        return self.clock.now - training.started_at if training and not training.exit else 0.0

    def shim(self, folder: Path) -> None:
        """No process."""

    def ended(self, folder: Path) -> protocol.Exit | None:
        training = self.trainings.get(folder)
        if training is None:
            return protocol.Exit(int(folder.name), None, "not_started", "its agent died first")
        return training.exit

    # What trainings do

    def live(self) -> list[Training]:
        """Attempts that go on."""
        return [training for training in self.trainings.values() if training.exit is None]

    def report(self, training: Training, **line: Any) -> None:
        """Have a training report this, after what it can do; one that can do nothing is silent."""
        can = self._can[training.run_id]
        if not can:
            return
        directive = protocol.Directive.read(training.folder, training.spec.attempt)
        line |= {"applied_seq": directive.seq if directive is not None else 0}
        lines = [line] if training.has_spoken else [{"event": "hello", "can": can}, line]
        training.has_spoken = True
        with open(training.folder / "report.jsonl", "a", encoding="utf-8") as file:
            for each in lines:
                file.write(json.dumps({"time": self.clock.time()} | each) + "\n")

    def end(
        self, training: Training, code: int | None, reason: str | None = None, dirty_s: float = 0.0
    ) -> None:
        """End an attempt; its devices are empty so many seconds later."""
        training.exit = protocol.Exit(training.spec.attempt, code, reason)
        for device in training.amounts:
            until = self.clock.now + dirty_s
            self.gpus.dirty_until[device] = max(self.gpus.dirty_until[device], until)

    def work(self, seconds: float) -> None:
        """Let time pass: what shims were asked to end is over then, at the latest."""
        self.clock.now += seconds
        for training in self.live():
            if training.asked is not None and training.asked[1] <= self.clock.now:
                self.end(training, 143, training.asked[0])

    def unfinished(self) -> list[Task]:
        """Tasks that are not over."""
        return self.store.tasks([State.QUEUED, State.RUNNING])
