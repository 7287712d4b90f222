"""The run directory: the files through which agent, shim and training talk (stdlib only).

Layout of ``$RLSCHED_HOME/runs/<run_id>/``::

    environment.json          the submitter's environment, mode 0600 (secrets live only here)
    checkpoints/              written by the training through ``session.save``
    decisions.jsonl           the authoritative record of decisions
    warnings.json             what a person should know of a run that goes on all the same
    project/                  the checkout, when the project came from git or a zip file
    attempts/<n>/
        attempt.json          what the shim shall run (written by the agent)
        directive.json        agent -> training, replaced atomically
        report.jsonl          training -> agent, appended
        stop.json             agent -> shim: end this attempt
        void                  nobody may run this attempt any more (its shim died)
        shim.lock             held by the shim as long as it lives
        output.log            everything the attempt printed
        exit.json             how the attempt ended; complete or absent

Nothing read from these files is trusted: sizes are bounded, torn or wild lines are counted and
skipped, and no value reaches the caller with a type other than the documented one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

EXIT_RESUME = 75
"""Exit code of a training that stopped on request and can be resumed (``EX_TEMPFAIL``)."""

MAX_LINE_BYTES = 64 * 1024
MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_READ_BYTES = 1024 * 1024

ACTIONS = ("continue", "checkpoint", "stop")
CAPABILITIES = ("batch_size", "learning_rate", "resume")
EVENTS = ("hello", "checkpointed", "stopped", "oom", "done", "environment_failed")
NUMBERS = (
    "time",
    "step",
    "epoch",
    "samples",
    "loss",
    "grad_norm",
    "grad_sqr",
    "grad_var",
    "batch_size",
    "learning_rate",
    "progress",
    "input_wait",
    "applied_seq",
    "nonfinite_losses",
    "memory_bytes",
    "dataset_size",
    "drop_last",
)
TEXTS = ("optimizer",)


def attempt_dir(run_dir: Path, number: int) -> Path:
    """Folder of attempt ``number`` of the run whose directory is ``run_dir``."""
    return run_dir / "attempts" / str(number)


def write_json(path: Path, value: Any, mode: int = 0o600) -> None:
    """Replace ``path`` by the JSON of ``value``: complete or unchanged, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None when it is absent, torn, too large or no object."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_JSON_BYTES:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Directive:
    """What the agent asks of a training (``directive.json``).

    Attributes:
        attempt: The attempt that is meant; a training of another attempt ignores it.
        seq: Grows by one with each directive of the attempt; 0 is the one it starts with.
        batch_size: Global batch size in samples, or None to leave the training's own.
        lr_scale: Final factor on what the user's own schedule says (1.0 changes nothing).
        gpus: Device count the run holds.
        action: ``continue``, ``checkpoint`` (save now) or ``stop`` (save and leave with 75).
        reason: One sentence for people.
    """

    attempt: int
    seq: int = 0
    batch_size: int | None = None
    lr_scale: float = 1.0
    gpus: int | None = None
    action: str = "continue"
    reason: str = ""

    def write(self, folder: Path) -> None:
        """Replace ``directive.json`` in the attempt's ``folder``."""
        write_json(folder / "directive.json", asdict(self))

    @classmethod
    def read(cls, folder: Path, attempt: int) -> Directive | None:
        """The directive in ``folder``; None when there is none for ``attempt`` or it is wild."""
        value = read_json(folder / "directive.json")
        if value is None or value.get("attempt") != attempt:
            return None
        seq, batch, scale = value.get("seq"), value.get("batch_size"), value.get("lr_scale")
        gpus, action = value.get("gpus"), value.get("action")
        if (
            not isinstance(seq, int)
            or not _is_count(seq)
            or action not in ("continue", "checkpoint", "stop")
        ):
            return None
        if batch is not None and not (_is_count(batch) and batch > 0):
            return None
        if not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 0:
            return None
        if gpus is not None and not _is_count(gpus):
            return None
        return cls(attempt, seq, batch, float(scale), gpus, action, str(value.get("reason", "")))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


@dataclass(frozen=True)
class Report:
    """One line of ``report.jsonl``; what a training did not say is absent.

    Facts about the training as a whole (``dataset_size``, ``drop_last``, ``optimizer``) stand once,
    in the first line after the training knew them: keep them. All other values are of their line:

    - ``loss``: the mean of the finite losses of the steps since the line before (on a GPU one
      step's); a NaN or infinity when there was no finite one. ``nonfinite_losses`` counts the
      steps of these whose loss was NaN or infinite; absent when there was none.
    - ``grad_sqr``, ``grad_var``: unbiased estimates of the squared norm of the true gradient and
      of the trace of the covariance of one sample's gradient, so single values of ``grad_sqr``
      may be below zero: average each before dividing (noise scale = ``grad_var`` / ``grad_sqr``,
      in samples). ``grad_norm``: norm of one step's gradient.
    - ``memory_bytes``: most that was allocated on the GPU since the line before.
    - ``progress``: fraction of the training that is done, 0 to 1.
    - ``dataset_size``: samples of an epoch. ``drop_last``: 1 when a last batch that is not full
      is left out, else 0.

    Attributes:
        event: One of ``EVENTS``, or None for a plain progress line.
        can: What the training can do (subset of ``CAPABILITIES``; with ``hello``).
        numbers: Finite numbers by name, a subset of ``NUMBERS``.
        texts: Short texts by name, a subset of ``TEXTS``. ``optimizer`` is ``sgd``, ``adam`` (all
            that divide by a running size of the gradient) or a class name in lower case.
        metrics: Finite values of the training's own metrics (``session.report``).
        nonfinite: Names whose value was NaN or infinite: never passed on, only counted.
        text: ``message`` of an event (a reason), at most 2,000 characters.
    """

    event: str | None = None
    can: frozenset[str] = frozenset()
    numbers: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    nonfinite: frozenset[str] = frozenset()
    text: str = ""


