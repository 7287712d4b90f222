from __future__ import annotations

import errno
import subprocess
import sys

import pytest
import torch

from mlflow_rlsched import attach
from mlflow_rlsched.training import is_out_of_memory
from tests.training.run_directory import RunDirectory


def wrapped(cause: BaseException) -> BaseException:
    try:
        raise ValueError("in a callback") from cause
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        wrapped(MemoryError()),
    ],
)
def test_these_are_out_of_memory(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_the_cpu_allocator_of_torch_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("we are out of memory of that"),
        OSError(28, "No space left on device"),
        KeyboardInterrupt(),
    ],
)
def test_these_are_not(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_a_bug_in_the_handler_of_an_oom_is_a_bug() -> None:
    bug = KeyError("batch")
    bug.__context__ = MemoryError()
    assert not is_out_of_memory(bug)


def run_out_of_memory() -> None:
    with attach(batch_size=64) as session:
        session.step()
        raise MemoryError("no room")


def test_running_out_of_memory_in_the_block_is_reported_once(run: RunDirectory) -> None:
    with pytest.raises(MemoryError):
        run_out_of_memory()
    assert run.events() == ["hello", "oom"]
    assert run.reports()[-1].text == "MemoryError: no room"
    assert run.reports()[-1].numbers["batch_size"] == 64


@pytest.mark.parametrize("block", [True, False])
def test_an_oom_ends_with_the_traceback_and_one_clear_line(run: RunDirectory, block: bool) -> None:
    script = "from mlflow_rlsched import attach\n" + (
        "with attach(batch_size=64) as session:\n    raise MemoryError('no room')"
        if block
        else "session = attach(batch_size=64)\nraise MemoryError('no room')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    *_, traceback, line = done.stderr.splitlines()
    assert traceback == "MemoryError: no room"
    assert line == "mlflow-rlsched: out of memory with a batch size of 64"
    assert run.events() == ["hello", "oom"]


def test_any_other_uncaught_error_is_left_as_it_is(run: RunDirectory) -> None:
    script = "from mlflow_rlsched import attach; session = attach(); session.step(); 1 / 0"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert run.events() == ["hello"]


def test_other_ranks_report_an_oom_too(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(MemoryError):
        run_out_of_memory()
    assert run.events() == ["oom"]
