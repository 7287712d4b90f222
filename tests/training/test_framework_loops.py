"""A stop in the middle of an epoch, and the rest of the samples with batches of another size."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mlflow_rlsched.training.session import Session
from tests.training.run_directory import RunDirectory

SAMPLES, EPOCHS = 100, 4


def data(batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    targets = torch.randint(0, 3, (SAMPLES,), generator=generator)
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True)


def fit_lightning() -> None:
    """Two batches of five make a step, and the schedule is to end with the training."""
    import lightning.pytorch as pl

    from mlflow_rlsched.training.lightning import RlschedCallback

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> object:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            planned = self.trainer.estimated_stepping_batches
            assert planned == 40
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, planned)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        callbacks=[RlschedCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), data(5))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05)


def fit_keras() -> None:
    import keras

    from mlflow_rlsched.training.keras import RlschedCallback

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    rlsched = RlschedCallback(data(10))
    model.fit(rlsched.loader, epochs=EPOCHS, verbose=0, callbacks=[rlsched])


@pytest.mark.parametrize(
    ("framework", "fit"),
    [("lightning", fit_lightning), ("keras", fit_keras)],
    ids=["lightning", "keras"],
)
def test_a_fit_stops_in_an_epoch_and_goes_on_with_larger_batches(
    framework: str, fit: Callable[[], None], run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install 'mlflow-rlsched[{framework}]'")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with monkeypatch.context() as patch:
        whole = Session.step

        def step(self: Session, **values: object) -> bool:
            changed = whole(self, **values)
            if self.steps == 13:
                run.direct(1, seq=1, action="stop", reason="test")
                self._look_at = 0.0
            return changed

        patch.setattr(Session, "step", step)
        with pytest.raises(SystemExit) as left:
            fit()
    assert left.value.code == 75
    assert run.events(1) == ["hello", "checkpointed", "stopped"]
    assert run.reports(1)[-1].numbers["samples"] == 140
    for name, text in run.start_attempt(2, batch_size=20).items():
        monkeypatch.setenv(name, text)
    fit()
    hello, *_, done = run.reports(2)
    assert hello.numbers["samples"] == 140
    assert run.events(2) == ["hello", "done"]
    assert (done.numbers["samples"], done.numbers["epoch"]) == (SAMPLES * EPOCHS, EPOCHS)
    assert done.numbers["step"] == 14 + 3 + 5 + 5
