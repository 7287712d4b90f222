"""Keras 3 on torch.

::

    rlsched = RlschedCallback(loader)  # a torch.utils.data.DataLoader
    model.fit(rlsched.loader, epochs=20, callbacks=[rlsched])

The batches of ``fit`` follow the scheduler's batch size, the optimizer its learning rate. A fit
that was stopped or killed goes on where it was in the next attempt.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
from torch.utils.data import DataLoader

from mlflow_rlsched.training.frameworks import (
    EpochBatches,
    Training,
    is_scheduled,
    obstacle_of,
)


class RlschedCallback(keras.callbacks.Callback):
    """Connects the first ``fit`` of a process to its scheduler; does nothing without one.

    The learning rate can change where the optimizer was given a number, not a
    ``LearningRateSchedule``; callbacks that set it go on underneath.

    Args:
        loader: What to train on, read to its end in each epoch (no ``steps_per_epoch``).
        seed: Of the order of the samples.
        save_every_s: Seconds between checkpoints that nobody asked for.

    Attributes:
        loader: What ``fit`` is to be given instead.
    """

    def __init__(self, loader: Any, seed: int = 0, save_every_s: float = 60.0) -> None:
        super().__init__()
        self._seed, self._save_every_s = seed, save_every_s
        self._user_loader = loader
        self._training: Training | None = None
        self._over = False
        self._rate: Any = None  # the user's own, while a step uses another
        follows = is_scheduled() and obstacle_of(loader) is None
        self.loader = _LongestEpoch(loader) if follows else loader

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Restore what a checkpoint holds."""
        if self._over or not is_scheduled():
            return
        optimizer = self.model.optimizer
        fixed = isinstance(optimizer.get_config()["learning_rate"], dict)
        self._training = training = Training(
            self._user_loader,
            # Keras holds it with seven digits.
            learning_rate=None if fixed else float(f"{float(optimizer.learning_rate):.7g}"),
            epochs=self.params["epochs"],
            seed=self._seed,
            save_every_s=self._save_every_s,
        )
        if training.batches is None:
            return
        loader = training.batches.loader
        training.session.describe(
            dataset_size=loader.dataset_size,
            drop_last=loader.drop_last,
            total_samples=self.params["epochs"] * loader.dataset_size,
            optimizer=optimizer,
        )
        self.loader.batches = training.batches
        warnings.filterwarnings("ignore", "Your input ran out of data")  # so every epoch ends
        state = training.session.load()
        if state is not None:
            self.model.set_state_tree(state["model"])
            training.batches.load_state_dict(state["batches"])
            self.model._initial_epoch = loader.epoch

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Leave here when the end of the epoch before was no place for it."""
        self._sum = 0.0  # of the losses of the samples that Keras has the mean of
        self._samples = 0
        if self._training is not None:
            self._training.pause(self._state)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Scale the learning rate for this step."""
        if self._training is not None and self._training.session.knobs.lr_scale != 1.0:
            optimizer = self.model.optimizer
            self._rate = keras.ops.copy(keras.ops.convert_to_tensor(optimizer.learning_rate))
            optimizer.learning_rate = self._rate * self._training.session.knobs.lr_scale

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step."""
        if self._rate is not None:
            self.model.optimizer.learning_rate, self._rate = self._rate, None
        training = self._training
        if training is None:
            return
        training.step(self._loss((logs or {}).get("loss"), training.batches))
        if training.batches is not None and len(training.batches.loader):
            training.pause(self._state)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Report what Keras measured: any of it may be the objective."""
        if self._training is not None:
            self._training.session.report(epoch=epoch + 1, **(logs or {}))
            if self._training.batches is not None:
                self._training.batches.end_epoch()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Say that the training is done."""
        if self._training is not None:
            self._training.session.done()
            if self._training.batches is not None:
                self.loader.batches = None
            self._training, self._over = None, True

    def _loss(self, mean: float | None, batches: EpochBatches | None) -> float | None:
        """The loss of a step, from the mean over those of its epoch that Keras tells."""
        if mean is None or batches is None:
            return mean
        samples = batches.loader.last_batch
        before, self._samples = self._sum, self._samples + samples
        self._sum = mean * self._samples
        return (self._sum - before) / samples

    def _state(self) -> dict[str, Any]:
        assert self._training is not None
        assert self._training.batches is not None
        return {
            "model": self.model.get_state_tree(),
            "batches": self._training.batches.state_dict(),
        }


class _LongestEpoch(DataLoader[Any]):
    """A ``DataLoader`` for Keras, which counts its batches once and takes no other iterable.

    It has the length of the smallest batches that there can be, and ends where the data does.
    Before the training it is the user's: Keras looks at a first batch then.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader.dataset, batch_size=loader.batch_size)
        self._user_loader = loader
        self.batches: EpochBatches | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._user_loader if self.batches is None else self.batches)

    def __len__(self) -> int:
        return len(self.dataset)
