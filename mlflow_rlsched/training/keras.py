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
from keras.optimizers.schedules import LearningRateSchedule
from torch.utils.data import DataLoader

from mlflow_rlsched.training.frameworks import (
    EpochBatches,
    Training,
    is_scheduled,
    obstacle_of,
)


class RlschedCallback(keras.callbacks.Callback):
    """Connects the first ``fit`` of a process to its scheduler; does nothing without one.

    The batch size is the one over all accumulated batches. Callbacks that set the learning rate
    go on underneath; a ``LearningRateSchedule`` counts samples, so that it ends when the training
    does.

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
        follows = is_scheduled() and obstacle_of(loader) is None
        self.loader = _LongestEpoch(loader) if follows else loader

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Restore what a checkpoint holds."""
        if self._over or not is_scheduled():
            return
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of mixed precision
        self._micro_batches = optimizer.gradient_accumulation_steps or 1
        self._parts = 0  # of a step that were computed
        self._training = training = Training(
            self._user_loader,
            learning_rate=_base_rate(optimizer),
            epochs=self.params["epochs"],
            micro_batches=self._micro_batches,
            seed=self._seed,
            save_every_s=self._save_every_s,
        )
        self._optimizer = optimizer
        self._train, self.model.train_function = self.model.train_function, self._train_scaled
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
        training = self._training
        if training is None:
            return
        if training.batches is not None and training.batches.loader.epoch < epoch:
            training.begin_at(epoch)  # fit was told to
        training.pause(self._state)
        self._planned = self._plan()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step that this batch completed."""
        training = self._training
        if training is None:
            return
        self._parts += 1
        if self._parts < self._micro_batches:
            return
        self._parts = 0
        training.step(self._loss((logs or {}).get("loss"), training.batches))
        self._planned = self._plan()
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
            self.model.train_function = self._train
            if self._training.batches is not None:
                self.loader.batches = None
            self._training, self._over = None, True

    def _train_scaled(self, batches: Any) -> Any:
        """A step at the scheduler's rate; callbacks see, and change, but the user's own."""
        assert self._training is not None
        optimizer, scale = self._optimizer, self._training.session.knobs.lr_scale
        schedule = optimizer._learning_rate
        if isinstance(schedule, LearningRateSchedule):
            own, scaled = schedule, _Scaled(schedule, scale, self._planned)
        elif scale == 1.0 or callable(schedule):
            return self._train(batches)
        else:
            own = keras.ops.copy(keras.ops.convert_to_tensor(optimizer.learning_rate))
            scaled = own * scale
        optimizer.learning_rate = scaled
        try:
            return self._train(batches)
        finally:
            optimizer.learning_rate = own

    def _plan(self) -> int | None:
        """Steps that the optimizer would count until its next one with the batches of the start."""
        assert self._training is not None
        if self._training.batches is None:
            return None
        return (self._training.planned_steps() + 1) * self._micro_batches - 1

    def _loss(self, mean: float | None, batches: EpochBatches | None) -> float | None:
        """The loss of a step, from the mean over those of its epoch that Keras tells."""
        if mean is None or batches is None:
            return mean
        samples = batches.loader.last_batch
        if not samples:
            raise ValueError(
                "RlschedCallback: fit reads another loader; give it the callback's own: "
                "rlsched = RlschedCallback(loader), then model.fit(rlsched.loader, "
                "callbacks=[rlsched])"
            )
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


class _Scaled(LearningRateSchedule):
    """A schedule for one step: that far, unless None, and times that factor."""

    def __init__(self, schedule: LearningRateSchedule, scale: float, step: int | None) -> None:
        self._schedule, self._scale, self._step = schedule, scale, step

    def __call__(self, step: Any) -> Any:
        return self._schedule(step if self._step is None else self._step) * self._scale


def _base_rate(optimizer: Any) -> float | None:
    """The learning rate without a schedule; None where it cannot be scaled."""
    rate = optimizer._learning_rate
    if isinstance(rate, LearningRateSchedule):
        told = rate.get_config()
        rate = told.get("warmup_target") or told.get("initial_learning_rate") or rate(0)
    elif callable(rate):
        return None
    found = float(f"{float(rate):.7g}")  # Keras holds it with seven digits
    return found if found > 0 else None
