"""What reaches tracking servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from mlflow.entities import Metric

from mlflow_rlsched import decision_log
from mlflow_rlsched.agent import tracking
from mlflow_rlsched.agent.outbox import Message, Outbox
from mlflow_rlsched.agent.sending import first_call
from mlflow_rlsched.store import StoreError
from tests.agent.desk import FINAL, Desk, Front, points
from tests.world import wait_for


def test_everything_arrives_in_order(desk: Desk) -> None:
    run_id = desk.run()
    desk.tracker.put(run_id, "status", {"status": "RUNNING"})
    desk.tracker.put(run_id, "tags", {"x": "1"})
    desk.tracker.put(run_id, "metrics", points(0, 3))
    desk.tracker.put(run_id, "tags", {"x": "2", "y": ""})
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: desk.tracked(run_id))
    told = desk.world.run_of(run_id)
    assert (told.info.status, told.info.end_time) == ("FINISHED", FINAL["end_time_ms"])
    assert {k: told.data.tags[k] for k in "axy"} == {"a": "b", "x": "2", "y": ""}
    assert desk.history(run_id) == [0, 1, 2]
    assert [f.path for f in desk.world.client.list_artifacts(run_id, "rlsched")] == [
        "rlsched/output.log"
    ]
    wait_for(lambda: not desk.outbox.runs())


def test_the_nested_runs_of_attempts_end_with_them(desk: Desk) -> None:
    client = desk.world.client
    parent = desk.run()

    def nested(**tags: str) -> str:
        tags = {f"rlsched.{name}": text for name, text in tags.items()}
        run = client.create_run("0", tags={"mlflow.parentRunId": parent, **tags})
        return str(run.info.run_id)

    deleted, second, third, theirs = (
        nested(attempt="1"),
        nested(attempt="2"),
        nested(attempt="3"),
        nested(),
    )

    def statuses() -> list[str]:
        return [desk.world.run_of(run_id).info.status for run_id in (second, third, theirs)]

    client.delete_run(deleted)
    desk.tracker.start()
    desk.tracker.put(parent, "retries_over", {"attempt": 2})
    wait_for(lambda: statuses() == ["FAILED", "RUNNING", "RUNNING"])
    desk.tracker.put(parent, "final", {**FINAL, "attempt": 3})
    wait_for(lambda: desk.tracked(parent))
    assert statuses() == ["FAILED", "FINISHED", "RUNNING"]
    assert desk.world.run_of(parent).info.status == "FINISHED"
    assert desk.tracker.gone == set()


def test_a_tuned_run_tells_what_it_trained_with(desk: Desk) -> None:
    tuned, damaged = desk.run(), desk.run()
    before = {"gpus": 1, "batch_size": 64, "lr_factor": 1.0, "lr_scale": 1.0}
    after = before | {"batch_size": 32, "lr_scale": 0.5}
    first = {"number": 1, "elapsed_s": 4.0, "before": before, "setting": after, "ended": False}
    last = {"number": 2, "elapsed_s": 8.0, "before": after, "setting": after, "ended": True}
    folders = {run_id: desk.world.home / "runs" / run_id for run_id in (tuned, damaged)}
    decision_log.append(folders[tuned], first)
    decision_log.append(folders[tuned], last)
    decision_log.append(folders[damaged], {"number": 1})
    for run_id in folders:
        desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.start()
    for run_id in folders:
        wait_for(partial(desk.tracked, run_id))
    told = json.loads(desk.world.run_of(tuned).data.tags["rlsched.effective"])
    assert told == {"batch_size": 45, "lr": pytest.approx(0.1 * 0.5**0.5)}
    assert "rlsched.effective" not in desk.world.run_of(damaged).data.tags


def test_artifacts_that_cannot_be_uploaded_come_later(desk: Desk) -> None:
    run_id, place = desk.run_without_artifacts()
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: desk.tracked(run_id))
    assert desk.world.run_of(run_id).info.status == "FINISHED"
    # What a resumed run has to tell does not wait for the artifacts of its first life.
    desk.tracker.put(run_id, "status", {"status": "RUNNING"})
    wait_for(lambda: desk.world.run_of(run_id).info.status == "RUNNING")
    wait_for(lambda: [m.kind for m in desk.outbox.of(run_id)] == ["artifacts"])
    place.unlink()
    wait_for(lambda: not desk.outbox.runs())
    (log,) = place.glob("*/artifacts/rlsched/output.log")
    assert log.read_text() == "hello\n"


@pytest.mark.parametrize("silent", [False, True])
def test_artifacts_are_given_up_in_the_end(
    desk: Desk, silent: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "ARTIFACT_PATIENCE_S", 0.3)
    monkeypatch.setitem(tracking._HTTP, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    front = Front(None)
    place = f"http://{front.address}/artifacts" if silent else "file:///dev/null/nowhere"
    experiment = desk.world.client.create_experiment("elsewhere", place)
    run_id = desk.run(experiment=experiment)
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: desk.tracked(run_id) and not desk.outbox.runs())
    front.close()
    assert "1 message(s) (artifacts) are dropped" in caplog.text
    assert "does not answer" not in caplog.text
    assert desk.world.run_of(run_id).info.status == "FINISHED"


def test_a_replay_after_a_kill_changes_nothing(desk: Desk) -> None:
    """kill -9 between delivering and forgetting, for each call in turn."""
    run_id = desk.run()
    desk.outbox.put(
        [
            Message(run_id, "status", {"status": "RUNNING"}),
            Message(run_id, "metrics", points(0, 600)),
            Message(run_id, "metrics", points(600, 600)),
            Message(run_id, "tags", {"x": "1"}),
            Message(run_id, "final", FINAL),
        ]
    )
    code = """
