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
        figures = [wall_time(place, 2 if quick else 70, 1 if quick else 3)]
        figures.append(start_up(place, 2 if quick else 7))
    with host(slots=20) as place:
        figures += agent_load(place, 10 if quick else 60)
    return [*figures, step_time(), import_time(), *decision_cost(3 if quick else 15)]


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


def decision_cost(blocks: int) -> list[Figure]:
    """What live decisions cost the agent (milliseconds each) and the training (percent)."""
    code = textwrap.dedent(
        """
        import json, pathlib, statistics, sys, tempfile, time
        from mlflow_rlsched.agent.policies import Policies
        from mlflow_rlsched.agent.tuning import Tuning
        from mlflow_rlsched.config import find_knobs, resolve
        from mlflow_rlsched.protocol import Report
        from mlflow_rlsched.versions import Versions
        folder = pathlib.Path(tempfile.mkdtemp()) / "attempts" / "1"
        folder.mkdir(parents=True)
        parameters = {"batch_size": 64, "lr": 0.1}
        config = find_knobs(resolve({"policy": "ddpg"}, None, {}), parameters, {})
        tuning = Tuning(folder, 1, config, [], 1, 2**34, Policies(Versions(), 1))
        tuning.observe(Report("hello", frozenset({"batch_size", "learning_rate"})))
        seconds = []
        for n in range(1, 301):
            for i in range(5):
                at = 5.0 * n + i
                tuning.observe(Report(numbers={"time": at, "samples": 64 * at, "step": at,
                    "loss": 2 / at + i % 2, "grad_sqr": 1.0, "grad_var": 9.0, "batch_size": 64,
                    "progress": n / 400, "applied_seq": tuning._seq}))
            began = time.process_time()
            tuning.decide(0.0)
            seconds.append(time.process_time() - began)
        print(1000 * statistics.median(seconds))
        """
    )
    decision = statistics.median(float(_python(code)) for _ in range(3))
    share = float(_python(_TRAINING, str(blocks)))
    return [
        Figure(
            *("agent: one decision", decision, "ms", 5.0, None),
            "processor time with its record, median of 300, median of 3 processes",
        ),
        Figure(
            *("training: cost of being tuned", share, "%", 0.5, None),
            f"projects/digits, batch 8, one thread: processor time a step with session.step, apply"
            f" and gradient statistics over without, median of {blocks} pairs in turn",
        ),
    ]


_TRAINING = textwrap.dedent(
    f"""
    import os, pathlib, statistics, sys, tempfile, time
    folder = pathlib.Path(tempfile.mkdtemp()) / "attempts" / "1"
    folder.mkdir(parents=True)
    os.environ.update(RLSCHED_RUN_DIR=str(folder.parent.parent), RLSCHED_ATTEMPT="1",
                      RLSCHED_ATTEMPT_DIR=str(folder),
                      RLSCHED_CHECKPOINT_DIR=str(folder.parent.parent / "checkpoints"))
    sys.path.insert(0, {str(PROJECTS / "digits")!r})
    import torch
    from torch import nn
    from train import load_images, network
    from mlflow_rlsched import attach
    torch.set_num_threads(1)
    images, labels = load_images("cpu")

    class Arm:
        def __init__(self, session):
            torch.manual_seed(0)
            self.model, self.session, self.at = network(64), session, 0
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5)
            if session is not None:
                session.apply(self.optimizer)

        def block(self, steps):
            began = time.process_time()
            for _ in range(steps):
                self.at = (self.at + 8) % 1400
                batch = slice(self.at, self.at + 8)
                loss = nn.functional.cross_entropy(self.model(images[batch]), labels[batch])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if self.session is not None:
                    self.session.step(loss=loss, samples=8)
            return time.process_time() - began

    plain, tuned = Arm(None), Arm(attach(batch_size=8, learning_rate=1e-5))
    for arm in (plain, tuned):
        arm.block(200)
    ratios = []
    for number in range(int(sys.argv[1])):
        first, second = (plain, tuned) if number % 2 else (tuned, plain)
        seconds = {{id(arm): arm.block(400) for arm in (first, second)}}
        ratios.append(seconds[id(tuned)] / seconds[id(plain)])
    print(100 * (statistics.median(ratios) - 1))
    """
)


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


def _python(code: str, *args: str) -> str:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


main = command(measure)

if __name__ == "__main__":
    main()
