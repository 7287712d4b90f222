"""A recurrent network that colours Python source: it tells the kind of each character's token.

It reads the sources that come with every Python; what they are tokens of is what ``tokenize``
says. It follows the scheduler's batch size and learning rate, and goes on after a stop or a crash
where its last checkpoint was.
"""

import argparse
import keyword
import sysconfig
import time
import tokenize
from pathlib import Path

import mlflow
import torch
from mlflow.entities import Metric
from torch import nn

from mlflow_rlsched import attach

SOURCES = ("argparse", "difflib", "doctest", "inspect", "subprocess", "tarfile", "typing")
KINDS = {
    tokenize.NAME: 1,
    tokenize.NUMBER: 2,
    tokenize.STRING: 3,
    tokenize.COMMENT: 4,
    tokenize.OP: 5,
}
KEYWORD = 6  # and 0: between two tokens
CONTEXT = 64
VALIDATION = 256
EVALUATE_EVERY = 128
SAVE_EVERY_S = 5


def coloured(path):
    """Character codes (N,) of a source and their kinds (N,)."""
    with tokenize.open(path) as file:
        lines = file.readlines()
    kinds = [[0] * len(line) for line in lines]
    for token in tokenize.generate_tokens(iter(lines).__next__):
        kind = KEYWORD if keyword.iskeyword(token.string) else KINDS.get(token.type, 0)
        (first, start), (last, end) = token.start, token.end
        for number in range(first, last + 1 if kind else first):
            line = kinds[number - 1]
            begin = start if number == first else 0
            stop = end if number == last else len(line)
            line[begin:stop] = [kind] * (stop - begin)
    codes = [min(ord(character), 127) for line in lines for character in line]
    return torch.tensor(codes), torch.tensor([kind for line in kinds for kind in line])


def load_windows(device):
    """Windows (N, CONTEXT) of characters and of their kinds, in a fixed random order."""
    folder = Path(sysconfig.get_path("stdlib"))
    sources = [coloured(folder / f"{name}.py") for name in SOURCES]
    both = torch.stack([torch.cat(parts) for parts in zip(*sources, strict=True)])
    windows = both[:, : both.shape[1] // CONTEXT * CONTEXT].view(2, -1, CONTEXT)
    order = torch.randperm(windows.shape[1], generator=torch.Generator().manual_seed(0))
    return windows[:, order].to(device)


class Reader(nn.Module):
    """Reads a window in both directions."""

    def __init__(self, width):
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.reader = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.kinds = nn.Linear(2 * width, 1 + KEYWORD)

    def forward(self, windows):
        return self.kinds(self.reader(self.characters(windows))[0])


class Training:
    """One run: what a checkpoint holds, and the loop around it."""

    def __init__(self, args, session, run_id):
        self.args, self.session, self.run_id = args, session, run_id
        torch.manual_seed(args.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.windows, self.kinds = load_windows(device)
        self.size = len(self.windows) - VALIDATION
        self.model = Reader(args.width).to(device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-5
        )
        self.seen = 0  # windows so far
        self.points = []  # metrics since the last checkpoint: [key, value, time in ms, step]
        self.saved_at = time.monotonic()
        session.apply(self.optimizer)
        session.describe(dataset_size=self.size, drop_last=False, total_samples=args.windows)

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
        """The rows of the next windows: each once an epoch, in an order of its own."""
        epoch, start = divmod(self.seen, self.size)
        seed = self.args.seed * 100_003 + epoch
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed))
        size = min(self.session.knobs.batch_size, self.args.windows - self.seen)
        return VALIDATION + order[start : start + size]

    def run(self):
        """Train to the end; returns early when the session asks to stop."""
        while self.seen < self.args.windows:
            rows = self.next_batch()
            progress = self.seen / self.args.windows
            for group in self.optimizer.param_groups:
                group["lr"] = self.args.lr * min(1.0, 4 * (1 - progress))
            loss = self.loss(rows)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            evaluations = self.seen // EVALUATE_EVERY
            self.seen += len(rows)
            self.session.step(loss=loss, samples=len(rows))
            if self.seen // EVALUATE_EVERY > evaluations or self.seen == self.args.windows:
                self.evaluate(loss)
            if self.session.should_save or time.monotonic() > self.saved_at + SAVE_EVERY_S:
                self.save()
            if self.session.should_stop:
                return
        self.save()

    def loss(self, rows):
        scores = self.model(self.windows[rows])
        return nn.functional.cross_entropy(scores.flatten(0, 1), self.kinds[rows].flatten())

    @torch.no_grad()
    def evaluate(self, loss):
        guessed = self.model(self.windows[:VALIDATION]).argmax(2)
        accuracy = (guessed == self.kinds[:VALIDATION]).float().mean().item()
        now = int(time.time() * 1000)
        metrics = {"loss": loss.item(), "val_accuracy": accuracy}
        self.points += [[key, value, now, self.seen] for key, value in metrics.items()]
        self.session.report(val_accuracy=accuracy, epoch=self.seen / self.size)
        print(f"{self.seen} windows: val_accuracy {accuracy:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--windows", type=int, default=32768, help="length of the training")
    parser.add_argument("--width", type=int, default=48)
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
