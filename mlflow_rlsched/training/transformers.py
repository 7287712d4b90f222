"""Hugging Face Trainer: ``trainer.add_callback(RlschedCallback(trainer))``.

The batches of ``Trainer.train`` follow the scheduler's batch size, the steps of its optimizer the
learning rate. A training that was stopped or killed goes on where it was in the next attempt, and
ends when it has seen as many samples as the Trainer had planned for.
"""

from __future__ import annotations

import math
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from mlflow_rlsched.training import distributed
from mlflow_rlsched.training.frameworks import (
    BySamples,
    EpochBatches,
    Training,
    base_rate,
    is_scheduled,
)

_KEPT = (
    "global_step",
    "log_history",
    "total_flos",
    "num_input_tokens_seen",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""What a checkpoint holds of ``TrainerState``."""


class RlschedCallback(TrainerCallback):
    """Connects the first ``train`` of a process to its scheduler; does nothing without one.

    The batch size is the one over all devices and accumulated batches. The Trainer's schedules
    count samples, so that they end when the training does. A training that ``max_steps`` ends
    makes so many steps, whatever their size.

    Args:
        trainer: The one that it is added to.
        save_every_s: Seconds between checkpoints that nobody asked for, apart from the Trainer's.
    """

    def __init__(self, trainer: Trainer, save_every_s: float = 60.0) -> None:
        self._trainer = trainer
        self._save_every_s = save_every_s
        self._training: Training | None = None
        self._loss: Any = 0.0
        if is_scheduled():
            self._get_train_dataloader = trainer.get_train_dataloader
            self._create_scheduler = trainer.create_scheduler
            self._training_step = trainer.training_step
            trainer.get_train_dataloader = self._get_batches
            trainer.create_scheduler = self._create_schedule
            trainer.training_step = self._step

    def _get_batches(self) -> Any:
        trainer, args = self._trainer, self._trainer.args
        trainer.get_train_dataloader = self._get_train_dataloader  # the first training only
        callbacks = trainer.callback_handler.callbacks  # the others are to see the right plan
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        rate = args.learning_rate if trainer.optimizer is None else base_rate(trainer.optimizer)
        loader = trainer.get_train_dataloader()
        self._training = Training(
            loader,
            learning_rate=rate,
            epochs=self._epochs(),
            micro_batches=args.gradient_accumulation_steps,
            seed=args.seed if args.data_seed is None else args.data_seed,
            save_every_s=self._save_every_s,
            obstacle=_obstacle(trainer),
        )
        if self._training.batches is None:
            return loader
        args.ignore_data_skip = True  # these batches find their place themselves
        return _LongestEpoch(self._training.batches, args)

    def _create_schedule(self, num_training_steps: int, *rest: Any, **named: Any) -> Any:
        """The Trainer's, for the steps that there are at the batch size of the start."""
        training, epochs = self._training, self._epochs()
        if training is None or training.batches is None or epochs is None:
            return self._create_scheduler(num_training_steps, *rest, **named)
        schedule = self._create_scheduler(training.planned_steps(epochs), *rest, **named)
        if isinstance(schedule, LRScheduler) and not isinstance(schedule, ReduceLROnPlateau):
            self._trainer.lr_scheduler = schedule = BySamples(schedule, training.planned_steps)
        return schedule

    def _step(self, *values: Any, **named: Any) -> Any:
        loss = self._training_step(*values, **named)
        self._loss = self._loss + loss
        return loss

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Restore what a checkpoint holds, and say how many steps there will be."""
        training, trainer = self._training, self._trainer
        if training is None:
            return
        training.session.apply(getattr(trainer.optimizer, "optimizer", trainer.optimizer))
        if training.batches is None:
            return
        found = training.session.load()
        if found is not None:
            trainer.model.load_state_dict(found["model"])
            trainer.optimizer.load_state_dict(found["optimizer"])
            trainer.lr_scheduler.load_state_dict(found["schedule"])
            training.batches.load_state_dict(found["batches"])
            if found["scaler"]:
                trainer.accelerator.scaler.load_state_dict(found["scaler"])
            for name, value in found["trainer"].items():
                setattr(state, name, value)
            for name, callback in self._stateful().items():
                for attribute, value in found["callbacks"].get(name, {}).items():
                    setattr(callback, attribute, value)
            trainer._globalstep_last_logged = state.global_step
        elif state.epoch:  # of a checkpoint that train() was given
            part, epoch = math.modf(state.epoch)
            training.begin_at(int(epoch), part)
        self._plan(state)
        state.compute_steps(args, state.max_steps)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Leave here when the end of the epoch before was no place for it."""
        if self._training is not None:
            self._training.pause(lambda: self._state(state))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Count a step."""
        training = self._training
        if training is None:
            return
        training.step(self._loss)
        self._loss = 0.0
        if training.batches is None:
            return
        self._plan(state)
        if len(training.batches.loader):
            training.pause(lambda: self._state(state))
        else:
            control.should_epoch_stop = True

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Report the metrics: any of them may be the objective."""
        if self._training is not None:
            self._training.session.report(**more["metrics"])

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Report the epoch, and begin the next one."""
        if self._training is not None and state.epoch is not None:
            self._training.session.report(epoch=state.epoch)
            if self._training.batches is not None:
                self._training.batches.end_epoch()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Say that the training is done."""
        if self._training is not None:
            self._training.session.done()
            self._training = None

    def _epochs(self) -> float | None:
        args = self._trainer.args
        return None if args.max_steps > 0 else float(args.num_train_epochs)

    def _plan(self, state: TrainerState) -> None:
        """Tell the Trainer where it is, and how many steps are left at the present batch size."""
        training, epochs = self._training, self._epochs()
        assert training is not None
        assert training.batches is not None
        state.epoch = training.epochs_done()
        if epochs is not None:
            left = max(0.0, epochs - state.epoch) * training.batches.loader.dataset_size
            state.max_steps = state.global_step + math.ceil(
                left / (training.session.knobs.batch_size or 1)
            )

    def _state(self, state: TrainerState) -> dict[str, Any]:
        trainer, training = self._trainer, self._training
        assert training is not None
        assert training.batches is not None
        scaler = getattr(trainer.accelerator, "scaler", None)
        return {
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "schedule": trainer.lr_scheduler.state_dict(),
            "batches": training.batches.state_dict(),
            "trainer": {name: getattr(state, name) for name in _KEPT if hasattr(state, name)},
            "callbacks": {
                name: callback.state()["attributes"] for name, callback in self._stateful().items()
            },
        }

    def _stateful(self) -> dict[str, ExportableState]:
        """The callbacks that have something to go on with, such as how long none was better."""
        callbacks = self._trainer.callback_handler.callbacks
        return {type(c).__name__: c for c in callbacks if isinstance(c, ExportableState)}


class _LongestEpoch:
    """Batches for a loop that fixes its number of steps before it begins.

    Their length is that of the smallest batches that there can be; the callback ends the epoch.
    """

    def __init__(self, batches: EpochBatches, args: TrainingArguments) -> None:
        self._batches, self._args = batches, args
        self.dataset = batches.dataset

    def __iter__(self) -> Any:
        return iter(self._batches)

    def __len__(self) -> int:
        size = self._batches.loader.dataset_size
        if self._args.max_steps > 0:
            raise TypeError("the Trainer counts steps and reads as many epochs as these take")
        parts: int = self._args.gradient_accumulation_steps
        return size // (parts * distributed.world_size()) * parts


def _obstacle(trainer: Trainer) -> str | None:
    """Why the Trainer's loop does not let the batches be chosen, or None."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "FSDP and DeepSpeed keep a part of the model on each rank"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None:
        return "its ranks share one sequence or one layer"
    if trainer.args.auto_find_batch_size:
        return "auto_find_batch_size looks for a batch size itself"
    config = trainer.args.accelerator_config
    if config.split_batches or config.dispatch_batches:
        return "accelerator_config has batches that are split or dispatched by rank 0"
    return None
