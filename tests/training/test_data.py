"""The batch size changes while an epoch runs, and each sample comes once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mlflow_rlsched import ElasticDataLoader, attach
from mlflow_rlsched.training import Session, distributed
from mlflow_rlsched.training import session as session_module
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory


def loader_of(size: int, session: Session, **options: Any) -> ElasticDataLoader:
    return ElasticDataLoader(range(size), session, **options)


def unattached(batch_size: int) -> Session:
    """A session of no run, whose knob the test turns itself."""
    return Session(None, batch_size, None)


def ranks(monkeypatch: pytest.MonkeyPatch, rank: int, count: int) -> None:
    """Stand for a process group: which samples a rank reads needs no communication."""
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "world_size", lambda: count)


class Slow:
    """Samples that take a second each to read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self._clock.now += 1
        return index


def test_what_is_waited_for_the_input_is_reported(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=2)
    for _ in ElasticDataLoader(Slow(clock), session):
        clock.now += 6
        session.step(loss=1.0)
    told = [line["input_wait"] for line in run.lines() if "event" not in line]
    assert told == pytest.approx([0.25] * 6)


def test_what_is_read_while_a_gpu_computes_costs_no_time(
    run: RunDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = SimpleNamespace(query=lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: busy)
    monkeypatch.setattr(session_module, "device_memory", dict)
    session = attach(batch_size=2)
    for _ in ElasticDataLoader(Slow(clock), session):
        session.step(loss=1.0)
    assert [line["input_wait"] for line in run.lines()] == [0.0] * 7


@pytest.fixture(params=[0, 2])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """With and without workers that read ahead."""
    return {"num_workers": request.param}


def test_the_very_next_batch_has_the_new_size(
    run: RunDirectory, clock: Clock, options: dict[str, Any]
) -> None:
    session = attach(batch_size=32)
    loader = loader_of(1000, session, **options)
    seen, sizes = [], []
    for batch in loader:
        if len(sizes) == 5:
            run.direct(1, seq=1, batch_size=64)
        seen += batch.tolist()
        sizes.append(len(batch))
        clock.now += 1
        session.step(loss=1.0, samples=loader.last_batch)
    assert sizes == [32] * 6 + [64] * 12 + [40]
    assert sorted(seen) == list(range(1000))
    assert session.samples == 1000
    assert (loader.epoch, len(loader)) == (1, 16)


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides(options: dict[str, Any]) -> None:
    def epochs(seed: int) -> list[list[int]]:
        loader = loader_of(50, unattached(8), seed=seed, **options)
        return [torch.cat(list(loader)).tolist() for _ in range(3)]

    first, second, third = orders = epochs(0)
    assert len({tuple(order) for order in orders}) == 3
    assert sorted(first) == sorted(second) == sorted(third) == list(range(50))
    assert epochs(0) == orders
    assert epochs(1) != orders


def test_without_shuffling_the_order_is_the_datasets() -> None:
    loader = loader_of(10, unattached(4), shuffle=False)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_epoch_goes_on_in_its_middle_with_other_batches_and_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From one rank with batches of 32 to three ranks with batches of 50."""
    whole = torch.cat(list(loader_of(500, unattached(32), seed=3)))
    loader = loader_of(500, unattached(32), seed=3)
    batches = iter(loader)
    seen = [sample for _ in range(4) for sample in next(batches).tolist()]
    assert seen == whole[:128].tolist()
    state = json.loads(json.dumps(loader.state_dict()))

    for rank in range(3):
        ranks(monkeypatch, rank, 3)
        resumed = loader_of(500, unattached(50))
        resumed.load_state_dict(state)
        assert len(resumed) == 8
        own = list(resumed)
        assert [len(batch) for batch in own[:-1]] == [[17, 17, 16][rank]] * 7
        seen += torch.cat(own).tolist()
        assert (resumed.epoch, len(resumed)) == (1, 10)
    assert sorted(seen) == list(range(500))


def test_a_loop_that_was_left_goes_on_where_it_was(options: dict[str, Any]) -> None:
    loader = loader_of(100, unattached(10), **options)
    seen = []
    for batch in loader:
        seen += batch.tolist()
        if len(seen) == 30:
            break
    assert (loader.epoch, len(loader)) == (0, 7)
    for batch in loader:
        seen += batch.tolist()
    assert sorted(seen) == list(range(100))
    assert loader.epoch == 1


def test_a_state_saved_with_the_last_batch_leaves_nothing_of_the_epoch() -> None:
    loader = loader_of(20, unattached(10))
    *_, state = (loader.state_dict() for _ in loader)
    resumed = loader_of(20, unattached(10))
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert resumed.epoch == 1
    assert len(list(resumed)) == 2


def test_a_batch_in_parts_changes_its_size_between_two_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks that add up the gradients of three parts."""
    seen: list[int] = []
    for rank in (0, 1):
        ranks(monkeypatch, rank, 2)
        session = unattached(24)
        loader = loader_of(132, session, micro_batches=3)
        assert len(loader) == 18
        sizes, steps = [], []
        for part in loader:
            seen += part.tolist()
            sizes.append(len(part))
            if len(sizes) == 4:
                session.knobs.batch_size = 48
            if len(sizes) % 3 == 0:
                steps.append(loader.last_batch)
        assert sizes[:9] == [4] * 6 + [8] * 3
        assert steps == [24, 24, 48, 36]
    assert sorted(seen) == list(range(132))


@settings(max_examples=50)
@given(data=st.data())
def test_whatever_happens_to_the_knob_each_sample_comes_once(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 60), "samples")
    count = data.draw(st.integers(1, min(4, size)), "ranks")
    drop_last = data.draw(st.booleans(), "drop_last")
    first = data.draw(st.integers(1, size), "batch size")
    with pytest.MonkeyPatch.context() as patch:
        ranks(patch, 0, count)
        session = unattached(first)
        loader = loader_of(size, session, drop_last=drop_last)
        loaders = [iter(loader)]
        for _ in range(1, count):
            other = loader_of(size, session, drop_last=drop_last)
            loaders.append(iter(other))
        seen: list[int] = []
        asked = max(first, count)
        while True:
            announced = len(loader)
            shares = []
            for rank, its in enumerate(loaders):
                ranks(patch, rank, count)
                shares.append(next(its, None))
            ranks(patch, 0, count)
            if shares[0] is None:
                assert shares == [None] * count
                break
            assert announced > 0
            lengths = [len(share) for share in shares if share is not None]
            assert max(lengths) - min(lengths) <= 1
            assert sum(lengths) == loader.last_batch
            seen += [int(sample) for share in shares if share is not None for sample in share]
            left = size - len(seen)
            if drop_last:
                assert loader.last_batch == asked
            elif left:
                assert loader.last_batch == asked
                assert left >= min(2 * count if asked >= 2 * count else count, size)
            else:
                assert loader.last_batch < asked + 2 * count
            session.knobs.batch_size = data.draw(st.integers(1, 40), "new batch size")
            asked = max(session.knobs.batch_size, count)
        assert len(set(seen)) == len(seen)
        assert len(seen) == size or (drop_last and size - len(seen) < asked)


