"""What a store holds: tasks, attempts, leases, agents, quarantined devices and transitions.

Times are seconds since the epoch (float).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class State(str, Enum):
    """State of a task."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def final(self) -> bool:
        """Whether a task in this state is over."""
        return self in (State.FINISHED, State.FAILED, State.KILLED)


@dataclass(frozen=True)
class TaskSpec:
    """What was submitted; never changes.

    Attributes:
        run_id: MLflow run, and the task's key.
        experiment_id: MLflow experiment of the run.
        tracking_uri: Absolute tracking URI without user name or password.
        user: Operating-system user that submitted.
        host: Host that the task is pinned to (local projects), or None.
        run_dir: Absolute path of the run directory.
        project_uri: As the user wrote it.
        work_dir: Absolute folder of the project to run in.
        entry_point: Name of the entry point.
        params: The user's parameters as given (not shell-quoted).
        recorded_params: All parameters as the MLflow run holds them, defaults included.
        command: Shell command of the entry point, or None when MLflow has to prepare an
            environment or download parameters first.
        project_env: MLflow's reserved keys (``ENV_MANAGER``, ``DOCKER_ARGS``, …) for that
            preparation.
        docker: Whether the project runs in a Docker container.
        executable: The submitter's Python.
        device_limit: Devices that the submitter's ``CUDA_VISIBLE_DEVICES`` allowed (indices or
            UUIDs as written), or None for all.
        parent_run_id: Run that this one is nested in.
        parent_attempt_dir: Attempt of the parent whose devices it uses, taking none of its
            own; None when it is not nested or queues for itself.
        config: The resolved configuration, as ``RunConfig.model_dump(mode="json")``.
        label: Name of the run for people.
    """

    run_id: str
    experiment_id: str
    tracking_uri: str
    user: str
    host: str | None
    run_dir: str
    project_uri: str
    work_dir: str
    entry_point: str
    params: Mapping[str, str]
    recorded_params: Mapping[str, str]
    command: str | None
    project_env: Mapping[str, Any]
    docker: bool
    executable: str
    device_limit: Sequence[str] | None
    parent_run_id: str | None
    parent_attempt_dir: str | None
    config: Mapping[str, Any]
    label: str


@dataclass(frozen=True)
class Task:
    """A submitted run and where it stands.

    Attributes:
        spec: What was submitted.
        state: Where it stands.
        priority: Larger goes first.
        submitted_at: When it was submitted, or queued again by ``retry``.
        order: Grows with each submission: age, whatever the clock did; ``retry`` keeps it, and who
            has had a turn gets a new one.
        attempt: Number of the current or last attempt; 0 before the first.
        retries: Attempts so far that counted against ``max_retries``.
        ooms: Attempts so far that ended out of memory.
        not_before: Not started before this time (a retry's delay).
        batch_size: Batch size to start with instead of the submitted one (after OOM), or None.
        gpus: Devices to go on with instead of the configured count (after a resize), or None.
        cancel_by: Who asked to cancel it, or None.
        exit_reason: Class of the last ending (``user_error``, ``oom``, …), or "".
        message: One sentence for people on the last ending or on why it waits.
        started_at: Start of the first attempt, or None.
        ended_at: When it became final, or None.
        samples: Device samples logged so far: the step of the next one.
        tracked: Whether its final status has reached the tracking server.
        proofs: Who asked for it, for its priority and for its end (``trust``), by what they prove.
    """

    spec: TaskSpec
    state: State
    priority: int
    submitted_at: float
    order: int
    attempt: int = 0
    retries: int = 0
    ooms: int = 0
    not_before: float = 0.0
    batch_size: int | None = None
    gpus: int | None = None
    cancel_by: str | None = None
    exit_reason: str = ""
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    samples: int = 0
    tracked: bool = False
    proofs: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The MLflow run, and the task's key."""
        return self.spec.run_id


@dataclass(frozen=True)
class DeviceShare:
    """A device, or a part of it.

    Attributes:
        device: UUID, or ``cpu-<i>``.
        amount: Hundredths of the device, 1 to 100.
    """

    device: str
    amount: int = 100


@dataclass(frozen=True)
class Lease:
    """A task's hold on a device, from ``claim`` until ``release``."""

    host: str
    share: DeviceShare
    run_id: str
    attempt: int
    since: float


@dataclass(frozen=True)
class Outlook:
    """What its agent tells others of a running attempt, where users share a store.

    Attributes:
        least: Devices of those that it holds which it needs to go on.
        resumes: Whether it goes on from a checkpoint after a stop.
        leaves: Whether it was asked to stop already.
        ends_at: When it is expected to end, or None when that is not known.
        basis: What that rests on, for people.
    """

    least: int
    resumes: bool
    leaves: bool
    ends_at: float | None
    basis: str


@dataclass(frozen=True)
class Attempt:
    """One launch of a task.

    Attributes:
        run_id: The task.
        number: 1 for the first.
        host: Where it runs.
        devices: What it was given.
        started_at: When it was claimed.
        heartbeat_at: When its agent last vouched for it.
        ended_at: When it ended, or None.
        exit_code: Exit code of the main process, or None.
        reason: Class of its ending, or "".
        message: One sentence for people.
        outlook: What its agent tells the others, or None.
        way_for: Waiting run of another user for which it was asked to make way, or None.
        way_at: When that was asked, or None.
    """

    run_id: str
    number: int
    host: str
    devices: Sequence[DeviceShare]
    started_at: float
    heartbeat_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    outlook: Outlook | None = None
    way_for: str | None = None
    way_at: float | None = None


@dataclass(frozen=True)
class AgentRecord:
    """A living (or lost) agent: ``devices`` is its inventory as JSON, for reading commands."""

    host: str
    user: str
    version: str
    started_at: float
    heartbeat_at: float
    devices: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Quarantine:
    """A device that is not offered until a time, and why."""

    host: str
    device: str
    reason: str
    until: float
    failures: int


@dataclass(frozen=True)
class Ending:
    """How an attempt ended and what becomes of its task.

    Attributes:
        state: Next state of the task: QUEUED to try again, or a final one.
        reason: Class of the ending.
        message: One sentence for people.
        exit_code: Exit code of the main process, or None.
        not_before: With QUEUED: earliest next start.
        counts: Whether it counts against ``max_retries``.
        oom: Whether it counts as an out-of-memory ending.
        batch_size: Batch size of the next attempt, or None to keep the task's.
        gpus: Devices of the next attempt, or None to keep the task's.
        is_last: With QUEUED: whether it comes after all others now, as if it were the youngest.
    """

    state: State
    reason: str
    message: str
    exit_code: int | None = None
    not_before: float = 0.0
    counts: bool = False
    oom: bool = False
    batch_size: int | None = None
    gpus: int | None = None
    is_last: bool = False


@dataclass(frozen=True)
class Transition:
    """One decision's outcome, as data for learning.

    Attributes:
        run_id: The run.
        decision: Number of the decision within the run; unique with ``run_id``.
        data: JSON object (``learning.experience``).
        key: Whether it is a key transition (OOM, restart, divergence, large reward change).
        learnable: Whether it has all that a learner needs.
    """

    run_id: str
    decision: int
    data: Mapping[str, Any] = field(default_factory=dict)
    key: bool = False
    learnable: bool = False
