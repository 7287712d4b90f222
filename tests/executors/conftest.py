from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_rlsched import processes
from tests.executors.attempts import Attempt


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    value = Attempt(tmp_path)
    yield value
    value.executor.close()
    processes.send(value.left(), signal.SIGKILL)
