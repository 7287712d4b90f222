"""The loop of Hugging Face's Trainer under a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.training.attempts import EPOCHS, SAMPLES, Attempts, dataset, needs
from tests.training.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformers import Trainer

pytestmark = needs("transformers")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trainer(schedule: Any = None, callbacks: Any = (), **options: Any) -> Trainer:
    """``schedule`` makes one of an optimizer, instead of the Trainer's."""
    from transformers import Trainer, TrainingArguments

    from mlflow_rlsched.training.transformers import RlschedCallback

    samples = [{"inputs": x, "labels": y} for x, y in dataset()]
    usual = {
        "output_dir": "trainer",
        "per_device_train_batch_size": 10,
        "learning_rate": 0.1,
        "optim": "sgd",
        "num_train_epochs": EPOCHS,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    model = Model()
    optimizers: tuple[Any, Any] = (None, None)
    if schedule is not None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizers = optimizer, schedule(optimizer)
    made = Trainer(
        model,
        TrainingArguments(**{**usual, **options}),
        train_dataset=samples,  # type: ignore[arg-type]
        eval_dataset=samples[:25],  # type: ignore[arg-type]
        optimizers=optimizers,
        callbacks=list(callbacks),
    )
    made.add_callback(RlschedCallback(made))
    return made


def rate(made: Trainer) -> float:
    return float(made.optimizer.param_groups[0]["lr"])


def test_a_training_stops_in_an_epoch_and_goes_on_with_larger_batches(attempts: Attempts) -> None:
    """Two batches of five make a step, and the schedule is to end with the training."""
    options = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2}
    attempts.stopped_at(13, lambda: trainer(**options).train())
    assert attempts.told("samples") == 140
    attempts.following(batch_size=20)
    made = trainer(**options)
    made.train()
    assert rate(made) == pytest.approx(0.0)
    assert attempts.run.reports(2)[0].numbers["samples"] == 140
    assert attempts.ends() == ("hello", "done")
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("epoch") == EPOCHS
    assert attempts.told("step") == made.state.global_step == 14 + 3 + 5 + 5


def test_the_users_own_schedule_counts_samples(attempts: Attempts) -> None:
    """With smaller batches it would else be asked for more steps than it was made for."""

    def cycle(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=41)

    made = trainer(cycle)
    attempts.told_at(9, made.train, batch_size=5)
    assert made.lr_scheduler.last_epoch == 40
    assert attempts.told("step") == 10 + 3 * 20


@pytest.mark.parametrize("ours", [False, True], ids=["alone", "beside one of ours"])
def test_a_training_goes_on_from_a_checkpoint_of_the_trainers(
    ours: bool, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours counts where there is one; the other knows no place of ours."""
    saving = {"save_strategy": "steps", "save_steps": 25, "save_total_limit": 1}
    with monkeypatch.context() as patch:
        patch.delenv("RLSCHED_RUN_DIR")
        trainer(**saving, max_steps=25).train()
    if ours:
        attempts.stopped_at(7, lambda: trainer(**saving).train(resume_from_checkpoint=True))
        assert attempts.told("samples") == 330
        attempts.following()
    made = trainer(**saving)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == 40
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("progress") == 1
    assert rate(made) == pytest.approx(0.0, abs=1e-4)


def test_its_early_end_goes_on_after_a_stop(attempts: Attempts) -> None:
    """Batches of the evaluation keep their size."""
    from transformers import EarlyStoppingCallback

    sizes: set[int] = set()
    options = {
        "num_train_epochs": 50,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "metric_for_best_model": "eval_loss",
        "load_best_model_at_end": True,
        "per_device_eval_batch_size": 25,
        "learning_rate": 1e-9,
    }

    def train() -> Trainer:
        patient = EarlyStoppingCallback(3, early_stopping_threshold=1.0)
        made = trainer(callbacks=[patient], **options)
        forward = made.model.forward

        def watched(inputs: torch.Tensor, labels: torch.Tensor) -> Any:
            if not made.model.training:
                sizes.add(len(inputs))
            return forward(inputs, labels)

        made.model.forward = watched
        made.train()
        return made

    attempts.stopped_at(24, train)
    attempts.following(batch_size=50)
    made = train()
    assert sizes == {25}
    assert attempts.told("samples") == SAMPLES * 4
    assert made.state.epoch == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size looks for a batch size itself"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config has batches that"),
    ],
)
def test_batches_that_someone_else_chooses_stay(
    options: Any, reason: str, run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    trainer(**options, num_train_epochs=1).train()
    assert run.reports()[0].can == {"learning_rate"}
    assert f"because {reason}" in caplog.text
    assert run.reports()[-1].numbers["samples"] == SAMPLES


def test_without_a_scheduler_it_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made = trainer()
    made.train()
    assert made.state.global_step == 40
    assert rate(made) == 0
    assert "mlflow-rlsched" not in caplog.text
