from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_rlsched.protocol import ReportReader
from mlflow_rlsched.training.reporter import LossProbe, Reporter

FULL_DISK = """
import resource, sys
from pathlib import Path
from mlflow_rlsched.training.reporter import Reporter
path = Path(sys.argv[1])
reporter = Reporter(path)
reporter.write({"step": 1})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, hard))
reporter.write({"step": 2})
reporter.write({"step": 3})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
reporter.write({"step": 4})
reporter.write({"step": 5})
"""


def test_a_line_that_a_full_disk_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    subprocess.run([sys.executable, "-c", FULL_DISK, path], check=True)
    reader = ReportReader(path)
    assert [report.numbers["step"] for report in reader.poll()] == [1, 4, 5]
    assert reader.skipped == 1


def test_every_line_is_one_write_to_the_end_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    first, second = Reporter(path), Reporter(path)
    for step in range(0, 10, 2):
        first.write({"step": step})
        second.write({"step": step + 1})
    assert [report.numbers["step"] for report in ReportReader(path).poll()] == list(range(10))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


class Gpu:
    """Stands for torch.cuda: copies arrive when the test says so."""

    def __init__(self) -> None:
        self.arrived = False
        self.copies: list[float] = []

    @contextlib.contextmanager
    def device(self, device: str) -> Iterator[None]:
        assert device == "cuda:1"
        yield

    def empty(self, shape: tuple[int, ...], dtype: str, pin_memory: bool) -> Any:
        assert (shape, dtype, pin_memory) == ((), "float32", True)
        gpu = self

        class Host(list[float]):
            def copy_(self, loss: Loss, non_blocking: bool) -> None:
                assert non_blocking
                gpu.copies.append(loss.value)
                self.append(loss.value)

            def __float__(self) -> float:
                assert gpu.arrived, "the value was read before it arrived"
                return self[0]

        return Host()

    def event(self) -> Any:
        return SimpleNamespace(record=lambda: None, query=lambda: self.arrived)


class Loss:
    """A loss on a GPU, which nobody may wait for."""

    is_cuda = True
    device = "cuda:1"
    shape = (1,)

    def __init__(self, value: float) -> None:
        self.value = value

    def numel(self) -> int:
        return self.shape[0]

    def detach(self) -> Loss:
        return self

    def reshape(self, shape: tuple[int, ...]) -> Loss:
        assert shape == ()
        return self

    def float(self) -> Loss:
        return self


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    value = Gpu()
    cuda = SimpleNamespace(device=value.device, Event=value.event)
    torch = SimpleNamespace(cuda=cuda, empty=value.empty, float32="float32")
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    return value


def test_a_loss_on_a_gpu_is_read_when_its_copy_has_arrived(gpu: Gpu) -> None:
    probe = LossProbe()
    assert probe.read(Loss(3.0)) is None
    assert probe.read(Loss(2.0)) is None
    assert gpu.copies == [3.0]
    gpu.arrived = True
    assert probe.read(Loss(1.0)) == 3.0
    assert probe.read(Loss(0.5)) == 1.0
    assert gpu.copies == [3.0, 1.0, 0.5]


def test_a_loss_on_a_gpu_must_be_one_number(gpu: Gpu) -> None:
    loss = Loss(1.0)
    loss.shape = (7,)
    with pytest.raises(TypeError, match=r"one element, got the shape \(7,\)"):
        LossProbe().read(loss)
