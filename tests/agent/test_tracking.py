"""What reaches tracking servers, and what happens when it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from mlflow.entities import Metric

from mlflow_rlsched import protocol
from mlflow_rlsched.agent import tracking
from mlflow_rlsched.agent.outbox import Message, Outbox
from mlflow_rlsched.agent.sending import first_call
from mlflow_rlsched.agent.tracking import Tracker
from mlflow_rlsched.store import Ending, State, StoreError
from tests.task_specs import make_spec
from tests.world import World, copy_database, make_tracking_database, wait_for

FINAL = {
    "status": "FINISHED",
    "end_time_ms": 1_700_000_999_000,
    "tags": {"a": "b"},
    "attempt": None,
}


def points(first: int, count: int = 1, key: str = "m") -> list[list[Any]]:
    """Metric points for a message; steps and values count on from ``first``."""
    return [[key, float(n), 1_700_000_000_000 + n, n] for n in range(first, first + count)]


class Desk:
    """A tracker in this process, and the runs that it tells of."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outbox = Outbox(world.root / "outbox.db")
        self.tracker = Tracker(world.store, self.outbox)

    def run(self, uri: str | None = None, experiment: str = "0", **environment: str) -> str:
        """A run that ended; in the world's tracking store unless told otherwise."""
        if uri is None:
            run_id = self.world.client.create_run(experiment).info.run_id
        else:
            run_id = uuid.uuid4().hex
        run_dir = self.world.home / "runs" / run_id
        attempt = protocol.attempt_dir(run_dir, 1)
        attempt.mkdir(parents=True)
        (attempt / "output.log").write_text("hello\n")
        uri = uri or self.world.tracking_uri
        environment["MLFLOW_TRACKING_URI"] = uri
        protocol.write_json(run_dir / "environment.json", environment)
        spec = make_spec(
            run_id,
            experiment_id=experiment,
            tracking_uri="http://127.0.0.1:9",
            run_dir=str(run_dir),
        )
        self.world.store.submit(spec, 0, time.time())
        self.world.store.end_queued(run_id, Ending(State.FINISHED, "finished", ""), time.time())
        return run_id

    def history(self, run_id: str, key: str = "m") -> list[int]:
        return [p.step for p in self.world.client.get_metric_history(run_id, key)]

    def tracked(self, run_id: str) -> bool:
        return self.world.task(run_id).tracked


