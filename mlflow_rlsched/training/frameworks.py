"""What the integrations have in common: see ``lightning``, ``transformers`` and ``keras``.

A framework has a loop of its own and a plan of it in batches, made before the first one. Each
integration hands it ``EpochBatches`` instead of the user's loader, keeps the plan right when their
size changes, and calls a ``Training`` after each optimizer step.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from mlflow_rlsched.training import distributed
from mlflow_rlsched.training.attempt import Attempt
from mlflow_rlsched.training.data import ElasticDataLoader
from mlflow_rlsched.training.session import attach

log = logging.getLogger("mlflow_rlsched.training")

_SHUFFLED = {"RandomSampler", "SeedableRandomSampler", "DistributedSampler"}
_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)


class Training:
    """A training whose loop is a framework's.

    Args:
        loader: The user's ``torch.utils.data.DataLoader``.
        learning_rate: Its base value, or None when it cannot be changed.
        epochs: Epochs of the whole training, or None when its length is counted in steps.
        micro_batches: Batches of each rank whose gradients are added up for a step.
        seed: Of the order of the samples; the same on all ranks.
        save_every_s: Seconds between checkpoints that nobody asked for.
        obstacle: Why the batches of this training cannot be chosen for it, or None.

    Attributes:
        session: The connection to the scheduler.
        batches: What to train on instead of the user's loader; None where there is an obstacle:
            then neither can the batch size change nor the training resume.
    """

    def __init__(
        self,
        loader: Any,
        *,
        learning_rate: float | None,
        epochs: float | None,
        micro_batches: int = 1,
        seed: int = 0,
        save_every_s: float = 60.0,
        obstacle: str | None = None,
    ) -> None:
        self.batches: EpochBatches | None = None
        self._save_every_s = save_every_s
        self._saved_at = time.monotonic()
        sampler = _batch_sampler(loader)
        obstacle = obstacle or obstacle_of(loader)
        per_rank = getattr(sampler, "batch_size", None) or 0
        self._base = per_rank * distributed.world_size() * micro_batches
        self.session = attach(
            batch_size=None if obstacle else self._base, learning_rate=learning_rate
        )
        if obstacle:
            log.warning(
                "mlflow-rlsched: the batch size stays what it is, and after an interruption the "
                "training begins anew, because %s",
                obstacle,
            )
            return
        options = {name: getattr(loader, name) for name in _OPTIONS}
        if not options["num_workers"]:
            del options["prefetch_factor"], options["persistent_workers"]
        self.batches = EpochBatches(
            ElasticDataLoader(
                loader.dataset,
                self.session,
                shuffle=_is_shuffled(sampler.sampler),
                seed=seed,
                drop_last=sampler.drop_last,
                micro_batches=micro_batches,
                epochs=epochs,
                **options,
            )
        )

    def step(self, loss: Any) -> bool:
        """Count an optimizer step; whether the knobs changed. See ``Session.step``."""
        samples = self._base if self.batches is None else self.batches.loader.last_batch
        return self.session.step(loss=loss, samples=samples)

    def pause(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save when it is time to, and leave when that was asked for.

        Call it where the training can go on later: between two steps of an epoch, and before the
        first one.

        Args:
            state: Makes what ``Session.save`` takes; called on every rank.

        Raises:
            SystemExit: With code 75, when a stop was asked for.
        """
        stop = self.session.should_stop
        due = time.monotonic() > self._saved_at + self._save_every_s
        if self.batches is not None and (due or stop or self.session.should_save):
            self.session.save(state())
            self._saved_at = time.monotonic()
        if stop:
            self.session.leave()

    def begin_at(self, epoch: int, part: float = 0.0, read: int = 0) -> None:
        """Go on where a checkpoint of the framework's own was made, which knows no place of ours.

        Args:
            epoch: Epochs that were read to their end.
            part: Of the present one that was read, 0 to 1.
            read: Batches of each rank that this was.
        """
        assert self.batches is not None
        place = self.batches.state_dict()
        position = round(part * self.batches.loader.dataset_size)
        self.batches.load_state_dict({**place, "epoch": epoch, "position": position, "read": read})
        self.session.samples = epoch * self.batches.loader.dataset_size + position

    def epochs_done(self) -> float:
        """Epochs that were read so far, with the part of the present one."""
        assert self.batches is not None
        loader = self.batches.loader
        place = loader.state_dict()
        part = place["position"] / loader.dataset_size if len(loader) else 1.0
        return place["epoch"] + part

    def planned_steps(self, epochs: float | None = None) -> int:
        """Steps that ``epochs`` would take with the batch size of the start.

        Args:
            epochs: All that was read so far when not given.
        """
        assert self.batches is not None
        loader = self.batches.loader
        rounded = math.floor if loader.drop_last else math.ceil
        an_epoch = rounded(loader.dataset_size / self._base)
        whole, part = divmod(self.epochs_done() if epochs is None else epochs, 1)
        samples = round(part * loader.dataset_size)
        return int(whole) * an_epoch + min(an_epoch, rounded(samples / self._base))


