"""PyTorch Lightning: ``Trainer(callbacks=[RlschedCallback()])``.

The batches of ``Trainer.fit`` follow the scheduler's batch size, the steps of the optimizers its
learning rate. A fit that was stopped or killed goes on where it was in the next attempt, with all
that Lightning itself keeps in a checkpoint.
"""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl

from mlflow_rlsched.training.frameworks import BySamples, Training, base_rate, is_scheduled


class RlschedCallback(pl.Callback):
    """Connects the first ``fit`` of a process to its scheduler; does nothing without one.

    The batch size is the one over all devices and accumulated batches. Schedules that Lightning
    steps with the optimizer count samples, so that they end when the training does. A training
    that ``max_steps`` ends makes so many steps, whatever their size.

    Args:
        save_every_s: Seconds between checkpoints that nobody asked for.
    """

    def __init__(self, save_every_s: float = 60.0) -> None:
        self._save_every_s = save_every_s
        self._training: Training | None = None
        self._over = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of the loader, and restore what a checkpoint holds."""
        if self._over or not is_scheduled():
            return
        loop, loader = trainer.fit_loop, trainer.train_dataloader
        if loader is None:  # it is there already when the length of the training was asked for
            loader = loop._data_source.dataloader()
        by_epochs = trainer.max_steps == -1 and (trainer.max_epochs or 0) > 0
        self._training = training = Training(
            loader,
            learning_rate=base_rate(trainer.optimizers[0]) if trainer.optimizers else None,
            epochs=trainer.max_epochs if by_epochs else None,
            micro_batches=trainer.accumulate_grad_batches,
            seed=int(os.environ.get("PL_GLOBAL_SEED", 0)),
            save_every_s=self._save_every_s,
            obstacle=_obstacle(trainer),
        )
        for optimizer in trainer.optimizers:
            training.session.apply(optimizer)
        if training.batches is None:
            return
        loop._data_source.instance = training.batches
        loop._combined_loader = None
        for config in trainer.lr_scheduler_configs:
            by_step = config.interval == "step" and config.frequency == 1
            if by_step and not config.reduce_on_plateau and by_epochs:
                config.scheduler = BySamples(config.scheduler, training.planned_steps)
        state = training.session.load()
        if state is not None:
            training.batches.load_state_dict(state["batches"])
            connector = trainer._checkpoint_connector
            connector._loaded_checkpoint = state["lightning"]  # the rest is restored after this
            connector.restore_datamodule()
            connector.restore_model()
            connector.restore_callbacks()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Go on where a checkpoint that ``fit`` was given, and none of ours, ended."""
        training, loop = self._training, trainer.fit_loop
        if training is None or training.batches is None:
            return
        if training.epochs_done() == 0:
            read = loop.epoch_loop.batch_progress.current.ready if loop.restarting else 0
            training.begin_at(trainer.current_epoch, min(1.0, read / len(training.batches)), read)
        self._plan(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave here when the end of the epoch before was no place for it."""
        self._plan(trainer)
        if self._training is not None:
            self._training.pause(lambda: self._state(trainer, between_epochs=True))

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count the step that this batch completed."""
        training, parts = self._training, trainer.accumulate_grad_batches
        if training is None or ((batch_idx + 1) % parts and not trainer.is_last_batch):
            return
        loss = (outputs or {}).get("loss")  # none where optimizers are stepped by hand
        if training.step(None if loss is None else loss * parts):
            self._plan(trainer)
        if not trainer.is_last_batch:  # the epoch is validated and ended first
            training.pause(lambda: self._state(trainer))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report what the module logged: any of it may be the objective."""
        if self._training is not None and not trainer.sanity_checking:
            self._training.session.report(**trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the epoch, and begin the next one."""
        if self._training is not None:
            self._training.session.report(epoch=trainer.current_epoch + 1)
            if self._training.batches is not None:
                self._training.batches.end_epoch()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say that the training is done."""
        if self._training is not None:
            self._training.session.done()
            self._training, self._over = None, True

    def _plan(self, trainer: pl.Trainer) -> None:
        """Lightning has counted the batches of an epoch: tell it how many there are now."""
        if self._training is None or self._training.batches is None:
            return
        loop, count = trainer.fit_loop, len(self._training.batches)
        loop.max_batches = loop._data_fetcher.length = count
        loop._combined_loader.limits = None
        if isinstance(trainer.val_check_interval, float):
            part = trainer.val_check_interval
            trainer.val_check_batch = float("inf") if part == 1.0 else max(1, int(count * part))

    def _state(self, trainer: pl.Trainer, between_epochs: bool = False) -> dict[str, Any]:
        assert self._training is not None
        assert self._training.batches is not None
        checkpoint = trainer._checkpoint_connector.dump_checkpoint()
        if between_epochs:  # else Lightning takes the epoch that it was about to begin for one read
            for count in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
                count["ready"] -= 1
        for name in ("hyper_parameters", "datamodule_hyper_parameters"):
            checkpoint.pop(name, None)  # of any type, and the script has them
        return {"lightning": checkpoint, "batches": self._training.batches.state_dict()}


def _obstacle(trainer: pl.Trainer) -> str | None:
    """Why Lightning's loop does not let the batches be chosen, or None."""
    if trainer.strategy.restore_checkpoint_after_setup:
        return f"{type(trainer.strategy).__name__} keeps a part of the model on each rank"
    if trainer.limit_train_batches != 1.0 or trainer.overfit_batches:
        return "limit_train_batches or overfit_batches say which batches there are"
    if trainer.reload_dataloaders_every_n_epochs:
        return "reload_dataloaders_every_n_epochs makes a DataLoader anew"
    return None
