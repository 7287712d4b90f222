"""Keras' loop under a scheduler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.training.attempts import EPOCHS, SAMPLES, Attempts, data, needs
from tests.training.run_directory import RunDirectory

if TYPE_CHECKING:
    import keras

pytestmark = needs("keras")


@pytest.fixture(autouse=True, scope="module")
def _on_torch() -> None:
    os.environ["KERAS_BACKEND"] = "torch"  # it looks once, when it is imported


def model(rate: Any = 0.1, **options: Any) -> keras.Model:
    import keras

    made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, "softmax")])
    made.compile(keras.optimizers.SGD(rate, **options), "sparse_categorical_crossentropy")
    return made


def fit(made: keras.Model, batch_size: int = 10, before: Any = (), **options: Any) -> None:
    from mlflow_rlsched.training.keras import RlschedCallback

    rlsched = RlschedCallback(data(batch_size))
    options = {"epochs": EPOCHS, "verbose": 0, **options}
    after = options.pop("callbacks", [])
    made.fit(rlsched.loader, callbacks=[*before, rlsched, *after], **options)


def watched(made: keras.Model) -> list[float]:
    """The learning rates with which the optimizer of a model is going to step."""
    rates: list[float] = []
    optimizer = getattr(made.optimizer, "inner_optimizer", made.optimizer)
    step = optimizer._backend_update_step

    def stepped(grads: Any, variables: Any, rate: Any) -> None:
        rates.append(float(rate))
        step(grads, variables, rate)

    optimizer._backend_update_step = stepped
    return rates


def test_a_fit_stops_in_an_epoch_and_goes_on_with_larger_batches(attempts: Attempts) -> None:
    attempts.stopped_at(13, lambda: fit(model()))
    assert attempts.told("samples") == 140
    attempts.following(batch_size=20)
    fit(model())
    assert attempts.run.reports(2)[0].numbers["samples"] == 140
    assert attempts.ends() == ("hello", "done")
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("epoch") == EPOCHS
    assert attempts.told("step") == 14 + 3 + 5 + 5


def test_a_schedule_counts_samples_and_is_scaled(attempts: Attempts) -> None:
    import keras

    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 40, 0.0)
    made = model(schedule)
    rates = watched(made)
    attempts.told_at(19, lambda: fit(made), batch_size=20, lr_scale=0.5)
    assert rates[:20] == pytest.approx([0.1 * (1 - step / 40) for step in range(20)])
    assert rates[20:] == pytest.approx([0.05 * (1 - step / 40) for step in range(20, 40, 2)])
    assert made.optimizer._learning_rate is schedule
    assert "learning_rate" in attempts.run.reports()[0].can
    assert attempts.run.reports()[0].numbers["learning_rate"] == 0.1


@pytest.mark.parametrize("moment", ["on_train_batch_begin", "on_train_batch_end"])
@pytest.mark.parametrize("place", ["before", "callbacks"])
def test_callbacks_that_set_the_rate_go_on_underneath(
    moment: str, place: str, attempts: Attempts
) -> None:
    """Wherever they stand, they find what they set, and each step is scaled once."""
    import keras

    made, found = model(), []

    class Halving(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            found.append(float(self.model.optimizer.learning_rate))
            if moment == "on_train_batch_begin":
                self.set_rate()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if moment == "on_train_batch_end":
                self.set_rate()

        def set_rate(self) -> None:
            rate = float(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = rate * 0.9

    rates = watched(made)
    attempts.told_at(4, lambda: fit(made, epochs=1, **{place: [Halving()]}), lr_scale=0.5)
    assert found == pytest.approx([0.1 * 0.9**step for step in range(10)], rel=1e-5)
    first = 1 if moment == "on_train_batch_begin" else 0
    scaled = [0.1 * 0.9 ** (step + first) * (1 if step < 5 else 0.5) for step in range(10)]
    assert rates == pytest.approx(scaled, rel=1e-5)


def test_mixed_precision_and_accumulated_gradients(attempts: Attempts) -> None:
    """Two batches of five make a step."""
    import keras

    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        made = model(gradient_accumulation_steps=2)
        rates = watched(made)
        attempts.told_at(14, lambda: fit(made, batch_size=5), batch_size=20, lr_scale=0.5)
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert type(made.optimizer).__name__ == "LossScaleOptimizer"
    assert attempts.run.reports()[0].numbers["batch_size"] == 10
    assert attempts.told("step") == 15 + 3 + 5 + 5
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.05)


def test_a_fit_that_begins_at_a_later_epoch_ends_as_planned(attempts: Attempts) -> None:
    attempts.stopped_at(13, lambda: fit(model(), initial_epoch=1))
    attempts.following()
    fit(model(), initial_epoch=1)
    assert attempts.told("step") == 30
    assert attempts.told("samples") == SAMPLES * EPOCHS
    assert attempts.told("progress") == 1


def test_another_loader_is_an_error_that_says_what_to_write(run: RunDirectory) -> None:
    from mlflow_rlsched.training.keras import RlschedCallback

    with pytest.raises(ValueError, match=r"model\.fit\(rlsched\.loader"):
        model().fit(data(10), verbose=0, callbacks=[RlschedCallback(data(10))])


def test_an_early_end_is_the_end(attempts: Attempts) -> None:
    import keras

    made = model(rate=1e-9)
    patient = keras.callbacks.EarlyStopping("loss", min_delta=1.0, patience=2)
    fit(made, epochs=50, callbacks=[patient])
    assert attempts.ends() == ("hello", "done")
    assert attempts.told("samples") == SAMPLES * 3


def test_without_a_scheduler_it_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    from mlflow_rlsched.training.keras import RlschedCallback

    loader = data(10)
    rlsched = RlschedCallback(loader)
    assert rlsched.loader is loader
    made = model()
    made.fit(rlsched.loader, epochs=2, verbose=0, callbacks=[rlsched])
    assert int(made.optimizer.iterations) == 20
    assert "rlsched" not in caplog.text
