"""What scheduling costs: wall time against the local backend, start-up, session.step, agent."""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import psutil

from benchmarks.figures import Figure, command
from benchmarks.host import PROJECTS, Host, host
from mlflow_rlsched.daemon import AgentFiles

SCHEDULED = ("--backend", "rlsched", "--backend-config", '{"policy": "fixed"}')
LOCAL = ("--backend", "local", "--env-manager", "local")


def measure(quick: bool) -> list[Figure]:
    """All figures; about a quarter of an hour, or two minutes when ``quick``."""
    with host(slots=2) as place:
        figures = [wall_time(place, 2 if quick else 130, 1 if quick else 3)]
        figures.append(start_up(place, 2 if quick else 7))
    with host(slots=20) as place:
        figures += agent_load(place, 10 if quick else 60)
    return [*figures, step_time(), import_time()]


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def wall_time(place: Host, epochs: int, pairs: int) -> Figure:
    """Ratio of the wall times of whole commands, run in turn."""
    project = [str(PROJECTS / "digits"), "-P", f"epochs={epochs}", "-P", "width=64"]
    place.run("mlflow", "run", *project[:1], "-P", "epochs=1", *SCHEDULED)  # warm
    ratios, local_times = [], []
    for _ in range(pairs):
        scheduled = _seconds(lambda: place.run("mlflow", "run", *project, *SCHEDULED))
        local = _seconds(lambda: place.run("mlflow", "run", *project, *LOCAL))
        ratios.append(scheduled / local)
        local_times.append(local)
    return Figure(
        "wall time of a fixed-policy run / local backend",
        statistics.median(ratios),
        "times",
        1.03,
        statistics.median(local_times),
        f"projects/digits, one thread, {pairs} pair(s) in turn; baseline: seconds under local",
    )


def start_up(place: Host, pairs: int) -> Figure:
    """Seconds from the command to the child's first instruction, above the local backend."""
    project = place.root / "stamp"
    project.mkdir()
    (project / "MLproject").write_text(
        'name: stamp\nentry_points:\n  main:\n    command: "date +%s.%N > stamp"\n'
    )

    def latency(*backend: str) -> float:
        began = time.time()
        place.run("mlflow", "run", str(project), *backend)
        return float((project / "stamp").read_text()) - began

    latency(*SCHEDULED)
    latency(*LOCAL)
    more, base = [], []
    for _ in range(pairs):
        local = latency(*LOCAL)
        more.append(latency(*SCHEDULED) - local)
        base.append(local)
    return Figure(
        "submission to first instruction, above local",
        statistics.median(more),
        "s",
        1.0,
        statistics.median(base),
        f"warm agent, {pairs} pairs in turn; baseline: seconds under local",
    )


def agent_load(place: Host, seconds: float) -> list[Figure]:
    """CPU and memory of an agent with 20 running tasks."""
    code = textwrap.dedent(
        """
        import mlflow, sys
        for _ in range(20):
            mlflow.projects.run(sys.argv[1], "count", parameters={"steps": 100000, "step_s": 0.2},
                                backend="rlsched", backend_config={"grace_s": 0},
                                synchronous=False, experiment_id="0")
        """
    )
    place.run("python", "-c", code, str(PROJECTS / "faulty"))
    agent = AgentFiles(place.store)
    process = psutil.Process(agent.identity()["process"]["pid"])
    deadline = time.monotonic() + 60
    while len(list((place.root / "home/runs").glob("*/attempts/1/report.jsonl"))) < 20:
        if time.monotonic() > deadline:
            raise RuntimeError("20 tasks did not start within a minute")
        time.sleep(0.2)
    time.sleep(5)  # the start-up work is not the steady load
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    used = sum(process.cpu_times()[:2]) - before
    memory = process.memory_info().rss / 1e6
    note = f"20 running tasks, sampled every 5 s, over {seconds:.0f} s"
    return [
        Figure("agent: share of one core", 100 * used / seconds, "%", 2.0, None, note),
        Figure("agent: memory", memory, "MB", 500.0, None, note),
    ]


def step_time() -> Figure:
    """Microseconds of ``session.step`` in a scheduled run when there is nothing to do."""
    code = textwrap.dedent(
        """
        import os, pathlib, tempfile, time
        folder = pathlib.Path(tempfile.mkdtemp()) / "attempts" / "1"
        folder.mkdir(parents=True)
        os.environ.update(RLSCHED_RUN_DIR=str(folder.parent.parent), RLSCHED_ATTEMPT="1",
                          RLSCHED_ATTEMPT_DIR=str(folder),
                          RLSCHED_CHECKPOINT_DIR=str(folder.parent.parent / "checkpoints"))
        import torch
        from mlflow_rlsched import attach
        session = attach(batch_size=64, learning_rate=0.1)
        loss = torch.tensor(1.0)
        for _ in range(1000): session.step(loss=loss, samples=64)
        n = 200000
        began = time.perf_counter()
        for _ in range(n): session.step(loss=loss, samples=64)
        print((time.perf_counter() - began) / n * 1e6)
        """
    )
    values = [float(_python(code)) for _ in range(3)]
    note = "mean of 200,000 steps incl. its looks and reports, median of 3 processes"
    return Figure("session.step", statistics.median(values), "µs", 20.0, None, note)


def import_time() -> Figure:
    """Seconds to import the training side, above an empty Python."""
    values = []
    for _ in range(7):
        empty = _seconds(lambda: _python("pass"))
        values.append(_seconds(lambda: _python("import mlflow_rlsched.training")) - empty)
    return Figure(
        "import mlflow_rlsched.training",
        statistics.median(values),
        "s",
        0.1,
        None,
        "whole process above an empty one, median of 7",
    )


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


main = command(measure)

if __name__ == "__main__":
    main()
