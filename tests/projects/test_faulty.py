from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_rlsched import processes
from tests.training.run_directory import RunDirectory
from tests.world import PROJECTS, wait_for

FAULTY = [sys.executable, str(PROJECTS / "faulty" / "faulty.py")]


def start(
    run: RunDirectory, number: int, *arguments: str, batch: int | None = None
) -> subprocess.Popen[str]:
    directive = {} if batch is None else {"batch_size": batch}
    return subprocess.Popen(
        [*FAULTY, *arguments],
        env=os.environ | run.start_attempt(number, **directive),
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(run: RunDirectory, *arguments: str, batch: int | None = None) -> tuple[int, str]:
    """Exit code and errors of a first attempt."""
    process = start(run, 1, *arguments, batch=batch)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def of_attempt(run: RunDirectory) -> list[int]:
    return processes.with_environment("RLSCHED_ATTEMPT_DIR", str(run.attempt(1)))


@pytest.fixture
def _nothing_stays(run: RunDirectory) -> Iterator[None]:
    yield
    processes.end(lambda: of_attempt(run), patient=lambda: False)


def test_count_resumes_from_its_last_checkpoint_after_a_kill(
    run: RunDirectory, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    os.mkfifo(ledger)
    arguments = ("count", "--steps", "30", "--step-s", "0.001", "--ledger", str(ledger))
    process = start(run, 1, *arguments)
    with open(ledger) as file:
        first = [next(file).split() for _ in range(28)]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        first += [line.split() for line in file]
    assert [row[2:4] for row in first if row[2] != "step"][:3] == [
        ["start", "0"],
        ["save", "10"],
        ["save", "20"],
    ]
    saved = max(int(row[3]) for row in first if row[2] == "save")

    process = start(run, 2, *arguments)
    with open(ledger) as file:
        second = [line.split() for line in file]
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert {row[0] for row in first} == {"1"}
    assert {row[0] for row in second} == {"2"}
    resumed_from = int(second[0][3])
    assert resumed_from in (saved, saved + 10)  # the kill may fall between a save and its line
    steps = [int(row[3]) for row in second if row[2] == "step"]
    assert steps == list(range(resumed_from + 1, 31))
    assert second[-1][2:4] == ["done", "30"]
    times = [float(row[4]) for row in first + second]
    assert times == sorted(times)
    assert run.events(2)[-1] == "done"
    assert run.reports(2)[-1].numbers["progress"] == 1
    assert run.reports(2)[-1].numbers["step"] == 30


def test_count_stops_when_asked(run: RunDirectory, tmp_path: Path) -> None:
    environment = os.environ | run.start_attempt(1)
    run.direct(1, seq=1, action="stop", reason="test")
    ledger = tmp_path / "ledger"
    done = subprocess.run([*FAULTY, "count", "--ledger", ledger], env=environment)
    assert done.returncode == 75
    assert [line.split()[2:4] for line in ledger.read_text().splitlines()] == [
        ["start", "0"],
        ["step", "1"],
        ["save", "1"],
        ["stop", "1"],
    ]
    assert run.events() == ["hello", "checkpointed", "stopped"]


@pytest.mark.parametrize("arguments", [("fault", "--fault", "oom"), ("count",)])
def test_a_batch_above_what_fits_runs_out_of_memory(
    run: RunDirectory, arguments: tuple[str, ...]
) -> None:
    code, errors = end_of(run, *arguments, "--batch-size", "64", "--fits", "32")
    assert code == 1
    assert errors.splitlines()[-1] == "mlflow-rlsched: out of memory with a batch size of 64"
    assert run.events()[-1] == "oom"


def test_the_batch_of_the_directive_decides_what_fits(run: RunDirectory) -> None:
    arguments = ("fault", "--fault", "oom", "--batch-size", "64", "--fits", "32")
    assert end_of(run, *arguments, batch=32)[0] == 0
    assert run.events() == ["hello", "done"]


@pytest.mark.parametrize(
    ("arguments", "code", "last_line"),
    [
        (("fault", "--fault", "crash"), 3, ""),
        (("fault", "--fault", "fill_disk"), 1, "OSError: [Errno 28] No space left on device"),
        (("script", "--steps", "1", "--exit-code", "4"), 4, ""),
        (("script", "--fits", "8"), 1, "MemoryError: a batch of 64 samples does not fit, 8 would"),
    ],
)
def test_these_end_as_told(
    run: RunDirectory, arguments: tuple[str, ...], code: int, last_line: str
) -> None:
    found, errors = end_of(run, *arguments)
    assert found == code
    assert errors.splitlines()[-1:] == ([last_line] if last_line else [])
    report = run.attempt(1) / "report.jsonl"
    assert report.exists() == (arguments[0] == "fault")
    if report.exists():
        assert run.events() == ["hello"]


@pytest.mark.usefixtures("_nothing_stays")
def test_hang_reports_no_more_and_sleeps(run: RunDirectory) -> None:
    process = start(run, 1, "fault", "--fault", "hang")
    wait_for((run.attempt(1) / "report.jsonl").exists)
    wait_for(lambda: "pause" in Path(f"/proc/{process.pid}/stack").read_text())
    assert process.poll() is None
    assert run.events() == ["hello"]
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("_nothing_stays")
def test_ignore_term_leaves_a_whole_tree_that_must_be_killed(run: RunDirectory) -> None:
    process = start(run, 1, "fault", "--fault", "ignore_term", "--workers", "3")
    wait_for(lambda: len(of_attempt(run)) == 4)
    processes.send(of_attempt(run), signal.SIGTERM)
    ignored = [
        int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1
        for pid in of_attempt(run)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigIgn")
    ]
    assert ignored == [1, 1, 1, 1]
    assert len({os.getsid(pid) for pid in of_attempt(run)}) == 4
    processes.end(lambda: of_attempt(run), patient=lambda: False)
    process.communicate()


@pytest.mark.usefixtures("_nothing_stays")
def test_fork_exits_before_its_workers(run: RunDirectory) -> None:
    process = start(run, 1, "fault", "--fault", "fork", "--workers", "2")
    assert process.wait(timeout=60) == 0
    assert len(of_attempt(run)) == 2
    assert run.events() == ["hello", "done"]
    processes.end(lambda: of_attempt(run), patient=lambda: False)
    process.communicate()