@pytest.mark.parametrize("batch_size", [2, 3, 4, 8, 16, 32, 64])
def test_batch_normalisation_never_sees_one_sample(batch_size: int) -> None:
    """65 samples leave one over at most of these; one sample is an error in this network."""
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    session = unattached(batch_size)
    loader = loader_of(65, session, collate_fn=lambda rows: torch.tensor(rows).float()[:, None])
    samples = 0
    for batch in loader:
        model(batch).sum().backward()
        samples += len(batch)
    assert samples == 65


def test_batches_of_one_that_were_asked_for_are_given() -> None:
    assert [len(batch) for batch in loader_of(3, unattached(1))] == [1, 1, 1]


def test_the_last_batch_can_be_dropped() -> None:
    loader = loader_of(65, unattached(16), drop_last=True)
    assert len(loader) == 4
    assert [len(batch) for batch in loader] == [16] * 4
    with pytest.raises(ValueError, match="leaves nothing of 65 samples at a batch size of 100"):
        list(loader_of(65, unattached(100), drop_last=True))


def test_the_scheduler_learns_what_is_read_and_how_far(run: RunDirectory, clock: Clock) -> None:
    session = attach(batch_size=16)
    session.load()
    loader = loader_of(64, session, drop_last=True, epochs=2)
    while loader.epoch < 2:
        for _ in loader:
            clock.now += 1
            session.step(loss=1.0, samples=loader.last_batch)
    hello, first, *others = run.reports()
    assert first.numbers["dataset_size"] == 64
    assert first.numbers["drop_last"] == 1
    assert [report.numbers["progress"] for report in (first, *others)] == [
        step / 8 for step in range(1, 9)
    ]
    assert all("dataset_size" not in report.numbers for report in (hello, *others))


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((range(9), unattached(4), {"batch_size": 4}), TypeError, "the one given to attach()"),
        ((range(9), unattached(4), {"sampler": [1]}), TypeError, "(sampler=…): the loader sets"),
        ((range(9), Session(None, None, None), {}), ValueError, "attach(batch_size=…)"),
        ((iter([1]), unattached(4), {}), TypeError, "with a length, got list_iterator"),
        ((range(0), unattached(4), {}), ValueError, "0 samples are too few"),
    ],
    ids=["batch_size", "sampler", "no knob", "no length", "empty"],
)
def test_what_cannot_be_loaded_is_refused(
    arguments: tuple[Any, Session, dict[str, Any]], error: type[Exception], sentence: str
) -> None:
    dataset, session, options = arguments
    with pytest.raises(error) as caught:
        ElasticDataLoader(dataset, session, **options)
    assert sentence in str(caught.value)


