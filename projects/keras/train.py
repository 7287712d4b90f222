"""Handwritten digits with Keras 3 on torch, under MLflow's autologging.

All that the scheduler needs is its callback and the loader that it gives: the batch size, the
learning rate, stops and resumes are its own affair. Without a scheduler it is an ordinary training.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import mlflow
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from mlflow_rlsched.training.keras import RlschedCallback

VALIDATION = 360


class Digits(keras.Sequential):
    """Two layers; tells the largest batch of an epoch, as it sees it."""

    def __init__(self):
        super().__init__(
            [
                keras.layers.Input((64,)),
                keras.layers.Dense(64, "relu"),
                keras.layers.Dense(10, "softmax"),
            ]
        )
        self.largest = 0

    def train_step(self, data):
        self.largest = max(self.largest, len(data[0]))
        return super().train_step(data)


class Largest(keras.callbacks.Callback):
    """Adds the largest batch to what Keras measured in an epoch."""

    def on_epoch_end(self, epoch, logs=None):
        logs["largest_batch"], self.model.largest = float(self.model.largest), 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = (torch.tensor(digits.data, dtype=torch.float32) / 16)[order]
    labels = torch.tensor(digits.target)[order]
    train = TensorDataset(images[VALIDATION:], labels[VALIDATION:])

    mlflow.keras.autolog(log_models=False)
    model = Digits()
    model.compile(keras.optimizers.SGD(args.lr, momentum=0.9), "sparse_categorical_crossentropy")
    rlsched = RlschedCallback(
        DataLoader(train, batch_size=args.batch_size, shuffle=True), seed=args.seed
    )
    model.fit(
        rlsched.loader,
        epochs=args.epochs,
        verbose=0,
        validation_data=(images[:VALIDATION].numpy(), labels[:VALIDATION].numpy()),
        validation_batch_size=VALIDATION,
        callbacks=[Largest(), rlsched],
    )


if __name__ == "__main__":
    main()
