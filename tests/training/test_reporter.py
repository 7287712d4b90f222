from __future__ import annotations

import contextlib
import math
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mlflow_rlsched.protocol import ReportReader, parse_report
from mlflow_rlsched.training.reporter import Losses, Reporter

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


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ('"adam"', {"optimizer": "adam"}),
        ('"' + "x" * 1000 + '"', {"optimizer": "x" * 100}),
        ("3", {}),
        ('["sgd"]', {}),
        ("null", {}),
    ],
)
def test_texts_reach_the_reader_short_and_as_texts(said: str, read: dict[str, str]) -> None:
    report = parse_report(f'{{"optimizer": {said}, "other": "text"}}'.encode())
    assert report is not None
    assert report.texts == read


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
        assert (shape, dtype, pin_memory) == ((1,), "float32", True)
        gpu = self

        class Host(list[float]):
            def copy_(self, loss: Loss, non_blocking: bool) -> None:
                assert non_blocking
                gpu.copies.append(loss.value)
                self.append(loss.value)

            def reshape(self, shape: int) -> Host:
                assert shape == -1
                return self

            def tolist(self) -> list[float]:
                assert gpu.arrived, "the value was read before it arrived"
                return list(self)

        return Host()

    def event(self) -> Any:
        return SimpleNamespace(record=lambda: None, query=lambda: self.arrived)


class Loss:
    """A loss on a GPU, which nobody may wait for."""

    is_cuda = True
    is_cpu = False
    device = "cuda:1"
    shape = (1,)

    def __init__(self, value: float) -> None:
        self.value = value

    def numel(self) -> int:
        return self.shape[0]

    def detach(self) -> Loss:
        return self


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    value = Gpu()
    cuda = SimpleNamespace(device=value.device, Event=value.event)
    torch = SimpleNamespace(cuda=cuda, empty=value.empty, float32="float32")
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    return value


def test_a_loss_on_a_gpu_is_read_when_its_copy_has_arrived(gpu: Gpu) -> None:
    losses = Losses()

    def taken(value: float) -> dict[str, float]:
        losses.add(Loss(value))
        return losses.take(Loss(value))

    assert taken(3.0) == {}
    assert taken(2.0) == {}
    assert gpu.copies == [3.0]
    gpu.arrived = True
    assert taken(1.0) == {"loss": 3.0}
    assert taken(math.nan) == {"loss": 1.0}
    assert taken(0.5) == pytest.approx({"loss": math.nan, "nonfinite_losses": 1}, nan_ok=True)
    assert gpu.copies[:2] == [3.0, 1.0]
    assert len(gpu.copies) == 4


def test_a_loss_on_a_gpu_must_be_one_number(gpu: Gpu) -> None:
    loss = Loss(1.0)
    loss.shape = (7,)
    with pytest.raises(TypeError, match=r"one element, got the shape \(7,\)"):
        Losses().take(loss)


def test_losses_on_the_cpu_are_averaged_since_the_line_before() -> None:
    losses = Losses()
    for value in (1.0, 2.0, torch.tensor(6.0)):
        losses.add(value)
    assert losses.take(None) == {"loss": 3.0}
    assert losses.take(None) == {}


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_loss_that_is_not_finite_is_counted_and_spoils_no_mean(
    kind: Callable[[float], Any],
) -> None:
    losses = Losses()
    for step in range(1, 11):
        losses.add(kind({7: math.nan, 8: math.inf}.get(step, step)))
    assert losses.take(None) == {"loss": 5.0, "nonfinite_losses": 2}
    losses.add(kind(-math.inf))
    assert losses.take(None) == {"loss": -math.inf, "nonfinite_losses": 1}
    losses.add(kind(4.0))
    assert losses.take(None) == {"loss": 4.0}