@pytest.fixture
def desk(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(tracking, "TICK_S", 0.05)
    monkeypatch.setattr(tracking, "FLUSH_S", 0.1)
    monkeypatch.setattr(tracking, "POLL_S", 0.1)
    monkeypatch.setattr(tracking, "BACKOFF_S", (0.05,))
    monkeypatch.setattr(tracking, "_HTTP", {**tracking._HTTP, "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"})
    for name in tracking._HTTP:
        monkeypatch.setenv(name, "")  # so that what the tracker sets is undone
    value = Desk(world)
    yield value
    if value.tracker.is_alive():
        value.tracker.stop(0)


class Front:
    """What stands at a server's address: a proxy that answers by itself, or not at all.

    Attributes:
        reply: Status and body of all answers; None lets the client wait until the end.
        tokens: Authorization headers received.
    """

    def __init__(self, reply: tuple[int, str] | None) -> None:
        self.reply = reply
        self.tokens: list[str | None] = []
        self._end = threading.Event()
        front = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                front.tokens.append(self.headers["Authorization"])
                if front.reply is None:
                    front._end.wait(60)
                    return
                code, body = front.reply
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = do_PUT = do_PATCH = answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()


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


@pytest.mark.parametrize(
    "poison",
    [["not allowed @", 1.0, 1_700_000_000_000, 0], ["m", 1.0, 2**70, 500]],
    ids=["refused", "breaks the server"],
)
def test_a_poisoned_message_holds_nothing_up(
    desk: Desk, poison: list[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.5)
    bad, good = desk.run(), desk.run()
    messages = [Message(bad, "metrics", points(10 * n, 10)) for n in range(100)]
    messages.insert(60, Message(bad, "metrics", [poison]))
    desk.outbox.put(messages)
    desk.outbox.put([Message(bad, "final", FINAL), Message(good, "final", FINAL)])
    desk.tracker.start()
    wait_for(lambda: desk.tracked(good))
    wait_for(lambda: desk.tracked(bad))
    assert desk.history(bad) == list(range(1000))
    assert desk.world.run_of(bad).info.status == "FINISHED"
    assert f"run {bad}: 1 message(s) (metrics) are dropped" in caplog.text
    assert desk.tracker.gone == set()


def test_a_failure_that_may_pass_is_waited_out(desk: Desk) -> None:
    bad = desk.run()
    desk.tracker.put(bad, "metrics", [["m", 1.0, 2**70, 0]])
    desk.tracker.start()
    for good in [desk.run() for _ in range(3)]:
        desk.tracker.put(good, "final", FINAL)
        wait_for(lambda run_id=good: desk.tracked(run_id))
    assert len(desk.outbox.of(bad)) == 1


def test_a_message_that_fails_is_kept_while_the_server_takes_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.0)
    front = Front((500, "out of order"))
    run_id = desk.run(f"http://{front.address}")
    desk.outbox.put([Message(run_id, "metrics", points(0)), Message(run_id, "final", FINAL)])
    desk.tracker.start()
    wait_for(lambda: len(front.tokens) > 10)
    front.close()
    assert len(desk.outbox.of(run_id)) == 2


@pytest.mark.parametrize(
    "reply",
    [(404, "<html>no such page</html>"), (400, "{}"), (502, "bad gateway"), (401, "who?"), None],
    ids=["404", "400", "502", "401", "silence"],
)
def test_a_server_out_of_order_loses_nothing_and_delays_nobody(
    desk: Desk, reply: tuple[int, str] | None
) -> None:
    front = Front(reply)
    lame = desk.run(f"http://{front.address}")
    desk.outbox.put([Message(lame, "metrics", points(0)), Message(lame, "final", FINAL)])
    desk.tracker.start()
    wait_for(lambda: len(front.tokens) > 2)
    sound = desk.run()
    asked = time.monotonic()
    desk.tracker.put(sound, "final", FINAL)
    wait_for(lambda: desk.tracked(sound))
    assert time.monotonic() - asked < 10
    front.close()
    assert len(desk.outbox.of(lame)) == 2
    assert not desk.tracked(lame)
    assert desk.tracker.gone == set()


def test_runs_of_a_silent_server_come_last(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(tracking._HTTP, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(tracking, "FLUSH_S", 60.0)
    monkeypatch.setattr(tracking, "BACKOFF_S", (0.5,))
    front = Front(None)
    desk.tracker.put(desk.run(f"http://{front.address}"), "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: "does not answer" in caplog.text)
    sound = desk.run()
    desk.tracker.put(sound, "metrics", points(0))
    calls = len(front.tokens)
    wait_for(lambda: len(front.tokens) > calls)
    assert desk.history(sound) == [0]
    front.close()


def test_a_deleted_run_is_noticed_and_its_messages_are_dropped(desk: Desk) -> None:
    run_id = desk.run()
    desk.world.client.delete_run(run_id)
    desk.tracker.put(run_id, "tags", {"x": "1"})
    desk.tracker.put(run_id, "metrics", points(0, 2000))
    desk.tracker.start()
    wait_for(lambda: run_id in desk.tracker.gone)
    wait_for(lambda: not desk.outbox.runs())
    desk.tracker.put(run_id, "final", FINAL)
    wait_for(lambda: desk.tracked(run_id))
    # A run that was restored may be resumed.
    assert desk.tracker.gone == set()


def test_a_run_that_its_server_does_not_know_is_not_taken_for_deleted(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """The server may have been started with another database; all is kept until it has ours."""
    run_id = desk.run()
    database = desk.world.folder / "mlflow.db"
    ours = database.with_name("ours.db")
    copy_database(database, ours)
    make_tracking_database(database, "file:///nowhere")
    desk.tracker.put(run_id, "tags", {"x": "1"})
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.watch([run_id])
    desk.tracker.start()
    wait_for(lambda: f"run {run_id}: cannot deliver" in caplog.text)
    sound = desk.run()
    desk.tracker.put(sound, "final", FINAL)
    wait_for(lambda: desk.tracked(sound))
    assert desk.tracker.gone == set()
    assert len(desk.outbox.of(run_id)) == 2
    copy_database(ours, database)
    wait_for(lambda: desk.tracked(run_id))
    assert desk.world.run_of(run_id).data.tags["x"] == "1"


def test_a_run_that_its_server_has_not_known_for_long_is_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = desk.run(desk.world.tracking_uri)
    desk.outbox.put([Message(run_id, "tags", {"x": "1"}), Message(run_id, "final", FINAL)])
    monkeypatch.setattr(tracking, "ABSENCE_PATIENCE_S", 0.0)
    desk.tracker.start()
    wait_for(lambda: not desk.outbox.runs())
    assert "are dropped, since they were refused" in caplog.text
    assert desk.tracker.gone == set()


def test_credentials_are_kept_no_longer_than_needed(desk: Desk) -> None:
    place = desk.world.root / "artifacts"
    place.write_text("a file where a folder should be")
    experiment = desk.world.client.create_experiment("elsewhere", f"file://{place}")
    run_id = desk.run(experiment=experiment)
    environment = desk.world.home / "runs" / run_id / "environment.json"
    resumed = desk.run()
    renewed = desk.world.home / "runs" / resumed / "environment.json"
    later = time.time() + 60
    os.utime(renewed, (later, later))
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.put(resumed, "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: desk.tracked(run_id) and desk.tracked(resumed))
    assert environment.exists(), "its artifacts still need them"
    place.unlink()
    wait_for(lambda: not environment.exists())
    wait_for(lambda: not desk.outbox.runs())
    assert renewed.exists(), "a submission that resumes the run has just written it"


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


def test_artifacts_that_cannot_be_uploaded_come_later(desk: Desk) -> None:
    place = desk.world.root / "artifacts"
    place.write_text("a file where a folder should be")
    experiment = desk.world.client.create_experiment("elsewhere", f"file://{place}")
    run_id = desk.run(experiment=experiment)
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


def test_no_password_is_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    run_id = desk.run("http://ada:s3cr%40et@127.0.0.1:9")
    desk.tracker.put(run_id, "final", FINAL)
    desk.tracker.start()
    wait_for(lambda: "does not answer" in caplog.text)
    assert "http://…@127.0.0.1:9 does not answer" in caplog.text
    assert "s3cr" not in caplog.text
    assert "ada" not in caplog.text


def test_each_run_is_told_of_with_its_own_credentials(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "of-the-agent")
    fronts = [Front((503, "")), Front((503, ""))]
    uris = [f"http://{front.address}" for front in fronts]
    runs = [desk.run(uris[0], MLFLOW_TRACKING_TOKEN="of-the-run"), desk.run(uris[1])]
    for run_id in runs:
        desk.tracker.put(run_id, "tags", {"x": "1"})
    desk.tracker.start()
    wait_for(lambda: all(front.tokens for front in fronts))
    desk.tracker.stop(0)
    for front in fronts:
        front.close()
    assert set(fronts[0].tokens) == {"Bearer of-the-run"}
    assert set(fronts[1].tokens) == {None}
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "of-the-agent"


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