def test_a_place_in_another_dataset_is_refused() -> None:
    state = loader_of(100, unattached(4)).state_dict()
    with pytest.raises(ValueError, match="a dataset of 100 samples, this one has 99"):
        loader_of(99, unattached(4)).load_state_dict(state)


RANK = """
import atexit, json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from mlflow_rlsched import ElasticDataLoader, attach
from mlflow_rlsched.protocol import Directive
from mlflow_rlsched.training import session as session_module

session_module.LOOK_S = 0.0
folder = Path(os.environ["RLSCHED_ATTEMPT_DIR"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], world_size=2,
                        rank=int(os.environ["RANK"]))
atexit.register(dist.destroy_process_group)  # one that is left open may abort the exit
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
samples = [[] for _ in range(200)]
sizes = []
with attach(batch_size=32, learning_rate=1e-4) as session:
    session.load()
    session.apply(optimizer)
    loader = ElasticDataLoader(range(4001), session)
    for batch in loader:
        x = batch.float()[:, None] / 4001
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples.append(batch.tolist())
        sizes.append(loader.last_batch)
        if dist.get_rank() == 0 and session.steps == 20:
            Directive(1, 1, 64, 2.0).write(folder)
        session.step(loss=loss, samples=loader.last_batch)
    print(json.dumps({"samples": samples, "sizes": sizes, "total": session.samples,
                      "weight": model.module[0].weight.flatten().tolist()}), flush=True)
"""


def test_two_ranks_change_their_batch_in_an_epoch_and_see_each_sample_once(
    run: RunDirectory, tmp_path: Path
) -> None:
    meeting = tmp_path / "meeting"
    processes = [
        subprocess.Popen(
            ["env", f"RANK={rank}", sys.executable, "-c", RANK, meeting],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (json.loads(output) for output, _ in outputs)
    assert first["sizes"] == second["sizes"]
    assert first["weight"] == second["weight"]
    changed = first["sizes"].index(64)
    assert changed >= 20
    assert len(first["sizes"]) > changed + 10
    assert first["sizes"][:changed] == [32] * changed
    assert set(first["sizes"][changed:-1]) == {64}
    seen = [x for rank in (first, second) for batch in rank["samples"] for x in batch]
    assert sorted(seen) == list(range(4001))
    assert first["total"] == second["total"] == 4001
