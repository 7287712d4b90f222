"""A convolutional net on scikit-learn's handwritten digits.

It follows the scheduler's batch size and learning rate, and goes on after a stop or a crash
where its last checkpoint was, in the middle of an epoch too. Without a scheduler it is an
ordinary MLflow project.
"""

import argparse
import time

import mlflow
import torch
from mlflow.entities import Metric
from sklearn.datasets import load_digits
from torch import nn

from mlflow_rlsched import ElasticDataLoader, attach

VALIDATION = 360
SAVE_EVERY_S = 5


def load_images(device):
    """Images (N, 1, 8, 8) in [0, 1] and labels, the first VALIDATION of them for validation."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].div(16).unsqueeze(1)
    return images.to(device), torch.tensor(digits.target)[order].to(device)


def described(device):
    if device == "cpu":
        return "the CPU"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name} ({properties.uuid})"


def network(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * width, 10),
    )


class Training:
    """One run: what a checkpoint holds, and the loop around it."""

    def __init__(self, args, session, run_id):
        self.args, self.session, self.run_id = args, session, run_id
        torch.manual_seed(args.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(f"training on {described(device)}")
        images, labels = load_images(device)
        train_images, train_labels = images[VALIDATION:], labels[VALIDATION:]
        self.loader = ElasticDataLoader(
            range(len(train_labels)),
            session,
            seed=args.seed,
            epochs=args.epochs,
            collate_fn=lambda rows: (train_images[rows], train_labels[rows]),
        )
        self.validation_set = images[:VALIDATION], labels[:VALIDATION]
        self.model = network(args.width).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.epochs)
        self.loss_sum = torch.zeros((), device=device)  # over the samples of this epoch so far
        self.points = []  # metrics since the last checkpoint: [key, value, time in ms, step]
        self.saved_at = time.monotonic()
        session.apply(self.optimizer)

    def save(self):
        """Save, then log: an attempt that resumes repeats the very same points, no others."""
        self.session.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "loader": self.loader.state_dict(),
                "loss_sum": self.loss_sum,
                "points": self.points,
            }
        )
        self.log_points()
        self.saved_at = time.monotonic()

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.loader.load_state_dict(state["loader"])
        self.loss_sum.copy_(state["loss_sum"])
        self.points = state["points"]
        self.log_points()

    def log_points(self):
        metrics = [Metric(*point) for point in self.points]
        mlflow.MlflowClient().log_batch(self.run_id, metrics=metrics)
        self.points = []

    def run(self):
        """Train to the end; returns early when the session asks to stop."""
        while self.loader.epoch < self.args.epochs:
            for images, labels in self.loader:
                loss = nn.functional.cross_entropy(self.model(images), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.loss_sum += loss.detach() * len(labels)
                self.session.step(loss=loss, samples=len(labels))
                if self.session.should_save:
                    self.save()
                if self.session.should_stop:
                    return
            self.finish_epoch()
            if time.monotonic() > self.saved_at + SAVE_EVERY_S:
                self.save()
        self.save()

    def finish_epoch(self):
        epoch, loss = self.loader.epoch, self.loss_sum.item() / self.loader.dataset_size
        self.loss_sum.zero_()
        self.schedule.step()
        val_loss, val_accuracy = self.validate()
        now = int(time.time() * 1000)
        metrics = {"loss": loss, "val_loss": val_loss, "val_accuracy": val_accuracy}
        self.points += [[key, value, now, epoch] for key, value in metrics.items()]
        self.session.report(val_loss=val_loss, val_accuracy=val_accuracy, epoch=epoch)
        print(f"epoch {epoch}: val_loss {val_loss:.4f}, val_accuracy {val_accuracy:.4f}")

    @torch.no_grad()
    def validate(self):
        images, labels = self.validation_set
        scores = self.model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        return loss.item(), (scores.argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with (
        attach(batch_size=args.batch_size, learning_rate=args.lr) as session,
        mlflow.start_run() as run,
    ):
        training = Training(args, session, run.info.run_id)
        state = session.load()
        if state is not None:
            training.restore(state)
        training.run()


if __name__ == "__main__":
    main()
