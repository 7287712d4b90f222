"""Every engine of the store passes the same tests; another one joins by an entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlflow_rlsched.store import Store, open_store

Engine = Callable[[Path], str]
"""Makes the URL of a new, empty store; the folder is the store's own."""

ENGINES: dict[str, Engine] = {
    "sqlite": lambda folder: f"sqlite:///{folder / 'rlsched.db'}",
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@pytest.fixture
def store_url(engine: Engine, tmp_path: Path) -> str:
    return engine(tmp_path / "store")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = open_store(store_url)
    yield opened
    opened.close()
