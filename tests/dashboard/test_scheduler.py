"""What the pages read of this host."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from mlflow_rlsched.store import StoreGone, open_store
from rlsched_dashboard.app import context_of
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.run import read_run
from rlsched_dashboard.sources.scheduler import Scheduler
from rlsched_dashboard.sources.tracking import RunGone
from tests.task_specs import make_spec
from tests.world import make_tracking_database


def busy_in_another_thread(source: Scheduler) -> float:
    """The cores' utilisation, as a thread of the server that never looked before reads it."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(source.cpu_fraction()))
    thread.start()
    thread.join()
    return found[0]


def test_each_thread_of_the_server_sees_how_busy_the_cores_are(tmp_path: Path) -> None:
    source = Scheduler(f"sqlite:///{tmp_path}/rlsched.db")
    for _ in range(2):
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        assert 0 < busy_in_another_thread(source) <= 1
        source._kept.clear()


def test_a_store_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rlsched.db"
    source = Scheduler(url)
    with closing(open_store(url)) as store:
        store.submit(make_spec("a" * 32), 0, 1.0)
    assert len(source.tasks()) == 1
    for file in tmp_path.glob("rlsched.db*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(StoreGone):
        source.tasks()
    assert source.tasks() == [], "there is none now"
    with closing(open_store(url)) as store:
        store.submit(make_spec("b" * 32), 0, 1.0)
    assert [task.run_id for task in source.tasks()] == ["b" * 32]


def test_a_run_of_the_store_is_shown_whatever_mlflow_knows_of_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rlsched.db"
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/artifacts")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    deleted = client.create_run("0", tags={"rlsched.state": "queued"}).info.run_id
    client.delete_run(deleted)
    with closing(open_store(url)) as store:
        for run_id in ("a" * 32, deleted):
            store.submit(make_spec(run_id, tracking_uri="http://user:secret@there:5000"), 0, 1.0)
    context = context_of(Settings(url, uri))
    data = read_run(context, "a" * 32)
    assert data.name == "quick-fox"
    assert "does not have this run" in data.trouble
    assert "there:5000" in data.trouble
    assert "secret" not in data.trouble
    with pytest.raises(RunGone):
        read_run(context, deleted)
