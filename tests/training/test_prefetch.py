"""Batches that are read ahead: the same ones, in the same order, at the same place."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from mlflow_rlsched import ElasticDataLoader
from mlflow_rlsched.training import Session, prefetch
from mlflow_rlsched.training.prefetch import PrefetchLoader

Pair = namedtuple("Pair", "one other")


class Copies(prefetch.SideStream):
    """A GPU that is absent: copies stay where they are, and say what was asked for when."""

    def __init__(self, device: Any) -> None:
        self.begun: list[int] = []

    def start(self, batch: Any) -> Any:
        self.begun.append(len(batch))
        return batch.clone()

    def finish(self, started: Any) -> Any:
        return started


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(prefetch, "SideStream", Copies)
    return str(request.param)


def session_of(batch_size: int) -> Session:
    return Session(None, batch_size, None)


def test_the_batches_are_those_of_the_loader_in_their_order(device: str) -> None:
    plain = ElasticDataLoader(range(100), session_of(8))
    loader = PrefetchLoader(ElasticDataLoader(range(100), session_of(8)), device)
    for epoch in range(3):
        assert loader.epoch == epoch
        counts = []
        expected = [batch.tolist() for batch in plain]
        for index, batch in enumerate(loader):
            assert batch.tolist() == expected[index]
            counts.append(loader.last_batch)
            assert loader.state_dict()["position"] == sum(counts)
            assert loader.epoch == epoch
        assert counts == [8] * 12 + [4]
    assert loader.epoch == 3


def test_a_new_batch_size_comes_at_once_or_one_batch_later(device: str) -> None:
    session = session_of(8)
    loader = PrefetchLoader(ElasticDataLoader(range(100), session), device)
    seen: list[int] = []
    sizes = []
    for batch in loader:
        seen += batch.tolist()
        sizes.append(len(batch))
        if len(sizes) == 3:
            session.knobs.batch_size = 20
    assert sorted(seen) == list(range(100))
    assert sizes == ([8] * 3 + [20] * 3 + [16] if device == "cpu" else [8] * 4 + [20] * 3 + [8])


def test_a_loop_that_is_left_loses_nothing(device: str) -> None:
    loader = PrefetchLoader(ElasticDataLoader(range(50), session_of(8)), device)
    seen: list[int] = []
    for batch in loader:
        seen += batch.tolist()
        if len(seen) == 24:
            state = loader.state_dict()
            break
    assert state["position"] == 24
    resumed = PrefetchLoader(ElasticDataLoader(range(50), session_of(5)), device)
    resumed.load_state_dict(state)
    rest = [sample for batch in resumed for sample in batch.tolist()]
    assert sorted(seen + rest) == list(range(50))
    rest = [sample for batch in loader for sample in batch.tolist()]
    assert sorted(seen + rest) == list(range(50))


def test_a_gpu_is_one_batch_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies("cuda")
    monkeypatch.setattr(prefetch, "SideStream", lambda device: copies)
    loader = PrefetchLoader(ElasticDataLoader(range(32), session_of(8)), "cuda")
    assert [len(copies.begun) for _ in loader] == [2, 3, 4, 4]


def test_tensors_are_found_in_whatever_holds_them() -> None:
    one = torch.zeros(1)
    batch = {"a": [one, "text"], "b": (one, Pair(one, 3))}
    changed = prefetch._each(batch, lambda tensor: tensor + 1)
    assert changed == {"a": [torch.ones(1), "text"], "b": (torch.ones(1), Pair(torch.ones(1), 3))}
    assert type(changed["b"][1]) is Pair


def test_a_mapping_stays_what_it_is() -> None:
    """Batches of a tokenizer have attributes, and are no dict."""
    batch = UserDict({"a": torch.zeros(1)})
    changed = prefetch._each(batch, lambda tensor: tensor + 1)
    assert type(changed) is UserDict
    assert (changed["a"], batch["a"]) == (torch.ones(1), torch.zeros(1))