def parse_report(line: bytes) -> Report | None:
    """Read one line of ``report.jsonl``; None when it is torn or not a report."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    event = value.get("event")
    if event is not None and event not in EVENTS:
        return None
    can = value.get("can")
    own = value.get("metrics")
    numbers, bad = _finite({k: value[k] for k in NUMBERS if k in value})
    metrics, bad_metrics = _finite(own if isinstance(own, dict) else {})
    return Report(
        event=event,
        can=frozenset(c for c in CAPABILITIES if isinstance(can, list) and c in can),
        numbers=numbers,
        texts={k: value[k][:100] for k in TEXTS if isinstance(value.get(k), str)},
        metrics=metrics,
        nonfinite=frozenset(bad | bad_metrics),
        text=str(value.get("message", ""))[:2000],
    )


def _finite(values: Mapping[str, Any]) -> tuple[dict[str, float], set[str]]:
    finite: dict[str, float] = {}
    bad: set[str] = set()
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            finite[name] = number
        else:
            bad.add(name)
    return finite, bad


class ReportReader:
    """Reads ``report.jsonl`` as it grows, a bounded piece at a time.

    Attributes:
        skipped: Lines so far that were torn, wild or longer than ``MAX_LINE_BYTES``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.skipped = 0

    def poll(self) -> Iterator[Report]:
        """Yield the reports that were completed since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(MAX_READ_BYTES)
        except OSError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b"\0"  # the rest of this line is dropped with it, as one wild line
        for line in lines:
            if not line.strip():
                continue
            report = parse_report(line) if len(line) <= MAX_LINE_BYTES else None
            if report is None:
                self.skipped += 1
            else:
                yield report


@dataclass(frozen=True)
class Exit:
    """How an attempt ended (``exit.json``), as the shim saw it.

    Attributes:
        attempt: The attempt's number.
        code: Exit code of the main process (128 + N when signal N ended it), None when it
            never started.
        reason: None when the process ended by itself, else why the shim ended it or could not
            start it: ``device_busy``, ``start_failed``, or the reason in ``stop.json``.
        message: One sentence for people.
        killed: Processes that had to be killed after the grace period.
        started_at: Seconds since the epoch.
        ended_at: Seconds since the epoch.
    """

    attempt: int
    code: int | None
    reason: str | None = None
    message: str = ""
    killed: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> Exit | None:
        """The ending of the attempt in ``folder``; None while there is none."""
        value = read_json(folder / "exit.json")
        if value is None:
            return None
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{k: v for k, v in value.items() if k in known})
        except TypeError:
            return None


@dataclass(frozen=True)
class AttemptSpec:
    """What the shim shall run (``attempt.json``).

    Attributes:
        run_id: The MLflow run.
        attempt: Number of the attempt.
        argv: Command of the main process.
        cwd: Its working directory.
        env: Variables set above those of ``environment.json``.
        locks: Device locks to take: ``[{"device", "amount", "parent"}]``, amount in 1..100.
        lock_dir: Host-wide folder of the device locks.
        grace_s: Seconds between TERM and KILL.
        parent_attempt_dir: For a nested run that shares devices: end when this attempt ends.
        container: Name of the Docker container to remove at the end, or None.
        agent_argv: Command that starts an agent for the store.
        agent_dir: Folder with the agent's lock (see ``daemon``).
        data_limit_bytes: Most private memory that each of its processes may reserve, or None.
    """

    run_id: str
    attempt: int
    argv: list[str]
    cwd: str
    env: dict[str, str]
    locks: list[dict[str, Any]]
    lock_dir: str
    grace_s: float
    parent_attempt_dir: str | None
    container: str | None
    agent_argv: list[str]
    agent_dir: str
    data_limit_bytes: int | None = None

    def write(self, folder: Path) -> None:
        """Write ``attempt.json`` into the attempt's ``folder``."""
        write_json(folder / "attempt.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> AttemptSpec:
        """Read ``attempt.json``.

        Raises:
            ValueError: The file is absent or not a specification.
        """
        value = read_json(folder / "attempt.json")
        try:
            return cls(**(value or {}))
        except TypeError as error:
            raise ValueError(f"{folder / 'attempt.json'} is not an attempt: {error}") from error
