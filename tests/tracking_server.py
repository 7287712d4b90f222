"""A real MLflow server that a test can kill, freeze and start again, and a run that lives on."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from mlflow.entities import Metric

from mlflow_rlsched.agent.loop import SAMPLE_S
from mlflow_rlsched.store import State, Task
from tests.world import FAULTY, World, make_tracking_database, wait_for

# Not a reading of the processes, which are left out before they start and after they end.
SAMPLED = "system/network_receive_megabytes"


class TrackingServer:
    """``mlflow server`` with SQLite behind it, on a port of its own.

    Args:
        folder: For the database, the artifacts and the log.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        make_tracking_database(folder / "mlflow.db", "mlflow-artifacts:/0")

    def start(self) -> None:
        """Start unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        command = [
            str(Path(sys.executable).with_name("mlflow")),
            *("server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"),
            *("--artifacts-destination", str(self._folder / "artifacts")),
        ]
        # A server belongs to no world, and outlives those that use it.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RLSCHED_", "MLFLOW_"))}
        env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        wait_for(self._answers, 120)

    def kill(self) -> None:
        """SIGKILL: connections are refused from now on."""
        if self._process is not None:
            self._send(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted, and nothing is answered."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after ``freeze``."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def submit_to(world: World, server: TrackingServer) -> None:
    """Let what the world submits from now on be tracked by the server."""
    world.tracking_uri = world.env["MLFLOW_TRACKING_URI"] = server.uri


def live_through_outage(world: World, server: TrackingServer, seconds: float) -> None:
    """Stop the server for at least so long while one run goes on and another one ends.

    Nothing may be missing afterwards, nobody may wait for the server.
    """
    submit_to(world, server)
    local = f"sqlite:///{world.folder}/mlflow.db"
    ledger = world.root / "ledger"
    long = world.submit(FAULTY, "count", {"steps": 100_000, "step_s": 0.05}, {"grace_s": 10})
    world.running(long.run_id)
    command = world.mlflow_run(
        FAULTY, "-e", "script", *("-P", "steps=120", "-P", "step_s=0.05", "-P", f"ledger={ledger}")
    )
    (short,) = wait_for(lambda: [t for t in world.unfinished() if t.run_id != long.run_id], 60)
    world.running(short.run_id)
    wait_for(lambda: world.run_of(short.run_id).info.status == "RUNNING")
    server.kill()
    killed = time.time()

    # The end of a run is noticed at once, and its command does not wait for ever.
    over = wait_for(lambda: _final(world, short.run_id), 60)
    assert over.state is State.FINISHED
    assert over.ended_at is not None
    assert over.ended_at - ledger.stat().st_mtime < 5
    world.tracking_uri = local
    other = world.submit(FAULTY, "script", {"steps": 5})
    assert world.over(other.run_id, 20).state is State.FINISHED
    assert world.run_of(other.run_id).info.status == "FINISHED"
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 0, output
    assert "does not answer; the run's status follows later" in output
    assert output.count("step 120\n") == 1
    assert 29 < time.time() - over.ended_at < 40
    wait_for(lambda: time.time() > killed + seconds, seconds + 60)
    assert world.task(long.run_id).state is State.RUNNING
    assert not world.task(short.run_id).tracked

    server.start()
    back = time.time()
    world.tracking_uri = server.uri
    assert world.over(short.run_id).tracked
    told = world.run_of(short.run_id)
    assert (told.info.status, told.info.end_time) == ("FINISHED", int(1000 * over.ended_at))
    assert told.data.tags["rlsched.state"] == "finished"
    assert told.data.tags["rlsched.attempts"] == "1"
    copy = world.client.download_artifacts(short.run_id, "rlsched/output.log", str(world.root))
    assert Path(copy).read_text().splitlines() == [f"step {n}" for n in range(1, 121)]

    assert world.run_of(long.run_id).info.status == "RUNNING"
    long.cancel()
    ended = world.over(long.run_id)
    assert world.run_of(long.run_id).info.status == "KILLED"
    for task in (over, ended):
        _assert_no_gap(world, task)
    times = [p.timestamp / 1000 for p in _history(world, long.run_id)]
    assert len([t for t in times if killed < t < back]) >= (back - killed) / SAMPLE_S - 2
    assert "Traceback" not in world.agent.log.read_text()


def _final(world: World, run_id: str) -> Task | None:
    task = world.task(run_id)
    return task if task.state.final else None


def _history(world: World, run_id: str) -> list[Metric]:
    return world.client.get_metric_history(run_id, SAMPLED)


def _assert_no_gap(world: World, task: Task) -> None:
    """As many samples as were taken, each once, one every SAMPLE_S."""
    history = _history(world, task.run_id)
    assert [p.step for p in history] == list(range(len(history)))
    # What a training reported after the last sample has a step of its own.
    assert world.task(task.run_id).samples - len(history) in (0, 1)
    assert task.started_at is not None
    assert task.ended_at is not None
    times = [task.started_at, *(p.timestamp / 1000 for p in history), task.ended_at]
    longest = max(after - before for before, after in itertools.pairwise(times))
    assert longest < 2 * SAMPLE_S + 2
