"""The decisions on one running attempt: what was measured, what follows, and its record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mlflow_rlsched import decision_log
from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.agent.preemption import PREEMPTED
from mlflow_rlsched.agent.ranking import RESIZED
from mlflow_rlsched.agent.telemetry import Sample
from mlflow_rlsched.agent.turns import QUANTUM_OVER, TURN_OVER
from mlflow_rlsched.agent.usage import price, uses
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.devices.interface import Device
from mlflow_rlsched.learning.transitions import transition_of, transitions_of
from mlflow_rlsched.policy.action import Action, Setting, resize
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.policy.decision import Decider, Decision
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Budget, Interval
from mlflow_rlsched.policy.limits import Limits, limits_of
from mlflow_rlsched.policy.memory import MemoryNeed, memory_need
from mlflow_rlsched.policy.pacing import FIRST_S
from mlflow_rlsched.protocol import Directive, Report
from mlflow_rlsched.store import Task, Transition

RESTART_COST_S = 30.0
"""What a change of the devices is taken to cost until one was measured."""

ACKNOWLEDGED_WITHIN_S = 60.0
"""How long a decision waits for a training that has not yet applied the last one."""


def resumed_setting(task: Task, config: RunConfig) -> Setting:
    """What the next attempt of a task starts with: what was decided last."""
    record = decision_log.last(Path(task.spec.run_dir))
    if record is None:
        return Setting(config.gpus.initial, task.batch_size)
    setting = Setting(**record["setting"])
    # The agent may have died after this ending and before its record.
    if task.exit_reason != "oom" or task.batch_size in (None, setting.batch_size):
        return setting
    return _resized(setting, task.batch_size, record["training"])


class Tuning:
    """Collects what is measured of an attempt and decides on its setting when it is time.

    Args:
        folder: The attempt's directory.
        number: Number of the attempt.
        config: The run's configuration.
        devices: What it holds.
        gpus: How many of its ``gpus`` that is.
        memory_total: Memory of the host, bytes: what a training on the CPU may use.
        policies: Who may decide.

    Attributes:
        setting: What is in force.
        can: What the training can do; None until it has said so.
        record: The last decision on record, or None.
        declined: Whether it left devices alone when it last might have had more.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        config: RunConfig,
        devices: Sequence[Device],
        gpus: int,
        memory_total: int,
        policies: Policies,
    ) -> None:
        self._policies = policies
        self._folder = folder
        self._run_dir = folder.parent.parent
        self._number = number
        self._leaves, self._told, self._asked_at = False, "", time.monotonic()
        self._config = config
        self._devices = devices
        self._gpus = gpus
        # A nested run uses the devices of its parent, and cannot have more.
        self._elastic = bool(devices) and config.gpus.are_elastic
        self._memory_total = memory_total
        self.record = decision_log.last(self._run_dir)
        record = self.record or {}
        self._training: dict[str, Any] = record.get("training", {})
        self.can: frozenset[str] | None = None
        self.declined = False
        self._has_spoken = False
        self._seq, self.setting = self._in_force(record)
        self._applied = self._seq
        # What passes before a training speaks is no training time.
        self._trained_s: float = record.get("elapsed_s", 0.0)
        history = History.from_json(record["history"]) if record else None
        policy = policies.of(config, self._run_dir.name)
        self._decider = Decider(self._limits(), policy, config.reward, history)
        # An agent that adopts the attempt reads again what the last decision rests on.
        same = record.get("attempt") == number
        self._known_until: float = record["time"] if same else -math.inf
        every = config.decision_interval_s
        self._next_s = FIRST_S if isinstance(every, str) else every
        self._begin_interval()
        self._resized_at: float | None = None
        if record.get("attempt", number) != number:
            if _resizes(record):
                # The pause is what the decision cost: it belongs to its interval.
                self._resized_at = record["time"]
                self._interval_at -= max(0.0, time.time() - record["time"])
            else:
                self._decider.history = self._decider.history.interrupted()

    def _in_force(self, record: dict[str, Any]) -> tuple[int, Setting]:
        """Sequence number and setting of the last directive, which is written if it is not."""
        directive = Directive.read(self._folder, self._number) or Directive(self._number)
        if record and record["attempt"] == self._number and record["seq"] > directive.seq:
            setting = Setting(**record["setting"])
            self._direct(record["seq"], setting, record["reason"])
            return record["seq"], setting
        factor = Setting(**record["setting"]).lr_factor if record else directive.lr_scale
        gpus = self._gpus if directive.gpus is None else directive.gpus
        self._leaves, self._told = directive.action == "stop", directive.reason
        return directive.seq, Setting(gpus, directive.batch_size, factor, directive.lr_scale)

    # What is measured

    def observe(self, report: Report) -> None:
        """Take in what the training reported, or logged where it does not report."""
        numbers = report.numbers
        self._has_spoken = True
        if numbers.get("time", math.inf) > self._known_until:
            self._reports.append(report)
        self._applied = int(numbers.get("applied_seq", self._applied))
        told: dict[str, Any] = {
            name: int(numbers[name]) for name in ("dataset_size", "drop_last") if name in numbers
        }
        told |= report.texts
        if report.event == "hello":
            self.can = report.can
            told["can"] = sorted(report.can)
            self._spoke_at = time.monotonic()
            if self._resized_at is None:
                self._interval_at = self._spoke_at  # what came before it was no training
            elif "time" in numbers:
                told["restart_s"] = max(0.0, numbers["time"] - self._resized_at)
            told |= self._initial(report)
        if "batch_size" in numbers and numbers["batch_size"] >= 1:
            self.setting = replace(self.setting, batch_size=int(numbers["batch_size"]))
        if told:
            self._training = {**self._training, **told}
            self._decider.limits = self._limits()

    def caught_up(self) -> None:
        """Say that what is reported from now on is news."""
        self._known_until = -math.inf

    def _initial(self, hello: Report) -> dict[str, Any]:
        """Batch size and learning rate of the training when nothing is scheduled."""
        told: dict[str, Any] = {}
        batch = self._config.initial_batch_size or self._training.get("batch_size")
        batch = batch or hello.numbers.get("batch_size")
        if batch:
            told["batch_size"] = int(batch)
        rate = hello.numbers.get("learning_rate")
        # Read again by a later agent, an old hello does not go with the scale of today.
        if rate and "learning_rate" not in self._training:
            told["learning_rate"] = rate / self.setting.lr_scale
        return told

    def sample(self, sample: Sample) -> None:
        """Take in a sample of the devices and processes."""
        self._samples.append(sample)

    def _limits(self) -> Limits:
        told = self._training
        return limits_of(
            self._config,
            batch_size=told.get("batch_size"),
            learning_rate=told.get("learning_rate"),
            optimizer=told.get("optimizer"),
            dataset_size=told.get("dataset_size"),
            drop_last=bool(told["drop_last"]) if "drop_last" in told else None,
            gpus_are_live=self._elastic,
            restart_cost_s=told.get("restart_s", RESTART_COST_S),
            price=price(self._config.prices, self._devices),
        )

    def _begin_interval(self) -> None:
        self._interval_at = self._spoke_at = time.monotonic()
        self._reports: list[Report] = []
        self._samples: list[Sample] = []

    def _interval(
        self, pressure: float, free: int | None = None, ending: str | None = None
    ) -> Interval:
        now = time.monotonic()
        network = [s.network_bytes for s in self._samples if s.network_bytes is not None]
        duration = max(now - self._interval_at, 1e-3)
        cores = [s.cores for s in self._samples if s.cores is not None]
        slots = max(1, sum(device.kind == "cpu" for device in self._devices))
        metric = self._config.objective.metric
        return Interval(
            duration_s=duration,
            elapsed_s=self._trained_s + duration,
            setting=self.setting,
            devices=uses(
                self._config, self._devices, self._gpus, self._samples, self._memory_total
            ),
            network_rate=(network[-1] - network[0]) / duration if len(network) > 1 else None,
            host_cpu=min(1.0, fmean(cores) / slots) if cores else None,
            reports=self._reports,
            objective=[r.metrics[metric] for r in self._reports if metric in r.metrics],
            can=self.can or frozenset(),
            pressure=pressure,
            free_gpus=free,
            acknowledged=self._applied == self._seq,
            oom_batch=self.setting.batch_size if ending == "oom" else None,
            ending=ending,
        )

    # What follows

    def is_due(self) -> bool:
        """Whether it is time for a decision: something was reported for long enough."""
        waited = time.monotonic() - self._spoke_at
        if not self._reports or waited < self._next_s or self._leaves:
            return False
        if self.can is None and "can" in self._training:
            return False  # it spoke in an earlier attempt, and will again
        return self._applied == self._seq or waited > self._next_s + ACKNOWLEDGED_WITHIN_S

    @property
    def is_elastic(self) -> bool:
        """Whether the number of devices may change, and the training can go on after that."""
        return self._elastic and "resume" in (self.can or frozenset())

    @property
    def least_gpus(self) -> int:
        """Fewest ``gpus`` that it can go on with."""
        return self._limits().gpus_min if self.is_elastic else self._gpus

    @property
    def leaves(self) -> str | None:
        """Why the training was asked to stop, as the class of its ending; None if it was not."""
        if not self._leaves:
            return None
        if self.setting.gpus != self._gpus:
            return RESIZED
        return QUANTUM_OVER if self._told == TURN_OVER else PREEMPTED

    @property
    def leaves_with(self) -> int:
        """How many ``gpus`` it goes on with, at least, once it left."""
        return self.setting.gpus if self.leaves == RESIZED else self.least_gpus

    def leaves_s(self) -> float:
        """Seconds since it was asked to, or since this agent knows of it."""
        return time.monotonic() - self._asked_at if self._leaves else 0.0

    def ask_to_stop(self, reason: str) -> None:
        """Ask the training to save and to leave, to be resumed as it is.

        Raises:
            OSError: The directive cannot be written.
        """
        self._seq += 1
        self._direct(self._seq, self.setting, reason, stop=True)

    @property
    def history(self) -> History:
        """What the next decision builds on."""
        return self._decider.history

    @property
    def limits(self) -> Limits:
        """What bounds the setting."""
        return self._decider.limits

    def decide(
        self, pressure: float, free: int | None = None, budget: Budget | None = None
    ) -> Outcome:
        """Decide, record it, and tell the training if anything changes.

        Args:
            pressure: Devices that waiting tasks ask for, over the devices of the pool.
            free: How many more the run may take now, or None where it has what it has.
            budget: What the pool gives it, where it has looked at it.

        Raises:
            OSError: The record or the directive cannot be written.
        """
        policy = self._policies.of(self._config, self._run_dir.name)
        self._decider.others = self._policies.others(policy, self._config)
        if not self.is_elastic and not (self.can or frozenset()) & {"batch_size", "learning_rate"}:
            policy = Fixed("nothing of this training can be changed while it runs", policy)
            self._decider.others = ()  # nobody could have done anything, nor learns from it
        self._decider.policy = policy
        interval = replace(self._interval(pressure, free), budget=budget)
        outcome = self._conclude(self._decider.decide(interval), budget=budget)
        if free and (budget is None or budget.gpus > interval.setting.gpus):
            self.declined = self.setting.gpus <= interval.setting.gpus
        return outcome

    def transitions(self) -> list[Transition]:
        """The last ones on record: an agent that died may not have got round to keep them."""
        records = decision_log.tail(self._run_dir)
        return transitions_of(self._run_dir.name, records, self._config.reward)

    def memory_need(self) -> MemoryNeed:
        """What was measured of the attempt's memory."""
        return memory_need(self._decider.history, self._interval(0.0), self._decider.limits)

    def close(
        self, reason: str, ending: str | None, batch_size: int | None = None
    ) -> Outcome | None:
        """Record what was measured until the attempt ended; None when that was nothing.

        Args:
            reason: Why it ended, for people.
            ending: One of ``interval.ENDINGS``, or None for an attempt that is merely over.
            batch_size: Batch size to go on with after running out of memory, or None.

        Raises:
            OSError: The record cannot be written.
        """
        if not self._has_spoken and batch_size is None:
            return None
        if self.record and self.record["ended"] and self.record["attempt"] == self._number:
            return None  # an agent that died since then has done it
        policy = self._decider.policy
        self._decider.policy = Fixed(reason, policy)
        goes_on = ending is None or ending == "oom"
        self._decider.others = [policy, *self._decider.others] if goes_on else ()
        decision = self._decider.decide(self._interval(0.0, ending=ending))
        if batch_size is not None:
            before = self.setting
            action = Action(batch_factor=batch_size / (before.batch_size or batch_size))
            smaller = _resized(before, batch_size, self._training)
            history = replace(decision.history, action=action)
            decision = replace(decision, setting=smaller, action=action, vetoes=(), history=history)
        return self._conclude(decision, ended=True)

    def _conclude(
        self, decision: Decision, ended: bool = False, budget: Budget | None = None
    ) -> Outcome:
        before, setting = self.setting, decision.setting
        changed = setting != before
        record = decision.to_json() | {
            "attempt": self._number,
            "ended": ended,
            "time": time.time(),
            "seq": self._seq + changed,
            "reason": decision.reason,
            "training": self._training,
            "budget": None if budget is None else asdict(budget),
        }
        decision_log.append(self._run_dir, record)
        if changed:
            self._direct(self._seq + 1, setting, decision.reason)
            self._seq += 1
        transition = None
        if self.record is not None:
            weights = self._config.reward
            transition = transition_of(self._run_dir.name, self.record, record, weights)
        outcome = Outcome(
            decision,
            changed,
            record,
            self._reported(),
            self._is_first_of_its_policy(decision),
            transition,
        )
        self.setting, self.record, self._next_s = setting, record, decision.next_s
        self._trained_s = decision.elapsed_s
        self._begin_interval()
        return outcome

    def _is_first_of_its_policy(self, decision: Decision) -> bool:
        before = self.record or {}
        return (decision.policy, decision.version) != (before.get("policy"), before.get("version"))

    def _direct(self, seq: int, setting: Setting, reason: str, stop: bool = False) -> None:
        self._leaves, self._told = stop or setting.gpus != self._gpus, reason
        self._asked_at = time.monotonic()
        action = "stop" if self._leaves else "continue"
        Directive(
            self._number, seq, setting.batch_size, setting.lr_scale, setting.gpus, action, reason
        ).write(self._folder)

    def _reported(self) -> dict[str, float]:
        """What the training said of itself in the interval, for its charts."""
        values: dict[str, float] = {}
        for report in self._reports:
            for name in ("batch_size", "learning_rate"):
                if name in report.numbers:
                    values[name] = report.numbers[name]
        losses = [r.numbers["loss"] for r in self._reports if "loss" in r.numbers]
        if losses:
            values["loss"] = fmean(losses)
        return values


@dataclass(frozen=True)
class Outcome:
    """A decision that was made and recorded.

    Attributes:
        decision: The decision.
        changed: Whether the training was told something new.
        record: Its record.
        reported: Loss, batch size and learning rate in the interval, as far as reported.
        first: Whether it is the first one of its policy version.
        transition: What the decision before it led to; None for the first.
    """

    decision: Decision
    changed: bool
    record: dict[str, Any]
    reported: dict[str, float]
    first: bool
    transition: Transition | None


def _resizes(record: Mapping[str, Any]) -> bool:
    """Whether a decision changed the number of devices."""
    return not record["ended"] and record["setting"]["gpus"] != record["before"]["gpus"]


def _resized(setting: Setting, batch_size: int | None, training: Mapping[str, Any]) -> Setting:
    """``setting`` with another batch size, and the rate that goes with it if that can change."""
    if "learning_rate" not in training.get("can", ()):
        return replace(setting, batch_size=batch_size)
    return resize(setting, batch_size, training.get("batch_size"), training.get("optimizer"))
