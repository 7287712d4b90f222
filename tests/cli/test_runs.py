"""``rlsched queue``, ``show`` and ``logs``."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched.daemon import home
from mlflow_rlsched.store import AgentRecord, DeviceShare, Ending, State, Store
from mlflow_rlsched.words import duration
from tests.cli.conftest import Rlsched, submit, write

AGAIN = Ending(State.QUEUED, "killed", "it was ended by SIGKILL from outside", 137, counts=True)


@pytest.fixture
def two_runs(store: Store) -> None:
    submit(store, "aaaa1111", label="waiting-wolf")
    submit(store, "bbbb2222", priority=5, label="running-rat", config={"cpu_slots": 2})
    store.claim("bbbb2222", "here", [DeviceShare("cpu-0"), DeviceShare("cpu-1", 50)], time.time())


@pytest.mark.usefixtures("two_runs")
def test_queue_lists_runs_by_rank(rlsched: Rlsched) -> None:
    result = rlsched("queue")
    assert result.exit_code == 0
    heading, first, second, *rest = result.stdout.splitlines()
    assert heading.split()[:4] == ["RUN", "NAME", "STATE", "PRIORITY"]
    assert "bbbb2222  running-rat   running" in first
    assert "1 GPU or 2 slots" in first
    assert "cpu-0, cpu-1 50 %" in first
    assert "aaaa1111  waiting-wolf  queued" in second
    assert rest == ["no agent lives: `rlsched agent start` starts one"]


@pytest.mark.usefixtures("two_runs")
def test_queue_as_json(rlsched: Rlsched) -> None:
    value = json.loads(rlsched("queue", "--json").stdout)
    first, second = value["runs"]
    assert (first["run_id"], first["state"], first["priority"]) == ("bbbb2222", "running", 5)
    assert first["holds"] == [
        {"device": "cpu-0", "amount": 100},
        {"device": "cpu-1", "amount": 50},
    ]
    assert second["wants"] == {"gpus": 1, "amount": 100, "cpu_slots": 1, "shares_parent": False}
    assert 0 <= second["age_s"] < 60
    assert value["agent_alive"] is False


def test_queue_says_why_a_run_waits(
    rlsched: Rlsched, store: Store, woken: Callable[[], bool]
) -> None:
    submit(store, "aaaa1111")
    store.claim("aaaa1111", "here", [], now=1.0)
    store.end_attempt("aaaa1111", 1, AGAIN, now=2.0)
    submit(store, "bbbb2222")
    store.claim("bbbb2222", "here", [], now=1.0)
    later = Ending(State.QUEUED, "killed", "killed", not_before=time.time() + 30.0)
    store.end_attempt("bbbb2222", 1, later, now=2.0)
    submit(store, "cccc3333")
    store.request_cancel("cccc3333", "bob")
    notes = [{"id": "GPU-7", "note": "used by python (42), 3 GiB"}]
    host = socket.gethostname()
    store.register_agent(AgentRecord(host, "ada", "1", 1.0, 1.0, notes), now=1.0)
    lines = rlsched("queue").stdout.splitlines()
    assert lines[1].rstrip().endswith("it was ended by SIGKILL from outside")
    assert "tried again in" in lines[2]
    assert lines[3].rstrip().endswith("bob cancelled it")
    assert lines[4] == "device GPU-7 is not offered: used by python (42), 3 GiB"


def test_queue_says_what_a_run_waits_for_and_how_long(
    rlsched: Rlsched, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "1")
    host, now = socket.gethostname(), time.time()
    for number, run_id in enumerate(["aaaa1111", "bbbb2222", "cccc3333"]):
        submit(store, run_id, host=host, entry_point=f"entry{number}")
    store.claim("aaaa1111", host, [DeviceShare("cpu-0")], now)
    first = rlsched("show", "bbbb2222").stdout
    assert "waits for aaaa1111: it tells no progress and has no timeout_s" in first
    record = {"number": 1, "history": {"progress": 0.25}, "elapsed_s": 600.0, "time": now}
    (home() / "runs" / "aaaa1111" / "decisions.jsonl").write_text(json.dumps(record) + "\n")
    value = json.loads(rlsched("queue", "--json").stdout)["runs"]
    expected = {run["run_id"]: run["expected"] for run in value}
    assert expected["aaaa1111"] is None
    assert 1700 < expected["bbbb2222"]["in_s"] <= 1800
    assert expected["bbbb2222"]["after"] == ["aaaa1111"]
    text = r"starts in about (29|30) min[ 0-9s]*, after aaaa1111 \(it is 25% done\)"
    assert re.search(text, expected["bbbb2222"]["text"])
    assert expected["cccc3333"]["in_s"] is None
    assert "waits for bbbb2222" in expected["cccc3333"]["text"]


def test_queue_says_whose_turn_a_run_waits_for(
    rlsched: Rlsched, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "1")
    host, now = socket.gethostname(), time.time()
    for run_id in ("aaaa1111", "bbbb2222"):
        submit(store, run_id, host=host, config={"quantum_s": 1000.0})
    store.claim("aaaa1111", host, [DeviceShare("cpu-0")], now - 400)
    record = {"number": 1, "history": {}, "time": now, "training": {"can": ["resume"]}}
    (home() / "runs" / "aaaa1111" / "decisions.jsonl").write_text(json.dumps(record) + "\n")

    def text() -> str:
        value = json.loads(rlsched("queue", "--json").stdout)["runs"]
        (found,) = [run["expected"]["text"] for run in value if run["expected"]]
        return str(found)

    why = r"starts in about 1[67] min[ 0-9s]*, after aaaa1111 \(its turn of quantum_s 1000 s\)"
    assert re.fullmatch(why, text()), "who has just come waits as long as a quantum"
    monkeypatch.setattr(time, "time", lambda: now + 700)
    assert re.fullmatch(why.replace("1[67]", "[45]"), text())
    store.prioritize("bbbb2222", -1)
    assert "it tells no progress" in text()


def test_a_run_whose_configuration_cannot_be_read_is_listed(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111", config={"launcher": "of a later version"})
    run = json.loads(rlsched("queue", "--json").stdout)["runs"][0]
    assert (run["run_id"], run["expected"]) == ("aaaa1111", None)


def test_queue_of_runs_nested_or_of_parts(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111", parent_run_id="p", parent_attempt_dir="/p/attempts/1")
    submit(store, "bbbb2222", config={"gpus": {"initial": 2}, "gpu_fraction": 0.25})
    submit(store, "cccc3333", config={"gpus": {"initial": 0}})
    lines = rlsched("queue").stdout.splitlines()
    assert "its parent's" in lines[1]
    assert "2 GPUs at 25 % or 2 slots" in lines[2]
    assert "0 GPUs or 0 slots" in lines[3]


def test_an_empty_queue(rlsched: Rlsched, store: Store) -> None:
    assert rlsched("queue").stdout == "no run waits or runs\n"
    submit(store, "aaaa1111")
    store.end_queued("aaaa1111", Ending(State.KILLED, "cancelled", ""), now=1.0)
    assert rlsched("queue").stdout == "no run waits or runs\n"


def test_reading_makes_no_store(rlsched: Rlsched, url: str) -> None:
    result = rlsched("queue")
    assert (result.exit_code, result.stdout) == (0, f"no runs yet: there is no store {url}\n")
    assert json.loads(rlsched("queue", "--json").stdout)["runs"] == []
    assert not home().exists()


def test_names_cannot_command_the_terminal(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111", label="[red]x\x1b[31m\nfake line")
    out = rlsched("queue").stdout
    assert "\x1b" not in out
    assert "[red]x [31m fake line" in out.splitlines()[1]


def test_a_long_queue_shows_its_head_and_all_when_asked(rlsched: Rlsched, store: Store) -> None:
    for number in range(105):
        submit(store, f"{number:04d}aaaa")
    lines = rlsched("queue").stdout.splitlines()
    assert len(lines) == 1 + 100 + 2
    assert "and 5 more: `rlsched queue --all`" in lines
    assert len(rlsched("queue", "--all").stdout.splitlines()) == 1 + 105 + 1
    assert len(json.loads(rlsched("queue", "--json").stdout)["runs"]) == 105


def test_the_queue_is_shown_without_loading_mlflow(store: Store, url: str) -> None:
    submit(store, "aaaa1111")
    program = (
        "import sys; from mlflow_rlsched.cli import main; main(standalone_mode=False);"
        "print('mlflow' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "queue", "--store", url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "aaaa1111" in done.stdout
    assert done.stderr == "False\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (7200, "2 h"),
        (90061, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# show


@pytest.fixture
def retried(store: Store) -> str:
    """A run in its second attempt, after a first one that was killed."""
    submit(store, "aaaa1111", label="quick-fox", tracking_uri="http://127.0.0.1:5000/")
    store.claim("aaaa1111", "here", [DeviceShare("cpu-0")], now=1000.0)
    store.end_attempt("aaaa1111", 1, AGAIN, now=1060.0)
    store.release("aaaa1111", 1)
    store.claim("aaaa1111", "here", [DeviceShare("cpu-1", 50)], now=time.time())
    write("aaaa1111", 1, "output.log", "first\n")
    write("aaaa1111", 2, "output.log", "second\n")
    reports = [
        {"event": "hello", "can": ["resume"]},
        {"time": 10.0, "samples": 100, "loss": 2.5, "batch_size": 54},
        {"time": 12.0, "samples": 300, "loss": 1.25, "epoch": 1},
    ]
    write("aaaa1111", 2, "report.jsonl", "".join(json.dumps(report) + "\n" for report in reports))
    write("aaaa1111", 2, "report.jsonl", '{"time": 13, "loss": ')
    return "aaaa1111"


def test_show_tells_the_whole_story(rlsched: Rlsched, retried: str) -> None:
    result = rlsched("show", "aaaa")
    assert result.exit_code == 0
    out = result.stdout
    for words in (
        "aaaa1111  quick-fox",
        "state         running\n",
        "lr=0.1, batch_size=64",
        "batch size    54",
        "epoch 1, samples 300, loss 1.25, throughput 100",
        "http://127.0.0.1:5000/#/experiments/1/runs/aaaa1111",
        "it was ended by SIGKILL from outside",
        "cpu-1 50 %",
        str(home() / "runs" / retried),
    ):
        assert words in out
    first, second = out[out.index("ATTEMPT") :].splitlines()[1:3]
    assert first.split()[0] == "1"
    assert "137" in first
    assert second.rstrip().endswith("running")


def test_show_as_json(rlsched: Rlsched, retried: str) -> None:
    value = json.loads(rlsched("show", retried, "--json").stdout)
    assert value["state"] == "running"
    assert value["batch_size"] == 54
    assert value["progress"]["throughput"] == 100.0
    assert value["last_output"] == ["second"]
    first, second = value["attempts"]
    assert (first["exit_code"], first["reason"], first["ended_at"]) == (137, "killed", 1060.0)
    assert second["devices"] == [{"device": "cpu-1", "amount": 50}]


def test_show_of_a_failure_ends_with_its_last_output(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111", tracking_uri="sqlite:////data/my runs/mlflow.db")
    store.claim("aaaa1111", "here", [], now=1000.0)
    lines = [f"line {number}" for number in range(20_000)]
    write("aaaa1111", 1, "output.log", "\n".join([*lines, "ValueError: no such file\x1b[0m"]))
    ending = Ending(State.FAILED, "user_error", "it exited with code 1", 1)
    store.end_attempt("aaaa1111", 1, ending, now=1003.0)
    out = rlsched("show", "aaaa1111").stdout
    assert out.endswith("  line 19999\n  ValueError: no such file [0m\n")
    assert "line 19990" not in out
    assert "mlflow ui --backend-store-uri 'sqlite:////data/my runs/mlflow.db'" in out


def test_show_of_a_run_that_never_started(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111")
    result = rlsched("show", "aaaa1111")
    assert result.exit_code == 0
    assert "queued" in result.stdout
    assert "ATTEMPT" not in result.stdout


# logs


def test_logs_prints_all_attempts(rlsched: Rlsched, retried: str) -> None:
    assert rlsched("logs", "aaaa").stdout == "first\nsecond\n"
    value = json.loads(rlsched("logs", "aaaa", "--json").stdout)
    assert value == {"run_id": "aaaa1111", "output": "first\nsecond\n"}


def test_logs_passes_bytes_on_as_they_are(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111")
    path = write("aaaa1111", 1, "output.log", "")
    path.write_bytes(b"\x1b[1m100%\xff\r\n")
    assert rlsched("logs", "aaaa1111").stdout_bytes == b"\x1b[1m100%\xff\r\n"


def test_logs_follows_until_the_run_is_over(rlsched: Rlsched, store: Store, retried: str) -> None:
    def go_on() -> None:
        write(retried, 2, "output.log", "third\n")
        done = Ending(State.FINISHED, "", "", 0)
        write(retried, 2, "output.log", "last\n")
        store.end_attempt(retried, 2, done, time.time())

    timer = threading.Timer(0.3, go_on)
    timer.start()
    assert rlsched("logs", "-f", "aaaa").stdout == "first\nsecond\nthird\nlast\n"
    timer.join()


def test_logs_of_a_run_that_waits_says_so(
    rlsched: Rlsched, store: Store, retried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is simulated."""
    ended = Ending(State.QUEUED, "lost", "its shim was killed", not_before=time.time() + 600)
    store.end_attempt(retried, 2, ended, time.time())

    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            store.end_queued(retried, Ending(State.KILLED, "cancelled", ""), time.time())

    monkeypatch.setattr("time.sleep", sleep)
    result = rlsched("logs", "-f", "aaaa")
    assert len(looks) == 3
    assert result.stdout == "first\nsecond\n"
    assert result.stderr.startswith("run aaaa1111 waits: will be tried again in 10 min")
    assert result.stderr.endswith("; its shim was killed\n")
    assert result.stderr.count("\n") == 1


