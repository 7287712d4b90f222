"""What a training says of its GPU memory, and how it is kept within a cap."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mlflow_rlsched import attach
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory


def test_the_peak_of_gpu_memory_is_that_since_the_line_before(
    run: RunDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a GPU: only its allocator's counters are asked, so nobody waits for it."""
    peak = 0
    cuda = SimpleNamespace(is_initialized=lambda: True, max_memory_allocated=lambda: peak)

    def reset_peak_memory_stats() -> None:
        nonlocal peak
        peak = 100

    cuda.reset_peak_memory_stats = reset_peak_memory_stats
    monkeypatch.setattr(torch, "cuda", cuda)
    session = attach(batch_size=64)
    for allocated in (500, 0, 700):
        peak = max(peak, allocated)
        session.step()
        clock.now += 1
    found = [report.numbers.get("memory_bytes") for report in run.reports()]
    assert found == [None, 500, 100, 700]


class Cuda:
    """Stands for torch.cuda of a host with three GPUs of 80 GiB: what is capped, to which part."""

    def __init__(self) -> None:
        self.capped: dict[int, float] = {}
        self.current, self.used, self.is_used = 0, {0}, False

    def is_initialized(self) -> bool:
        return self.is_used

    def current_device(self) -> int:
        return self.current

    def device_count(self) -> int:
        return 3

    def memory_reserved(self, device: int) -> int:
        return int(device in self.used)

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80 * 2**30)

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        assert device not in self.capped
        self.capped[device] = fraction

    def max_memory_allocated(self) -> int:
        return 0

    def reset_peak_memory_stats(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    value = Cuda()
    for name in vars(Cuda):
        if not name.startswith("__"):
            monkeypatch.setattr(torch.cuda, name, getattr(value, name))
    return value


def test_a_cap_is_set_on_each_gpu_once_the_training_uses_it(
    run: RunDirectory, clock: Clock, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_MEMORY_CAP_BYTES", str(41 * 2**30))
    session = attach(batch_size=64)
    assert cuda.capped == {}, "attach() does not begin to use a GPU"
    cuda.is_used = True
    session.apply(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    assert cuda.capped == {0: 0.5}, "a GiB is for what torch does not allocate"
    cuda.used.add(2)
    for _ in range(3):
        clock.now += 1
        session.step()
    assert cuda.capped == {0: 0.5, 2: 0.5}


def test_a_small_cap_leaves_half_of_it_to_torch(
    run: RunDirectory, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.is_used = True
    monkeypatch.setenv("RLSCHED_MEMORY_CAP_BYTES", str(2**30))
    attach()
    assert cuda.capped == {0: 1 / 160}


def test_without_a_cap_no_gpu_is_looked_at(run: RunDirectory, cuda: Cuda) -> None:
    cuda.is_used = True
    attach().step()
    assert cuda.capped == {}


def test_a_training_without_a_gpu_says_nothing_of_its_memory(run: RunDirectory) -> None:
    attach(batch_size=64).step()
    assert "memory_bytes" not in run.reports()[-1].numbers
