"""A network that is a picture: it learns the colour of each place from a part of the pixels.

Places go in as sines of random frequencies (Tancik et al. 2020, "Fourier Features Let Networks
Learn High Frequency Functions in Low Dimensional Domains"). It follows the scheduler's batch size
and learning rate, and goes on after a stop or a crash where its last checkpoint was.
"""

import argparse
import math
import time

import mlflow
import torch
from mlflow.entities import Metric
from sklearn.datasets import load_sample_image
from torch import nn

from mlflow_rlsched import ElasticDataLoader, attach

VALIDATION = 4096
EVALUATE_EVERY = 32768
FREQUENCIES = 64
FREQUENCY = 8.0
SAVE_EVERY_S = 5


def load_pixels(device):
    """Places (N, 2) in [-1, 1] and colours (N, 3) in [0, 1], in a fixed random order."""
    picture = torch.tensor(load_sample_image("flower.jpg"))
    height, width, _ = picture.shape
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    places = torch.cartesian_prod(rows, columns)
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
    colours = picture.reshape(-1, 3).float().div(255)
    return places[order].to(device), colours[order].to(device)


class Waves(nn.Module):
    """Sines and cosines of a place, at frequencies that are drawn once."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", FREQUENCY * torch.randn(2, FREQUENCIES))

    def forward(self, places):
        phases = places @ self.frequencies
        return torch.cat([phases.sin(), phases.cos()], dim=1)


def network(width, layers):
    hidden = [nn.Linear(2 * FREQUENCIES, width), nn.ReLU()]
    for _ in range(layers - 1):
        hidden += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(Waves(), *hidden, nn.Linear(width, 3), nn.Sigmoid())


class Training:
    """One run: what a checkpoint holds, and the loop around it."""

    def __init__(self, args, session, run_id):
        self.args, self.session, self.run_id = args, session, run_id
        torch.manual_seed(args.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        places, colours = load_pixels(device)
        self.validation_set = places[:VALIDATION], colours[:VALIDATION]
        places, colours = places[VALIDATION:], colours[VALIDATION:]
        self.loader = ElasticDataLoader(
            range(len(places)),
            session,
            seed=args.seed,
            collate_fn=lambda rows: (places[rows], colours[rows]),
        )
        session.describe(dataset_size=len(places), drop_last=False, total_samples=args.pixels)
        self.model = network(args.width, args.layers).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.seen = 0  # pixels so far
        self.points = []  # metrics since the last checkpoint: [key, value, time in ms, step]
        self.saved_at = time.monotonic()
        session.apply(self.optimizer)

    def save(self):
        """Save, then log: an attempt that resumes repeats the very same points, no others."""
        self.session.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "loader": self.loader.state_dict(),
                "seen": self.seen,
                "points": self.points,
            }
        )
        self.log_points()
        self.saved_at = time.monotonic()

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.seen, self.points = state["seen"], state["points"]
        self.log_points()

    def log_points(self):
        metrics = [Metric(*point) for point in self.points]
        mlflow.MlflowClient().log_batch(self.run_id, metrics=metrics)
        self.points = []

    def run(self):
        """Train to the end; returns early when the session asks to stop."""
        while self.seen < self.args.pixels:
            for places, colours in self.loader:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.args.lr * self.decay()
                loss = nn.functional.mse_loss(self.model(places), colours)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                evaluations = self.seen // EVALUATE_EVERY
                self.seen += len(places)
                self.session.step(loss=loss, samples=len(places))
                over = self.seen >= self.args.pixels
                if self.seen // EVALUATE_EVERY > evaluations or over:
                    self.evaluate(loss)
                if self.session.should_save or time.monotonic() > self.saved_at + SAVE_EVERY_S:
                    self.save()
                if self.session.should_stop:
                    return
                if over:
                    break
        self.save()

    def decay(self):
        """From 1 to 0 in a quarter of a cosine."""
        return math.cos(math.pi / 2 * self.seen / self.args.pixels)

    @torch.no_grad()
    def evaluate(self, loss):
        places, colours = self.validation_set
        psnr = -10 * nn.functional.mse_loss(self.model(places), colours).log10().item()
        now = int(time.time() * 1000)
        metrics = {"loss": loss.item(), "val_psnr": psnr}
        self.points += [[key, value, now, self.seen] for key, value in metrics.items()]
        self.session.report(val_psnr=psnr, epoch=self.seen / self.loader.dataset_size)
        print(f"{self.seen} pixels: val_psnr {psnr:.2f} dB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--pixels", type=int, default=2**21, help="length of the training")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
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
