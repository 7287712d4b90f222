"""Handwritten digits with PyTorch Lightning, under MLflow's autologging.

All that the scheduler needs is its callback: the batch size, the learning rate, stops and resumes
are its own affair. Without a scheduler it is an ordinary Lightning training.
"""

import argparse

import lightning.pytorch as pl
import mlflow
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mlflow_rlsched.training.lightning import RlschedCallback

VALIDATION = 360


class Digits(pl.LightningModule):
    """Two layers, trained with SGD under a schedule that Lightning steps with it."""

    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def loss(self, batch):
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        self.log(
            "largest_batch", float(len(batch[0])), on_step=False, on_epoch=True, reduce_fx="max"
        )
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pl.seed_everything(args.seed)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    train = torch.utils.data.Subset(data, order[VALIDATION:])
    validation = torch.utils.data.Subset(data, order[:VALIDATION])

    mlflow.pytorch.autolog(log_models=False)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        callbacks=[RlschedCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Digits(args.lr),
        DataLoader(train, batch_size=args.batch_size, shuffle=True),
        DataLoader(validation, batch_size=VALIDATION),
    )


if __name__ == "__main__":
    main()