class EpochBatches:
    """The batches of an ``ElasticDataLoader`` for a loop that asks for the length of an epoch.

    Attributes:
        loader: That loader.
        dataset: Its dataset.
    """

    def __init__(self, loader: ElasticDataLoader) -> None:
        self.loader, self.dataset = loader, loader.dataset
        self._read, self._epoch = 0, loader.epoch

    def __len__(self) -> int:
        """Batches of this epoch: those that were read, and those left at the present size."""
        return self._read + len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of the epoch."""
        for batch in self.loader:
            self._read += 1
            yield batch

    def end_epoch(self) -> None:
        """Begin the next epoch; loops that count do not read on to find that nothing is left."""
        if self.loader.epoch == self._epoch:
            self.loader.end_epoch()
        self._read, self._epoch = 0, self.loader.epoch

    def state_dict(self) -> dict[str, int]:
        """The place in the data."""
        return {**self.loader.state_dict(), "read": self._read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a place that ``state_dict`` gave. See ``ElasticDataLoader.load_state_dict``."""
        self.loader.load_state_dict(state)
        self._read, self._epoch = state["read"], self.loader.epoch


class BySamples:
    """A learning-rate schedule that counts samples, for one that is stepped with the optimizer.

    However large the batches are, it is as far as the training is. All else is the schedule's own.

    Args:
        schedule: A ``torch.optim.lr_scheduler.LRScheduler``.
        steps: Says how many steps it should have made.
    """

    def __init__(self, schedule: Any, steps: Callable[[], int]) -> None:
        self._schedule = schedule
        self._steps = steps

    def step(self, *values: Any) -> None:
        """Catch up with the training."""
        for _ in range(self._steps() - self._schedule.last_epoch):
            self._schedule.step(*values)

    def __getattr__(self, name: str) -> Any:
        if name == "_schedule":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._schedule, name)


def is_scheduled() -> bool:
    """Whether this process belongs to a scheduled run."""
    return Attempt.from_environment(os.environ) is not None


def base_rate(optimizer: Any) -> float | None:
    """The learning rate of a torch optimizer before any schedule, that of its first group.

    Groups whose rate is 0 are passed over; None when there is no other.
    """
    rates = (float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups)
    return next((rate for rate in rates if rate > 0), None)


def _batch_sampler(loader: Any) -> Any:
    """The innermost batch sampler of a loader, or None."""
    found = getattr(loader, "batch_sampler", None)
    inner = getattr(found, "batch_sampler", None)  # Accelerate's shares it among ranks
    return found if inner is None else inner


def _is_shuffled(sampler: Any) -> bool:
    return type(sampler).__name__ in _SHUFFLED and bool(getattr(sampler, "shuffle", True))


def obstacle_of(loader: Any) -> str | None:
    """Why the batches of a loader cannot be chosen for it; None when they can."""
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset

    batches = _batch_sampler(loader)
    if not isinstance(loader, DataLoader):
        return f"it reads from a {type(loader).__name__} instead of a DataLoader"
    if type(loader).__iter__ not in (DataLoader.__iter__, _accelerates_iter()):
        return f"{type(loader).__name__} makes its batches in a way of its own"
    if isinstance(loader.dataset, IterableDataset):
        return "its DataLoader reads from an IterableDataset"
    if not hasattr(loader.dataset, "__len__"):
        return "its dataset has no length"
    if batches is None:
        return "its DataLoader makes no batches"
    if type(batches) is not BatchSampler:
        return f"its DataLoader has a {type(batches).__name__}"
    sampler = batches.sampler
    if type(sampler).__name__ not in _SHUFFLED | {"SequentialSampler"}:
        return f"its DataLoader has a {type(sampler).__name__}"
    if getattr(sampler, "replacement", False):
        return "its DataLoader draws samples with replacement"
    read, there = len(sampler), len(loader.dataset)
    if read != there and type(sampler).__name__ != "DistributedSampler":  # which reads a share
        return f"its DataLoader reads {read} of {there} samples in an epoch"
    return None


def _accelerates_iter() -> Any:
    """How the loaders of Accelerate, which only share and move batches, are read; or None."""
    module = sys.modules.get("accelerate.data_loader")
    return None if module is None else module.DataLoaderShard.__iter__