import os, signal, sys
from pathlib import Path
from mlflow_rlsched.agent.outbox import Outbox
from mlflow_rlsched.agent.sending import first_call
from mlflow_rlsched.agent.tracking import Tracker
from mlflow_rlsched.store import open_store
forget, left = Outbox.delivered, int(sys.argv[3])
def delivered(self, messages):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    forget(self, messages)
    if not self.runs():
        os._exit(0)
Outbox.delivered = delivered
Tracker(open_store(sys.argv[2]), Outbox(Path(sys.argv[1]))).run()
"""
    command = [sys.executable, "-c", code, f"{desk.world.root}/outbox.db", desk.world.store_url]
    codes = [subprocess.run([*command, "0"], timeout=60).returncode]
    while desk.outbox.runs():
        codes.append(subprocess.run([*command, "1"], timeout=60).returncode)
    assert codes == [-signal.SIGKILL] * 4 + [0]
    told = desk.world.run_of(run_id)
    assert (told.info.status, told.data.tags["x"]) == ("FINISHED", "1")
    assert desk.history(run_id) == list(range(1200))
    assert desk.tracked(run_id)


def test_watched_metrics_that_are_not_finite_are_left_out(desk: Desk) -> None:
    run_id = desk.run()
    values = {"loss": float("nan"), "worst": float("inf"), "best": -float("inf"), "fine": 2.5}
    metrics = [Metric(key, value, 1, 0) for key, value in values.items()]
    desk.world.client.log_batch(run_id, metrics=metrics)
    desk.tracker.watch([run_id])
    desk.tracker.start()
    wait_for(lambda: run_id in desk.tracker.latest)
    assert desk.tracker.latest[run_id] == {"fine": 2.5}


def test_messages_wait_in_memory_while_the_outbox_cannot_be_written(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = desk.run()
    engine = sa.create_engine(f"sqlite:///{desk.world.root}/outbox.db")
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE messages RENAME TO away"))
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: "the outbox cannot be written" in caplog.text)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE away RENAME TO messages"))
    wait_for(lambda: desk.tracked(run_id))
    assert caplog.text.count("the outbox cannot be written") == 1


def test_a_long_backlog_lets_others_through(desk: Desk) -> None:
    """Hours of samples wait for one run; the end of another is told before they are all sent."""
    long, short = desk.run(), desk.run()
    desk.outbox.put([Message(long, "metrics", points(10 * n, 10)) for n in range(1000)])
    desk.tracker.start()
    wait_for(lambda: len(desk.history(long)) > 0)
    desk.tracker.put(short, "final", FINAL)
    wait_for(lambda: desk.tracked(short))
    assert long in desk.outbox.runs()
    wait_for(lambda: not desk.outbox.runs())
    assert desk.history(long) == list(range(10_000))


def test_what_is_put_before_the_stop_is_on_disk(desk: Desk) -> None:
    run_id = desk.run("http://127.0.0.1:9")
    desk.tracker.start()
    desk.tracker.put(run_id, "metrics", points(0))
    desk.tracker.stop(1)
    assert not desk.tracker.is_alive()
    assert [m.kind for m in Outbox(Path(desk.world.root / "outbox.db")).of(run_id)] == ["metrics"]


def test_an_outbox_that_is_damaged_is_said_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"not a database: free some space .* move it away"):
        Outbox(path)


def test_uploads_go_last_and_at_once() -> None:
    """A server that was silent for hours is not sent the same files again and again."""
    waiting = [
        Message("r", "artifacts", {}, 1),
        Message("r", "tags", {"a": "1"}, 2),
        Message("r", "artifacts", {}, 3),
        Message("r", "status", {"status": "RUNNING"}, 4),
    ]
    calls = []
    while waiting:
        call = first_call(waiting, 1000)
        calls.append([message.id for message in call])
        waiting = [message for message in waiting if message not in call]
    assert calls == [[2], [4], [1, 3]]
