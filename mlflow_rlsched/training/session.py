"""The training's end of the run directory."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

from mlflow_rlsched import protocol
from mlflow_rlsched.protocol import Directive
from mlflow_rlsched.training import distributed
from mlflow_rlsched.training.attempt import Attempt, Mail
from mlflow_rlsched.training.checkpoint import Checkpoints, Position
from mlflow_rlsched.training.gradients import GradientProbe
from mlflow_rlsched.training.knobs import Knobs
from mlflow_rlsched.training.memory import MemoryCap, device_memory
from mlflow_rlsched.training.oom import is_out_of_memory, when_uncaught
from mlflow_rlsched.training.optimizer import family, scale_steps
from mlflow_rlsched.training.reporter import InputWait, Losses, Reporter, Told, number

log = logging.getLogger("mlflow_rlsched.training")

LOOK_S = 0.2
REPORT_S = 1.0


class Session:
    """A training's connection to its scheduler; made by ``attach``.

    The first ``load``, ``step`` or ``report`` introduces the training to the scheduler: with the
    knobs that ``attach`` was given, and as one that can be resumed when that first call is
    ``load``. So call ``load`` before training starts, on every rank.

    Used as a context manager, leaving the block without an error means that the training is
    done; or, after ``should_stop`` was seen to be true, that it stopped (see ``leave``).

    Attributes:
        knobs: The values in force.
        steps: Optimizer steps so far, those before the loaded checkpoint included.
        samples: Samples so far, counted likewise.
        epoch: The epoch that was last reported (or loaded), or None.
    """

    def __init__(
        self, attempt: Attempt | None, batch_size: int | None, learning_rate: float | None
    ) -> None:
        self.knobs = Knobs(batch_size, learning_rate)
        self.steps = 0
        self.samples = 0
        self.epoch: float | None = None
        self._attempt = attempt
        self._base = replace(self.knobs)
        self._seq: int | None = None
        self._should_stop = self._stop_seen = self._save_asked = False
        self._introduced = self._joined = self._ended = False
        self._agreement: distributed.Agreement | None = None
        self._told = Told()
        self._total_samples: int | None = None
        self._losses = Losses()
        self._input = InputWait(time.monotonic())
        self._gradients: GradientProbe | None = None
        self._warned: set[str] = set()
        self._scaled: list[Any] = []
        self._memory_cap = MemoryCap(attempt.memory_cap if attempt is not None else None)
        self._memory_cap.enforce()
        self._look_at = self._report_at = math.inf
        if attempt is not None:
            self._look_at = self._report_at = 0.0
            self.knobs.gpus = attempt.gpus
            self._mail = Mail(attempt)
            self._reporter = Reporter(attempt.folder / "report.jsonl")
            self._checkpoints = Checkpoints(attempt.checkpoints, attempt.number)
            self._obey(self._mail.read())
            when_uncaught(self._note_uncaught)
            atexit.register(self._flush)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self._note_out_of_memory(error)
        elif self._stop_seen and not self._ended:
            self.leave()
        else:
            self.done()

    @property
    def should_stop(self) -> bool:
        """Whether to save and leave now, to be resumed later."""
        self._stop_seen |= self._should_stop
        return self._should_stop

    @property
    def should_save(self) -> bool:
        """Whether a checkpoint was asked for, alone or before a stop, and not yet saved."""
        return self._save_asked

    def step(self, *, loss: Any = None, samples: int | None = None) -> bool:
        """Count one optimizer step and, now and then, report and look for new knobs.

        Never waits for a GPU. With several ranks, every rank calls it equally often.

        Args:
            loss: The loss of this step: a number or a tensor of one element.
            samples: Samples of this step over all ranks; the batch size when not given.

        Returns:
            Whether the knobs changed.
        """
        count = (self.knobs.batch_size or 0) if samples is None else samples
        self.steps += 1
        self.samples += count
        if self._attempt is None:
            return False
        self._losses.add(loss)
        now = time.monotonic()
        if self._gradients is not None and self._gradients.armed:
            self._gradients.stepped(count, now)
        if now < self._look_at and self._agreement is None:
            return False
        return self._look(now, loss)

    def report(self, **values: Any) -> None:
        """Report metrics of the training's own, such as what the objective is.

        ``epoch``, ``progress`` (fraction of the whole, 0 to 1), ``grad_norm``, ``grad_sqr``,
        ``grad_var`` and ``input_wait`` (fraction of the time) are understood as such. A value
        that is no number is skipped with a warning. Waits for a GPU that holds a value.
        """
        for name, value in values.items():
            try:
                found = number(value)
            except TypeError as error:
                self._warn_once(f"session.report({name}=…) is skipped: {error}")
                continue
            self._told.metric(name, found)
            if name == "epoch":
                self.epoch = found
        now = time.monotonic()
        if now >= self._report_at:
            self._report(now, None)

    def describe(
        self,
        *,
        dataset_size: int,
        drop_last: bool,
        total_samples: int | None = None,
        optimizer: Any = None,
    ) -> None:
        """Say what the training reads; ``ElasticDataLoader`` does it by itself.

        Args:
            dataset_size: Samples of an epoch.
            drop_last: Whether a last batch that is not full is left out.
            total_samples: Samples of the whole training: from then on every report has the
                ``progress``.
            optimizer: One that ``apply`` cannot have, as it is not torch's.
        """
        self._told.fields({"dataset_size": dataset_size, "drop_last": int(drop_last)})
        if optimizer is not None:
            self._told.fields({"optimizer": family(optimizer)})
        self._total_samples = total_samples

    def waited(self, seconds: float) -> None:
        """Count time for which the training waited for its input.

        ``ElasticDataLoader`` tells it by itself; ``report(input_wait=…)`` has the last word.
        """
        self._input.add(seconds)

    def apply(self, optimizer: Any) -> None:
        """Multiply each parameter group's learning rate by ``lr_scale``, from now on.

        Of the first optimizer the kind is reported and, about once a second, the noise of its
        gradients (see ``gradients``).

        Call it once for each optimizer; calling it again changes nothing. The factor is there
        only while ``optimizer.step()`` runs, so schedulers and ``state_dict()`` keep the values
        of the user's own schedule.

        Raises:
            TypeError: It is no ``torch.optim.Optimizer``.
        """
        self._memory_cap.enforce()
        if not any(optimizer is known for known in self._scaled):
            scale_steps(optimizer, lambda: self.knobs.lr_scale)
            self._scaled.append(optimizer)
            if self._gradients is None:
                self._gradients = GradientProbe(optimizer)
                self._told.fields({"optimizer": family(optimizer)})

    def save(self, state: Any) -> bool:
        """Write a checkpoint: complete or absent, whenever the process is killed.

        The last two are kept. Only rank 0 writes.

        Args:
            state: With torch loaded, what ``torch.load(weights_only=True)`` reads back: tensors,
                numbers, text, and dicts and lists of them. Without torch, what JSON can hold.

        Returns:
            Whether this process wrote one: False outside a scheduled run, on other ranks, when
            another attempt has taken over, and when the disk does not take it (with a warning).

        Raises:
            TypeError: ``state`` holds something else.
        """
        self._save_asked = False
        if self._attempt is None or distributed.rank() != 0:
            return False
        position = Position(
            self.steps,
            self.samples,
            self.epoch,
            self.knobs.batch_size,
            self.knobs.learning_rate,
            self.knobs.lr_scale,
        )
        try:
            written = self._checkpoints.save(state, position, self._attempt.superseded)
        except OSError as error:
            log.warning(
                "mlflow-rlsched: no checkpoint could be written to %s (%s); "
                "the training goes on and the one before it stays",
                self._attempt.checkpoints,
                error.strerror or error,
            )
            return False
        if not written:
            self._obey(self._mail.read())
            return False
        self._write({"event": "checkpointed", **self._line()})
        return True

    def load(self) -> Any:
        """The state of the newest complete checkpoint, with its tensors on the CPU.

        ``steps``, ``samples`` and ``epoch`` go on from there. The knobs do not come from the
        checkpoint but from the scheduler (else from ``attach``): after running out of memory
        the old batch size must not return.

        Returns:
            What ``save`` was given; None at the first start and outside a scheduled run.
        """
        if self._attempt is None:
            return None
        state, found = None, self._checkpoints.load()
        if found is not None:
            state, position = found
            self.steps, self.samples, self.epoch = position.step, position.samples, position.epoch
        self._introduce(resume=True)
        return state

    def done(self) -> None:
        """Say that the training has reached its end."""
        self._end("done")

    def leave(self) -> NoReturn:
        """End the process as stopped on request, after ``save``, to be resumed later.

        Raises:
            SystemExit: Always, with code 75.
        """
        self._end("stopped")
        if self._agreement is not None:  # the first rank that ends has the others killed
            self._agreement.wait_for_all()
        raise SystemExit(protocol.EXIT_RESUME)

    def _look(self, now: float, loss: Any) -> bool:
        assert self._attempt is not None
        if not self._joined:
            self._joined = True
            self._agreement = distributed.Agreement.join(self._attempt.number, LOOK_S)
        if self._agreement is None:
            directive = self._mail.read()
        else:
            directive = self._agreement.step(self._mail.read)
        changed = self._obey(directive)
        if now >= self._report_at:
            self._report(now, loss)
        if self._gradients is not None:
            self._gradients.arm(now)
        self._look_at = min(now + LOOK_S, self._report_at)
        return changed

    def _obey(self, directive: Directive | None) -> bool:
        """Apply a directive; whether it changed the knobs."""
        if directive is None:
            return False
        if directive.action == "stop" and not self._should_stop:
            self._should_stop = True
            if directive.reason:
                log.warning("mlflow-rlsched: asked to stop: %s", directive.reason)
        if directive.seq == self._seq:
            return False
        self._seq = directive.seq
        self._save_asked = directive.action in ("checkpoint", "stop")
        return self.knobs.follow(directive, self._base)

    def _introduce(self, resume: bool = False) -> None:
        if self._introduced:
            return
        self._introduced = True
        able = {
            "batch_size": self._base.batch_size is not None,
            "learning_rate": self._base.learning_rate is not None,
            "resume": resume,
        }
        can = [name for name in protocol.CAPABILITIES if able[name]]
        self._write({"event": "hello", "can": can, **self._line()})

    def _line(self) -> dict[str, Any]:
        """The fields that every line has; what was waited for is of the time since the last."""
        line = {
            "time": time.time(),
            "step": self.steps,
            "samples": self.samples,
            "batch_size": self.knobs.batch_size,
            "learning_rate": self.knobs.learning_rate,
            "applied_seq": self._seq,
            "progress": self._total_samples and min(1.0, self.samples / self._total_samples),
            "input_wait": self._input.take(time.monotonic()),
        }
        return {name: value for name, value in line.items() if value is not None}

    def _report(self, now: float, loss: Any) -> None:
        self._report_at = now + REPORT_S
        self._write(self._line() | self._measured(loss) | self._told.take())

    def _measured(self, loss: Any) -> dict[str, float]:
        """What the session measured itself since the line before."""
        self._memory_cap.enforce()
        measured = device_memory()
        if self._gradients is not None:
            measured |= self._gradients.read()
        try:
            measured |= self._losses.take(loss)
        except TypeError as error:
            self._warn_once(f"session.step(loss=…) is skipped: {error}")
        return measured

    def _write(self, line: Mapping[str, Any], every_rank: bool = False) -> None:
        self._introduce()
        if self._attempt is not None and (every_rank or distributed.rank() == 0):
            self._reporter.write(line)

    def _flush(self) -> None:
        if told := self._told.take():
            self._write(self._line() | told)

    def _end(self, event: str) -> None:
        if self._attempt is not None and not self._ended:
            self._ended = True
            self._write({"event": event, **self._line(), **self._told.take()})

    def _note_out_of_memory(self, error: BaseException) -> bool:
        if not is_out_of_memory(error):
            return False
        if self._attempt is not None and not self._ended:
            self._ended = True
            message = f"{type(error).__name__}: {error}"[:2000]
            self._write({"event": "oom", "message": message, **self._line()}, every_rank=True)
        return True

    def _note_uncaught(self, error: BaseException) -> None:
        if self._note_out_of_memory(error):
            batch = self.knobs.batch_size
            size = "" if batch is None else f" with a batch size of {batch}"
            print(f"mlflow-rlsched: out of memory{size}", file=sys.stderr)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("mlflow-rlsched: %s", text)


def attach(*, batch_size: int | None = None, learning_rate: float | None = None) -> Session:
    """Connect a training to its scheduler; outside a scheduled run nothing is written.

    Args:
        batch_size: Global batch size in samples when nothing is scheduled. Giving it says that
            the training follows ``session.knobs.batch_size`` while it runs.
        learning_rate: Base learning rate when nothing is scheduled. Giving it says that the
            training follows ``session.knobs.learning_rate`` or calls ``session.apply``.

    Raises:
        ValueError: A value that no training can use.
    """
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(
            f"attach(batch_size={batch_size!r}): a whole number of samples, at least 1, is needed"
        )
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise ValueError(f"attach(learning_rate={learning_rate!r}): a positive number is needed")
    return Session(Attempt.from_environment(os.environ), batch_size, learning_rate)
