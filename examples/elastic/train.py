"""Handwritten digits on as many ranks as there are devices, however many that are from now on.

torchrun starts a process for each device (gloo on CPU slots, NCCL on GPUs). When the scheduler
changes their number, all ranks stop after the same step, rank 0 saves, and the next attempt goes
on from there: the global batch, the order of the samples and the learning rate stay what they were.
"""

import argparse
import contextlib
import os

import mlflow
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from mlflow_rlsched import ElasticDataLoader, attach

LOG_EVERY = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


def train(args, device):
    torch.manual_seed(args.seed)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1).div(16).to(device)
    labels = torch.tensor(digits.target).to(device)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    losses = torch.zeros(2, device=device)  # this rank's sum and samples since the last point
    first = dist.get_rank() == 0
    with (
        attach(batch_size=args.batch_size, learning_rate=args.lr) as session,
        mlflow.start_run() if first else contextlib.nullcontext(),
    ):
        session.apply(optimizer)
        loader = ElasticDataLoader(
            range(len(labels)),
            session,
            seed=args.seed,
            drop_last=True,
            epochs=args.epochs,
            collate_fn=lambda rows: (images[rows], labels[rows]),
        )
        state = session.load()
        if state is not None:
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
            losses.copy_(state["losses"] / dist.get_world_size())
        while loader.epoch < args.epochs and not session.should_stop:
            for batch, targets in loader:
                loss = nn.functional.cross_entropy(model(batch), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses += losses.new_tensor([loss.item() * len(targets), len(targets)])
                session.step(loss=loss, samples=loader.last_batch)
                if session.steps % LOG_EVERY == 0:
                    log(losses, session.steps)
                if session.should_save:
                    total = everywhere(losses)
                    session.save(
                        {
                            "network": network.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "loader": loader.state_dict(),
                            "losses": total,
                        }
                    )
                if session.should_stop:
                    break


def everywhere(losses):
    """The sum over all ranks."""
    total = losses.clone()
    dist.all_reduce(total)
    return total


def log(losses, step):
    """A point of the loss curve: the mean over the samples of all ranks since the last one."""
    total, samples = everywhere(losses).tolist()
    losses.zero_()
    if dist.get_rank() == 0:
        mlflow.log_metric("train_loss", total / samples, step=step)


if __name__ == "__main__":
    main()
