"""``rlsched doctor``: what is well, what is not, and what to do."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_rlsched import protocol, run_warnings, versions
from mlflow_rlsched.agent.outbox import OUTBOX, Message, Outbox
from mlflow_rlsched.cli import doctor
from mlflow_rlsched.daemon import AgentFiles, home, user_name
from mlflow_rlsched.devices.locks import DeviceLocks, LockRequest, lock_dir
from mlflow_rlsched.store import Ending, Quarantine, State, Store
from tests.cli.conftest import Rlsched, submit
from tests.policy.trained import trained
from tests.world import make_tracking_database


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")


def checks(rlsched: Rlsched, *args: str) -> dict[str, dict[str, object]]:
    result = rlsched("doctor", "--json", *args)
    value = json.loads(result.stdout)
    assert value["ok"] == (result.exit_code == 0)
    assert value["ok"] == all(check["ok"] for check in value["checks"])
    return {check["check"]: check for check in value["checks"]}


def test_a_fresh_host_is_well(rlsched: Rlsched, url: str) -> None:
    result = rlsched("doctor")
    assert result.exit_code == 0, result.stdout
    assert result.stdout.count("✓") == 10
    assert "policy ddpg: tunes what runs allow" in result.stdout
    assert not Path(url.removeprefix("sqlite:///")).exists(), "a check makes no store"


def test_a_home_that_cannot_be_made(rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_HOME", "/proc/nowhere")
    result = rlsched("doctor")
    assert result.exit_code == 1
    assert "✗ home: /proc/nowhere" in result.stdout
    assert "→ set RLSCHED_HOME to a folder on a local disk" in result.stdout


def test_a_full_disk(rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 2**62)
    assert not checks(rlsched)["disk space"]["ok"]


def test_a_wrong_configuration(rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_CFG_PRIORITY", "high")
    found = checks(rlsched)["configuration"]
    assert not found["ok"]
    assert "priority" in str(found["text"])


def test_a_file_that_is_no_store(rlsched: Rlsched, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("x" * 1000)
    found = checks(rlsched, "--store", f"sqlite:///{tmp_path}/notes.db")["store"]
    assert not found["ok"]
    assert "not a store" in str(found["text"])


def test_runs_that_wait_need_an_agent(rlsched: Rlsched, store: Store) -> None:
    assert checks(rlsched)["agent"]["ok"]
    submit(store, "aaaa1111", host=socket.gethostname(), user="somebody else")
    assert checks(rlsched)["agent"]["ok"]
    submit(store, "bbbb2222", host=socket.gethostname(), user=user_name())
    found = checks(rlsched)["agent"]
    assert not found["ok"]
    assert "rlsched agent start" in str(found["remedy"])


def test_what_was_not_told_needs_an_agent(rlsched: Rlsched, store: Store, url: str) -> None:
    files = AgentFiles(url)
    files.create()
    with closing(Outbox(files.folder / OUTBOX)) as outbox:
        outbox.put([Message("aaaa1111", "tags", {"x": "1"})])
    found = checks(rlsched)["agent"]
    assert not found["ok"]
    assert "1 runs are not told of completely" in str(found["text"])
    assert "rlsched agent start" in str(found["remedy"])


def test_runs_of_a_deleted_store_are_named(
    rlsched: Rlsched, store: Store, url: str, tmp_path: Path
) -> None:
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/artifacts")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri)

    def run(status: str, its_store: str = url) -> str:
        run_id = str(client.create_run("0").info.run_id)
        client.update_run(run_id, status=status)
        (home() / "runs" / run_id).mkdir(parents=True)
        environment = {"MLFLOW_TRACKING_URI": uri, "RLSCHED_CFG_STORE": its_store}
        protocol.write_json(home() / "runs" / run_id / "environment.json", environment)
        return run_id

    run("FAILED")
    run("RUNNING", "sqlite:////elsewhere.db")
    client.delete_run(run("RUNNING"))
    (home() / "runs" / run("FAILED")).rename(home() / "runs" / "unknown-to-mlflow")
    assert checks(rlsched)["forgotten runs"]["ok"]
    waiting = run("SCHEDULED")
    found = checks(rlsched)["forgotten runs"]
    assert not found["ok"]
    assert f"{waiting[:8]} is SCHEDULED in MLflow" in str(found["text"])
    assert "set_terminated" in str(found["remedy"])
    client.set_terminated(waiting, "FAILED")
    assert checks(rlsched)["forgotten runs"]["ok"]


def test_the_last_error_of_a_living_agent(
    rlsched: Rlsched, url: str, woken: Callable[[], bool]
) -> None:
    assert checks(rlsched)["agent"]["ok"]
    log = AgentFiles(url).log
    log.write_text("2026-01-01 00:00:00,001 ERROR old\n2026-01-01 00:00:01,002 INFO well\n")
    found = checks(rlsched)["agent"]
    assert found["ok"], "it is long ago"
    assert str(found["text"]).endswith("ERROR old")
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    log.write_text(f"{now},123 ERROR disk full\n{now},456 INFO well\n")
    found = checks(rlsched)["agent"]
    assert not found["ok"]
    assert str(found["text"]).endswith("ERROR disk full")


def test_a_device_in_quarantine(rlsched: Rlsched, store: Store) -> None:
    host = socket.gethostname()
    store.quarantine(Quarantine(host, "GPU-1", "it was not empty", time.time() + 90, failures=2))
    store.quarantine(Quarantine(host, "GPU-2", "long ago", time.time() - 90, failures=1))
    found = checks(rlsched)["quarantine"]
    assert not found["ok"]
    assert "GPU-1 for 1 min" in str(found["text"])
    assert "after 2 failures in a row (it was not empty)" in str(found["text"])
    assert "GPU-2" not in str(found["text"])


def test_a_device_that_is_still_not_empty_after_its_quarantine(
    rlsched: Rlsched, store: Store
) -> None:
    host, past = socket.gethostname(), time.time() - 1
    for slot in ("cpu-0", "cpu-1"):
        store.quarantine(Quarantine(host, slot, "not empty", past, failures=1))
    locks = DeviceLocks(lock_dir())
    assert locks.acquire([LockRequest("cpu-0")]) is None
    found = checks(rlsched)["quarantine"]
    locks.release()
    text = "cpu-0 is over it, after 1 failure in a row, but 100 % held by another store or user"
    assert (found["ok"], found["text"]) == (False, text)
    assert checks(rlsched)["quarantine"]["ok"]


def test_a_run_whose_memory_grows_without_bound(rlsched: Rlsched, store: Store) -> None:
    host = socket.gethostname()
    submit(store, "aaaa1111", host=host, user=user_name())
    store.claim("aaaa1111", host, [], time.time())
    run_dir = home() / "runs" / "aaaa1111"
    assert checks(rlsched)["memory"]["ok"]
    assert run_warnings.add(run_dir, 1, "the host", "memory of the host grows")
    assert not run_warnings.add(run_dir, 1, "the host", "memory of the host grows more")
    found = checks(rlsched)["memory"]
    assert (found["ok"], found["text"]) == (False, "aaaa1111: memory of the host grows")
    assert (
        "warning       memory of the host grows (attempt 1)" in rlsched("show", "aaaa1111").stdout
    )
    store.end_attempt("aaaa1111", 1, Ending(State.FAILED, "oom", ""), time.time())
    assert checks(rlsched)["memory"]["ok"], "it is over"


def test_a_wrong_number_of_slots(rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "0")
    assert not checks(rlsched)["devices"]["ok"]


def test_a_lock_folder_that_is_a_file(
    rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLSCHED_LOCK_DIR", str(tmp_path / "file"))
    assert not checks(rlsched)["device locks"]["ok"]


def test_a_tracking_server_that_is_down(rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ada:secret@127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = checks(rlsched)["tracking"]
    assert not found["ok"]
    assert "secret" not in json.dumps(found)


def test_a_tracking_server_that_does_not_answer(
    rlsched: Rlsched, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{silent_server}")
    assert "no answer within 0 s" in str(checks(rlsched)["tracking"]["text"])


def test_a_home_on_a_network_file_system(
    rlsched: Rlsched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("1 0 0:1 / / rw - nfs4 server:/ rw\n")
    monkeypatch.setattr("mlflow_rlsched.store.sqlite.MOUNTS", table)
    found = checks(rlsched)["home"]
    assert not found["ok"]
    assert "nfs4" in str(found["text"])
    assert not home().exists()


def test_a_trained_policy_is_looked_at_where_it_is_to_decide(
    rlsched: Rlsched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "SHIPPED", tmp_path / "shipped.safetensors")
    monkeypatch.setenv("RLSCHED_POLICY", "rules")
    assert "policy" not in checks(rlsched)
    monkeypatch.setenv("RLSCHED_POLICY", "ddpg")
    assert "there is no trained policy yet" in str(checks(rlsched)["policy"]["text"])
    version = trained(0.9)
    version.save(tmp_path / "shipped.safetensors")
    found = checks(rlsched)["policy"]
    assert (found["ok"], found["text"]) == (True, f"version {version.name} decides")
    other = trained(1.1)
    versions.Versions().promote(other)
    versions.Versions().path(other.name).write_bytes(b"spoilt")
    found = checks(rlsched)["policy"]
    assert not found["ok"]
    assert str(found["text"]).startswith(f"version {version.name} decides, as ")
    monkeypatch.setenv("RLSCHED_POLICY", str(versions.Versions().path(other.name)))
    assert "cannot be read as a policy" in str(checks(rlsched)["policy"]["text"])
    monkeypatch.setenv("RLSCHED_POLICY", str(tmp_path / "shipped.safetensors"))
    assert checks(rlsched)["policy"]["ok"]