def test_logs_into_a_closed_pipe_ends_quietly(store: Store, url: str) -> None:
    submit(store, "aaaa1111")
    write("aaaa1111", 1, "output.log", "x" * 4_000_000)
    rlsched = Path(sys.executable).with_name("rlsched")
    reader, writer = os.pipe()
    command = [str(rlsched), "logs", "aaaa1111", "--store", url]
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, "")


def test_follow_and_json_exclude_each_other(rlsched: Rlsched, retried: str) -> None:
    assert rlsched("logs", "-f", "--json", "aaaa").exit_code == 2


def test_queue_names_the_quota_that_a_run_waits_for(
    rlsched: Rlsched, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "4")
    host = socket.gethostname()
    for run_id, gpus in (("aaaa1111", 1), ("bbbb2222", 1), ("cccc3333", 3)):
        config = {"gpus": {"initial": gpus, "min": gpus, "max": gpus}, "quotas": {"ada": 1}}
        submit(store, run_id, host=host, config=config)
    store.claim("aaaa1111", host, [DeviceShare("cpu-0")], time.time())
    value = json.loads(rlsched("queue", "--json").stdout)["runs"]
    texts = {run["run_id"]: run["expected"] and run["expected"]["text"] for run in value}
    assert texts == {
        "aaaa1111": None,
        "bbbb2222": "waits for another run of ada: the quota of ada is 1",
        "cccc3333": "never starts: it wants 3 devices at once, and the quota of ada is 1;"
        " cancel it",
    }


def test_queue_and_show_tell_what_the_pool_gives_a_run(rlsched: Rlsched, store: Store) -> None:
    submit(store, "aaaa1111", config={"gpus": {"initial": 1, "min": 1, "max": 4}})
    store.claim("aaaa1111", "here", [DeviceShare("cpu-0")], time.time())
    run_dir = home() / "runs" / "aaaa1111"
    why = "the pool gives this run at most 2 of 4 devices while 3 wait"
    decision_log.append(run_dir, {"number": 1, "attempt": 1, "budget": {"gpus": 2, "why": why}})
    assert why in rlsched("queue").stdout
    (row,) = json.loads(rlsched("queue", "--json").stdout)["runs"]
    assert row["budget"] == {"gpus": 2, "why": why}
    store.end_attempt("aaaa1111", 1, AGAIN, now=time.time())
    assert json.loads(rlsched("show", "aaaa1111", "--json").stdout)["budget"] is None
    assert why not in rlsched("queue").stdout
