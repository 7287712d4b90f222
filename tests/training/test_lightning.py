"""PyTorch Lightning's loop under a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.training.attempts import EPOCHS, SAMPLES, Attempts, data, needs
from tests.training.run_directory import RunDirectory

if TYPE_CHECKING:
    import lightning.pytorch as pl

pytestmark = needs("lightning")


def trainer(**options: Any) -> pl.Trainer:
    import lightning.pytorch as pl

    from mlflow_rlsched.training.lightning import RlschedCallback

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    options = {"max_epochs": EPOCHS, "enable_checkpointing": False, **quiet, **options}
    options["callbacks"] = [RlschedCallback(), *options.get("callbacks", [])]
    return pl.Trainer(**options)


def model(**more: Any) -> pl.LightningModule:
    """One layer; ``more`` are methods of it in place of the usual ones."""
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def training_step(self, batch: list[torch.Tensor], index: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            planned = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, int(planned))
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return type("Mine", (Model,), more)()


def rate(trainer: pl.Trainer) -> float:
    return float(trainer.optimizers[0].param_groups[0]["lr"])


def test_a_fit_stops_in_an_epoch_and_goes_on_with_larger_batches(attempts: Attempts) -> None:
    """Two batches of five make a step, and the schedule is to end with the training."""

    def fit() -> float:
        made = trainer(accumulate_grad_batches=2)
        made.fit(model(), data(5))
        return rate(made)

    attempts.stopped_at(13, fit)
    assert attempts.told("samples") == 140
    attempts.following(batch_size=20)
    assert fit() == pytest.approx(0.05)
    assert attempts.run.reports(2)[0].numbers["samples"] == 140
    assert attempts.ends() == ("hello", "done")
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("epoch") == EPOCHS
    assert attempts.told("step") == 14 + 3 + 5 + 5


@pytest.mark.parametrize("step", [1, 2])
def test_epochs_of_one_batch_are_stopped_between_them(attempts: Attempts, step: int) -> None:
    steps: list[int] = []

    def fit() -> float:
        made = trainer()
        made.fit(model(on_train_batch_start=lambda *_: steps.append(1)), data(SAMPLES))
        return rate(made)

    attempts.stopped_at(step, fit)
    assert len(steps) == step + 1
    attempts.following()
    assert fit() == pytest.approx(0.05)
    assert len(steps) == EPOCHS
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("step") == EPOCHS


def test_optimizers_that_are_stepped_by_hand_both_follow(attempts: Attempts) -> None:
    """A step of such a training need not tell a loss."""
    moved: list[tuple[float, float]] = []

    def training_step(self: Any, batch: list[torch.Tensor], index: int) -> Mapping[str, Any]:
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        first, second = self.optimizers()
        self.manual_backward(loss)
        steps = []
        for optimizer, parameter in (
            (first, self.layer.weight),
            (second, self.layer.bias),
        ):
            before, gradient = parameter.detach().clone(), parameter.grad
            optimizer.step()
            steps.append(float((before - parameter.detach()).norm() / gradient.norm()))
            optimizer.zero_grad()
        moved.append((steps[0], steps[1]))
        return {"told": 1.0}

    def configure_optimizers(self: Any) -> list[torch.optim.Optimizer]:
        self.automatic_optimization = False
        return [
            torch.optim.SGD([self.layer.weight], lr=0.1),
            torch.optim.SGD([self.layer.bias], lr=0.01),
        ]

    def fit() -> None:
        trainer(max_epochs=1).fit(
            model(training_step=training_step, configure_optimizers=configure_optimizers), data(10)
        )

    attempts.told_at(3, fit, lr_scale=0.5)
    assert moved[0] == pytest.approx((0.1, 0.01), rel=1e-3)
    assert moved[-1] == pytest.approx((0.05, 0.005), rel=1e-3)
    assert attempts.told("samples") == SAMPLES


def test_a_fit_goes_on_from_a_checkpoint_of_lightnings(
    attempts: Attempts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written without a scheduler, and knows no place of ours."""
    with monkeypatch.context() as patch:
        patch.delenv("RLSCHED_RUN_DIR")
        before = trainer(max_epochs=2)
        before.fit(model(), data(10))
        before.save_checkpoint(tmp_path / "two.ckpt")
    made = trainer()
    made.fit(model(), data(10), ckpt_path=tmp_path / "two.ckpt", weights_only=False)
    assert made.global_step == 40
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("progress") == 1
    assert rate(made) == pytest.approx(0.05)


def test_validation_and_its_early_end_are_lightnings(attempts: Attempts) -> None:
    """Its batches keep their size, and what it waits for goes on after a stop."""
    from lightning.pytorch.callbacks import EarlyStopping

    sizes: set[int] = set()

    def validation_step(self: Any, batch: list[torch.Tensor], index: int) -> None:
        sizes.add(len(batch[0]))
        self.log("val_loss", 1.0)

    def fit() -> int:
        patient = EarlyStopping("val_loss", patience=3)
        made = trainer(max_epochs=50, callbacks=[patient], num_sanity_val_steps=0)
        made.fit(model(validation_step=validation_step), data(20), data(25))
        return made.current_epoch

    attempts.stopped_at(12, fit)
    attempts.following(batch_size=50)
    assert fit() == 4
    assert sizes == {25}
    assert attempts.ends() == ("hello", "done")
    assert attempts.told("samples") == SAMPLES * 4


def test_without_a_scheduler_it_does_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    made = trainer(callbacks=[])
    made.fit(model(), data(10))
    assert made.global_step == 40
    assert "rlsched" not in caplog.text + "".join(capsys.readouterr())


def test_loaders_that_are_made_anew_stay_the_users(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    trainer(reload_dataloaders_every_n_epochs=1).fit(model(), data(10))
    assert run.reports()[0].can == {"learning_rate"}
    assert "because reload_dataloaders_every_n_epochs" in caplog.text
