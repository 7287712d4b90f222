"""What the integrations of frameworks share; projects/ has a training of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from mlflow_rlsched.training.frameworks import BySamples, Training, base_rate, obstacle_of
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory

DATA = range(100)


def training(**more: Any) -> Training:
    loader: DataLoader[int] = DataLoader(DATA, batch_size=10, shuffle=True)  # type: ignore[arg-type]
    return Training(loader, learning_rate=0.1, epochs=4, **more)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


class Endless(DataLoader[int]):
    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


class Unknown(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ([1, 2], "it reads from a list instead of a DataLoader"),
        (DataLoader(Stream()), "its DataLoader reads from an IterableDataset"),
        (DataLoader(DATA, sampler=[1, 2]), "its DataLoader has a list"),  # type: ignore[arg-type]
        (
            DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)),  # type: ignore[arg-type]
            "its DataLoader draws samples with replacement",
        ),
        (
            DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=30)),  # type: ignore[arg-type]
            "its DataLoader reads 30 of 100 samples in an epoch",
        ),
        (Endless(DATA), "Endless makes its batches in a way of its own"),  # type: ignore[arg-type]
        (DataLoader(Unknown(), sampler=range(3)), "its dataset has no length"),  # type: ignore[arg-type]
    ],
    ids=["no DataLoader", "stream", "sampler", "replacement", "a part", "own loop", "no length"],
)
def test_batches_that_someone_else_chooses_stay(
    loader: Any, reason: str, run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    found = Training(loader, learning_rate=0.1, epochs=1)
    found.step(1.0)
    assert found.batches is None
    assert f"begins anew, because {reason}" in caplog.text
    assert run.reports()[0].can == {"learning_rate"}


def test_the_users_options_are_kept() -> None:
    def collate(rows: list[int]) -> list[int]:
        return rows

    sampler = BatchSampler(range(100), 8, drop_last=True)
    loader: DataLoader[int] = DataLoader(DATA, batch_size=10, collate_fn=collate)  # type: ignore[arg-type]
    assert obstacle_of(loader) is None
    assert obstacle_of(DataLoader(DATA, batch_sampler=sampler)) == "its DataLoader has a range"  # type: ignore[arg-type]
    batches = Training(loader, learning_rate=None, epochs=1).batches
    assert batches is not None
    assert next(iter(batches)) == list(range(10))


def test_a_schedule_is_where_the_samples_are(run: RunDirectory, clock: Clock) -> None:
    """However large the batches of a training are, its rate falls by the same samples."""
    found = training()
    assert found.batches is not None
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = BySamples(
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 40),
        found.planned_steps,
    )
    assert found.planned_steps(4) == 40
    rates = {}
    for _ in range(4):
        for _ in found.batches:
            optimizer.step()
            schedule.step()
            clock.now += 1
            found.step(1.0)
            rates[found.session.samples] = optimizer.param_groups[0]["lr"]
            if found.session.samples == 100:
                run.direct(1, seq=1, batch_size=20)
            if found.session.samples == 220:
                run.direct(1, seq=2, batch_size=5)
        found.batches.end_epoch()
    assert max(rates) == 400
    assert {samples for samples in rates if samples % 10}
    assert {130, 150, 170, 190} <= set(rates)
    assert 140 not in rates
    for samples, rate in rates.items():
        assert rate == pytest.approx(1 - -(-samples // 10) / 40)


def test_a_loop_that_counts_gets_each_sample_once_an_epoch() -> None:
    """It asks for the length, and does not read on to find that nothing is left."""
    found = training()
    batches = found.batches
    assert batches is not None
    for epoch in range(3):
        seen: list[int] = []
        reading = iter(batches)
        count = 0
        while count < len(batches):
            seen += next(reading).tolist()
            count += 1
            found.session.knobs.batch_size = 7 + epoch + count
        assert sorted(seen) == list(DATA)
        assert found.epochs_done() == epoch + 1
        batches.end_epoch()
    assert batches.loader.epoch == 3


def test_it_saves_and_leaves_between_two_steps(run: RunDirectory, clock: Clock) -> None:
    found = training()
    assert found.batches is not None
    found.session.load()
    found.pause(dict)
    assert run.events() == ["hello"]
    reading = iter(found.batches)
    next(reading)
    run.direct(1, seq=1, batch_size=20, action="stop", reason="test")
    clock.now += 1
    assert found.step(1.0)
    state = {"batches": found.batches.state_dict()}
    with pytest.raises(SystemExit) as left:
        found.pause(lambda: state)
    assert left.value.code == 75
    assert run.events() == ["hello", "checkpointed", "stopped"]
    again = training()
    assert again.batches is not None
    again.batches.load_state_dict(again.session.load()["batches"])
    assert again.session.samples == 10
    rest = [sample for batch in again.batches for sample in batch.tolist()]
    assert len(set(rest)) == 90


def test_a_checkpoint_is_written_now_and_then(run: RunDirectory) -> None:
    found = training(save_every_s=0.0)
    found.session.load()
    found.pause(dict)
    assert run.events() == ["hello", "checkpointed"]


def test_a_rate_of_a_group_that_does_not_learn_is_not_the_base() -> None:
    frozen, learning = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    groups = [{"params": [frozen], "lr": 0.0}, {"params": [learning], "lr": 0.3}]
    assert base_rate(torch.optim.SGD(groups, lr=0.1)) == 0.3
    assert base_rate(torch.optim.SGD(groups[:1], lr=0.1)) is None
