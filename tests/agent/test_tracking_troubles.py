"""What happens when a tracking server refuses, does not answer, or does not know a run."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from mlflow_rlsched.agent import tracking
from mlflow_rlsched.agent.outbox import Message
from tests.agent.desk import FINAL, Desk, Front, points
from tests.world import copy_database, make_tracking_database, wait_for


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
    run_id, place = desk.run_without_artifacts()
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
