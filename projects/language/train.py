"""A character transformer on the help texts that come with every Python.

It follows the scheduler's batch size and learning rate, and goes on after a stop or a crash
where its last checkpoint was. Its schedule counts sequences, not steps: the training has the
same length whatever happens to the batch size.
"""

import argparse
import time
from pydoc_data.topics import topics

import mlflow
import torch
from mlflow.entities import Metric
from torch import nn

from mlflow_rlsched import attach

CONTEXT = 64
VALIDATION = 256
EVALUATE_EVERY = 1024
SAVE_EVERY_S = 5


def load_sequences(device):
    """Sequences (N, CONTEXT + 1) of character codes, in a fixed random order."""
    text = "\n".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8)
    length = CONTEXT + 1
    sequences = codes[: len(codes) // length * length].view(-1, length).long()
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(0))
    return sequences[order].to(device)


class Transformer(nn.Module):
    """Predicts each next character (a code below 128) from those before it."""

    def __init__(self, width, layers):
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def loss(self, sequences):
        before, after = sequences[:, :-1], sequences[:, 1:]
        embedded = self.characters(before) + self.places.weight
        scores = self.out(self.layers(embedded, mask=self.mask, is_causal=True))
        return nn.functional.cross_entropy(scores.flatten(0, 1), after.flatten())


class Training:
    """One run: what a checkpoint holds, and the loop around it."""

    def __init__(self, args, session, run_id):
        self.args, self.session, self.run_id = args, session, run_id
        torch.manual_seed(args.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        sequences = load_sequences(device)
        self.validation_set, self.train_set = sequences[:VALIDATION], sequences[VALIDATION:]
        self.model = Transformer(args.width, args.layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.seen = 0  # sequences so far
        self.points = []  # metrics since the last checkpoint: [key, value, time in ms, step]
        self.saved_at = time.monotonic()
        session.apply(self.optimizer)
        session.describe(
            dataset_size=len(self.train_set), drop_last=False, total_samples=args.sequences
        )

    def save(self):
        """Save, then log: an attempt that resumes repeats the very same points, no others."""
        self.session.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "seen": self.seen,
                "points": self.points,
            }
        )
        self.log_points()
        self.saved_at = time.monotonic()

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.seen, self.points = state["seen"], state["points"]
        self.log_points()

    def log_points(self):
        metrics = [Metric(*point) for point in self.points]
        mlflow.MlflowClient().log_batch(self.run_id, metrics=metrics)
        self.points = []

    def next_batch(self):
        """The next sequences: each once an epoch, in an order of its own."""
        epoch, start = divmod(self.seen, len(self.train_set))
        seed = self.args.seed * 100_003 + epoch
        order = torch.randperm(len(self.train_set), generator=torch.Generator().manual_seed(seed))
        size = min(self.session.knobs.batch_size, self.args.sequences - self.seen)
        return self.train_set[order[start : start + size]]

    def run(self):
        """Train to the end; returns early when the session asks to stop."""
        while self.seen < self.args.sequences:
            batch = self.next_batch()
            decay = 1 - self.seen / self.args.sequences
            for group in self.optimizer.param_groups:
                group["lr"] = self.args.lr * decay
            loss = self.model.loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            evaluations = self.seen // EVALUATE_EVERY
            self.seen += len(batch)
            self.session.step(loss=loss, samples=len(batch))
            if self.seen // EVALUATE_EVERY > evaluations or self.seen == self.args.sequences:
                self.evaluate(loss)
            if self.session.should_save or time.monotonic() > self.saved_at + SAVE_EVERY_S:
                self.save()
            if self.session.should_stop:
                return
        self.save()

    @torch.no_grad()
    def evaluate(self, loss):
        val_loss = self.model.loss(self.validation_set).item()
        now = int(time.time() * 1000)
        metrics = {"loss": loss.item(), "val_loss": val_loss}
        self.points += [[key, value, now, self.seen] for key, value in metrics.items()]
        self.session.report(val_loss=val_loss, epoch=self.seen / len(self.train_set))
        print(f"{self.seen} sequences: val_loss {val_loss:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--sequences", type=int, default=32768, help="length of the training")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
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
