"""Why an attempt ended, and what becomes of its task (pure functions).

Only what can succeed is tried again: a training that was killed, lost or hit a failing device,
and one that ran out of memory, with a smaller batch. A user's own error is not.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
from dataclasses import dataclass, field, replace

from mlflow_rlsched.agent.preemption import PREEMPTED
from mlflow_rlsched.agent.ranking import RESIZED
from mlflow_rlsched.agent.turns import QUANTUM_OVER
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.policy.memory import MemoryNeed, after_oom
from mlflow_rlsched.protocol import EXIT_RESUME, Exit
from mlflow_rlsched.store import Ending, State, Task

RETRIED = frozenset({"killed", "lost", "lost_heartbeat", "device_fault", "stopped", "unreachable"})
"""Classes of endings that are tried again, up to ``max_retries`` times."""

FIRST_SIGNAL_CODE = 129
JITTER = (0.8, 1.2)
BUSY_DELAY_S = 1.0
MAX_QUOTED = 300
"""Characters of the last line of the output in a message."""

_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: can't allocate memory|^MemoryError|Unable to allocate .* for an array"
    r"|std::bad_alloc|Cannot allocate memory",
    re.MULTILINE,
)
_DEVICE = re.compile(
    r"uncorrectable ECC|GPU is lost|fallen off the bus|CUDA-capable device\(s\) is/are busy"
    r"|CUDA error: (unspecified launch failure|unknown error|hardware|device unavailable)"
    r"|NCCL (WARN|error).*(unhandled cuda error|remote process exited)|NVRM: Xid"
)
_NETWORK = re.compile(
    r"timed out|Temporary failure|Connection (reset|refused|aborted|error)|ConnectionError"
    r"|NewConnectionError|Name or service not known|50[234] Server Error",
    re.IGNORECASE,
)
_SIGNALS = {129: "SIGHUP", 130: "SIGINT", 137: "SIGKILL", 143: "SIGTERM"}


@dataclass(frozen=True)
class Evidence:
    """What is known of an attempt that ended.

    Attributes:
        exit: What the shim said, or stands for it when the shim was killed.
        done: Whether the training reported that it was done.
        stopped: Whether it reported that it stopped as it was asked to.
        oom: What the training said when it ran out of memory, or None.
        environment: Why its environment could not be prepared, or None.
        output: The last lines that it printed.
        device_lost: Why one of its devices is out of order, or None.
        batch_size: Batch size in use, or None when it has no batch size that can be changed.
        memory: What was measured of its memory.
        leaves: Why it was asked to save and leave, as a class of endings; None if it was not.
        gpus: Number of devices to go on with, or None to keep the configured one.
    """

    exit: Exit
    done: bool = False
    stopped: bool = False
    oom: str | None = None
    environment: str | None = None
    output: str = ""
    device_lost: str | None = None
    batch_size: int | None = None
    memory: MemoryNeed = field(default_factory=MemoryNeed)
    leaves: str | None = None
    gpus: int | None = None


def classify(evidence: Evidence) -> tuple[str, str]:
    """The class of an ending and one sentence on it; ``finished`` for a success."""
    ending = evidence.exit
    code = ending.code
    if evidence.done and _succeeded(ending):
        return "finished", ""
    if ending.reason == "device_fault" and evidence.device_lost is not None:
        return ending.reason, evidence.device_lost
    if ending.reason is not None:
        return ending.reason, ending.message or _asked(ending.reason)
    if code == 0 and evidence.leaves is None:  # one that was asked to stop says that it is done
        return "finished", ""
    if evidence.environment is not None:
        # What pip finds wrong after it could not reach an index stands in the output only.
        told = f"{evidence.environment}\n{evidence.output}"
        kind = "unreachable" if _NETWORK.search(told) else "environment_failure"
        return kind, f"the project's environment could not be prepared: {evidence.environment}"
    if evidence.oom is not None or _MEMORY.search(evidence.output):
        return "oom", evidence.oom or "out of memory"
    if evidence.device_lost is not None:
        return "device_fault", evidence.device_lost
    fault = _DEVICE.search(evidence.output)
    if fault is not None:
        return "device_fault", f"the device failed: {fault.group(0)}"
    if code in (0, EXIT_RESUME) or evidence.stopped:  # torchrun has a code of its own
        reason = evidence.leaves or "stopped"
        return reason, _asked(reason)
    if code in _SIGNALS:
        return "killed", f"it was ended by {_SIGNALS[code]} from outside"
    return "user_error", _exited(code, evidence.output)


def _exited(code: int | None, output: str) -> str:
    if code is not None and code >= FIRST_SIGNAL_CODE:
        with contextlib.suppress(ValueError):  # a large code of the program's own
            return f"it crashed with {signal.Signals(code - 128).name}"
    return f"it exited with code {code}{_last_line(output)}"


def _succeeded(ending: Exit) -> bool:
    """Whether a training that reported ``done`` may still count as a success.

    What kills the interpreter while it shuts down (libraries that abort in their destructors, a
    SIGKILL from outside) comes too late to undo the work; a non-zero exit code of its own choice
    does not.
    """
    if ending.reason in (None, "lost"):
        return ending.code in (0, None) or ending.code >= FIRST_SIGNAL_CODE
    return ending.reason == "cancelled" and ending.code == 0


def _asked(reason: str) -> str:
    return {
        "lost_heartbeat": "no report, and no use of CPU or GPU, for the heartbeat time",
        "timeout": "it ran longer than timeout_s",
        "cancelled": "cancelled",
        "oom": "it used more memory than its cap",
        "parent_ended": "the run that it was nested in has ended",
        "run_deleted": "the MLflow run was deleted",
        PREEMPTED: "its devices were needed by another task",
        "stopped": "it stopped to be resumed",
        QUANTUM_OVER: "its turn was over, others have theirs",
        RESIZED: "it goes on with another number of devices",
    }.get(reason, reason.replace("_", " "))


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f": {_shortened(lines[-1])}" if lines else ""


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_QUOTED else line[: MAX_QUOTED - 1] + "…"


def decide(
    task: Task, config: RunConfig, evidence: Evidence, now: float, jitter: float | None = None
) -> Ending:
    """What becomes of a task whose current attempt ended; it goes on with ``evidence.gpus``.

    Args:
        task: The task as the store has it.
        config: Its configuration.
        evidence: What is known of the attempt.
        now: Seconds since the epoch.
        jitter: Factor on the retry delay; by default random within ``JITTER``, so that tasks that
            died together do not come back together.
    """
    ending = _decide(task, config, evidence, now, jitter)
    return replace(ending, gpus=evidence.gpus) if ending.state is State.QUEUED else ending


def _decide(
    task: Task, config: RunConfig, evidence: Evidence, now: float, jitter: float | None
) -> Ending:
    reason, text = classify(evidence)
    # Trainings print anything, and not every database takes it.
    message = "".join(character if character.isprintable() else " " for character in text)
    code = evidence.exit.code
    if reason == "finished":
        return Ending(State.FINISHED, reason, message, code)
    if reason in ("cancelled", "parent_ended", "run_deleted"):
        by = f"cancelled by {task.cancel_by}" if task.cancel_by else message
        return Ending(State.KILLED, reason, by if reason == "cancelled" else message, code)
    if reason == "device_busy":
        return Ending(State.QUEUED, reason, message, code, not_before=now + BUSY_DELAY_S)
    if reason in ("not_started", PREEMPTED, RESIZED):
        return Ending(State.QUEUED, reason, message, code)
    if reason == QUANTUM_OVER:
        return Ending(State.QUEUED, reason, message, code, is_last=True)
    if reason == "oom":
        return _after_oom(task, config, evidence, message)
    if reason not in RETRIED:
        return Ending(State.FAILED, reason, message, code)
    if task.retries >= config.max_retries:
        tries = f" (tried {task.retries + 1} times)" if task.retries else ""
        return Ending(State.FAILED, reason, message + tries, code)
    delays = config.retry_delays_s
    delay = delays[min(task.retries, len(delays) - 1)]
    factor = random.uniform(*JITTER) if jitter is None else jitter  # noqa: S311
    return Ending(State.QUEUED, reason, message, code, not_before=now + delay * factor, counts=True)


def longest_delay(config: RunConfig) -> float:
    """The longest time, in seconds, that ``decide`` lets a task wait for its next attempt."""
    return max(BUSY_DELAY_S, JITTER[1] * max(config.retry_delays_s))


def _after_oom(task: Task, config: RunConfig, evidence: Evidence, message: str) -> Ending:
    """A smaller batch at once (its own budget, apart from retries), down to the floor."""
    batch, need = evidence.batch_size, evidence.memory
    code = evidence.exit.code
    if batch is None:
        text = f"{message}; it has no batch size that could be made smaller"
        return Ending(State.FAILED, "oom", text, code, oom=True)
    floor = max(1, config.batch_size.min or 1)
    size, text = after_oom(batch, task.ooms + 1, need.sample, need.base, need.limit, floor)
    if evidence.exit.reason == "oom":
        text = f"{text}; {message}"
    state = State.FAILED if size is None else State.QUEUED
    return Ending(state, "oom", text, code, oom=True, batch_size=size)
