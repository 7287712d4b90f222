"""What the pages read of this host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from mlflow_rlsched.processes import Identity
from mlflow_rlsched.protocol import attempt_dir, write_json
from mlflow_rlsched.store import DeviceShare, StoreGone, open_store
from rlsched_dashboard.app import context_of
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources import scheduler as module
from rlsched_dashboard.sources.run import read_run
from rlsched_dashboard.sources.scheduler import Scheduler
from rlsched_dashboard.sources.tracking import RunGone
from tests.task_specs import make_spec
from tests.world import make_tracking_database

BUSY = "import os\nwhile True: os.getppid()"
SHIM = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_slots_are_as_busy_as_the_processes_of_the_runs_that_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "3")
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    url = f"sqlite:///{tmp_path}/rlsched.db"
    attempt = attempt_dir(tmp_path, 1)
    attempt.mkdir(parents=True)
    with closing(open_store(url)) as store:
        store.submit(make_spec("a" * 32, run_dir=str(tmp_path), host=None), 0, 1.0)
        shares = [DeviceShare("cpu-0"), DeviceShare("cpu-1")]
        assert store.claim("a" * 32, socket.gethostname(), shares, 2.0)
    source = Scheduler(url)
    shim = subprocess.Popen([sys.executable, "-c", SHIM], start_new_session=True)
    try:
        identity = Identity.of(shim.pid)
        assert identity is not None
        write_json(attempt / "shim.json", identity.to_json())
        one, other, free = source.devices()
        while not one["utilization_percent"]:
            time.sleep(0.1)
            one, other, free = source.devices()
    finally:
        os.killpg(shim.pid, signal.SIGKILL)
        shim.wait()
    assert one["utilization_percent"] == other["utilization_percent"] <= 60
    assert 0 < one["memory_used_bytes"] == other["memory_used_bytes"] < one["memory_total_bytes"]
    assert (free["utilization_percent"], free["memory_used_bytes"]) == (0, None)
    assert source.devices()[0]["utilization_percent"] is None, "nobody knows, now that it ended"


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
