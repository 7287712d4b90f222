"""The gradient's noise, against what it is known to be, and what measuring it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mlflow_rlsched import attach
from mlflow_rlsched.training import gradients as gradients_module
from mlflow_rlsched.training.gradients import GradientProbe
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory

DIMENSIONS = 20
ERROR = 0.5
"""Length of w - w*: of a linear regression with inputs x ~ N(0, I), labels x·w* + N(0, NOISE²) and
the loss (x·w - y)²/2, the gradient of one sample is x(x·e - n) with e = w - w*, so that G = e and
tr(Σ) = E|x|²(x·e - n)² - |e|² = (d + 2)|e|² + d·NOISE² - |e|² = (d + 1)|e|² + d·NOISE²."""
NOISE = 0.5
GRAD_SQR = ERROR**2
GRAD_VAR = (DIMENSIONS + 1) * ERROR**2 + DIMENSIONS * NOISE**2
BATCH = 64
SAMPLES = 400


class Regression:
    """Linear regression whose parameters stay where they are (a learning rate of 0)."""

    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.model = nn.Linear(DIMENSIONS, 1, bias=False)
        with torch.no_grad():
            self.model.weight.fill_(ERROR / DIMENSIONS**0.5)  # w* = 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def backward(self, samples: int, scale: float = 1.0) -> None:
        x = torch.randn(samples, DIMENSIONS, generator=self.random)
        y = NOISE * torch.randn(samples, generator=self.random)
        ((self.model(x)[:, 0] - y).square().mean() / 2 * scale).backward()


def means(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(s[name] for s in samples) / len(samples) for name in samples[0]}


def take_samples(probe: GradientProbe, optimizer: Any, backward: Any) -> list[dict[str, float]]:
    """SAMPLES samples, as a session takes them."""
    taken, now = [], 0.0
    while len(taken) < SAMPLES:
        now += 1e6
        probe.arm(now)
        optimizer.zero_grad()
        backward()
        optimizer.step()
        if probe.armed:
            probe.stepped(BATCH, now)
        if sample := probe.read():
            taken.append(sample)
    return taken


def assert_close_to_truth(mean: dict[str, float]) -> None:
    """Within four standard errors: one sample spreads by up to 0.13 and 3.8 (measured)."""
    assert mean["grad_sqr"] == pytest.approx(GRAD_SQR, abs=4 * 0.13 / SAMPLES**0.5)
    assert mean["grad_var"] == pytest.approx(GRAD_VAR, abs=4 * 3.8 / SAMPLES**0.5)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("divided", [True, False])
def test_the_noise_of_a_known_problem(micro_batches: int, divided: bool) -> None:
    problem = Regression()
    scale = 1 / micro_batches if divided else 1.0

    def backward() -> None:
        for _ in range(micro_batches):
            problem.backward(BATCH // micro_batches, scale)

    mean = means(take_samples(GradientProbe(problem.optimizer), problem.optimizer, backward))
    factor = (micro_batches * scale) ** 2
    assert_close_to_truth(
        {"grad_sqr": mean["grad_sqr"] / factor, "grad_var": mean["grad_var"] / factor}
    )


def test_a_part_of_the_elements_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_module, "_MAX_ELEMENTS", 4)
    problem = Regression()
    probe = GradientProbe(problem.optimizer)
    samples = take_samples(probe, problem.optimizer, lambda: problem.backward(BATCH))
    spread = 5**0.5  # of one element in five the sum varies at most five times as much
    mean = means(samples)
    assert mean["grad_sqr"] == pytest.approx(GRAD_SQR, abs=4 * spread * 0.13 / SAMPLES**0.5)
    assert mean["grad_var"] == pytest.approx(GRAD_VAR, abs=4 * spread * 3.8 / SAMPLES**0.5)


RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from mlflow_rlsched.training.gradients import GradientProbe
from tests.training.test_gradients import BATCH, SAMPLES, Regression

rendezvous, how = sys.argv[1:]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + rendezvous, world_size=2, rank=rank)
problem = Regression()
problem.random.manual_seed(rank)
weight = problem.model.weight
if how == "clipped":
    problem.model = nn.parallel.DistributedDataParallel(problem.model)

def backward():
    problem.backward(BATCH // 2)
    if how == "by hand":
        dist.all_reduce(weight.grad)
        weight.grad /= 2
    else:
        nn.utils.clip_grad_norm_(weight, 0.01)

probe = GradientProbe(problem.optimizer)
samples = []
for number in range(3 * SAMPLES):
    probe.arm(1e6 * number)
    problem.optimizer.zero_grad()
    backward()
    problem.optimizer.step()
    if probe.armed:
        probe.stepped(BATCH, 1e6 * number)
    if sample := probe.read():
        samples.append(sample)
print(json.dumps(samples), flush=True)
dist.barrier()
os._exit(0)  # gloo may abort a usual exit
"""


@pytest.mark.parametrize("how", ["clipped", "by hand"])
def test_two_ranks_tell_the_noise_of_a_known_problem(tmp_path: Path, how: str) -> None:
    """Only rank 0 measures, from its own gradient and the mean; it needs no message for that."""
    command = [sys.executable, "-c", RANK, tmp_path / "meeting", how]
    processes = [
        subprocess.Popen(
            ["env", f"RANK={rank}", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (json.loads(output) for output, _ in outputs)
    assert second == []
    assert len(first) > SAMPLES
    assert_close_to_truth(means(first))


def test_a_session_reports_the_noise_and_the_kind_of_optimizer(
    run: RunDirectory, clock: Clock
) -> None:
    session = attach(batch_size=BATCH, learning_rate=0.1)
    session.load()
    problem = Regression()
    session.apply(problem.optimizer)
    for _ in range(20):
        clock.now += 1
        problem.optimizer.zero_grad()
        problem.backward(BATCH)
        problem.optimizer.step()
        session.step(loss=1.0)
    hello, first, *others = run.reports()
    assert first.texts == {"optimizer": "sgd"}
    assert all(report.texts == {} for report in (hello, *others))
    noisy = [report.numbers for report in others if "grad_var" in report.numbers]
    assert len(noisy) >= 5
    for numbers in noisy:
        assert numbers["grad_var"] > 0
        assert numbers["grad_norm"] > 0
        assert "grad_sqr" in numbers


def test_gradients_that_are_not_finite_are_no_sample() -> None:
    problem = Regression()
    probe = GradientProbe(problem.optimizer)
    for step in range(2):
        probe.arm(0.0)
        problem.optimizer.zero_grad()
        problem.backward(BATCH, scale=float("nan") if step else 1.0)
        problem.optimizer.step()
        probe.stepped(BATCH, 0.0)
    assert not probe.armed
    assert probe.read() == {}


def test_a_step_that_the_optimizer_left_out_is_no_sample() -> None:
    """As a GradScaler does when a gradient overflowed."""
    problem = Regression()
    probe = GradientProbe(problem.optimizer)
    probe.arm(0.0)
    problem.backward(BATCH)
    probe.stepped(BATCH, 0.0)
    assert not probe.armed
    assert probe.read() == {}
    assert not problem.model.weight._backward_hooks


@pytest.mark.parametrize("cost_s", [0.0, 0.001, 0.1])
def test_measuring_takes_at_most_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, cost_s: float
) -> None:
    """A simulated clock: each piece of the measuring takes ``cost_s``, a step 10 ms."""
    spent = 0.0

    def perf_counter() -> float:
        nonlocal spent
        spent += cost_s
        return spent

    fake = type("Time", (), {"perf_counter": staticmethod(perf_counter)})
    monkeypatch.setattr(gradients_module, "time", fake)
    problem = Regression()
    probe = GradientProbe(problem.optimizer)
    samples, now = 0, 0.0
    for _ in range(20_000):
        now += 0.01
        probe.read()
        probe.arm(now)
        if probe.armed:
            problem.backward(1)
            problem.optimizer.step()
            probe.stepped(1, now)
            samples += not probe.armed
    measured = spent / 2  # the clock is read before and after
    assert measured <= gradients_module.SHARE * now + 4 * cost_s  # and once more than it was due
    assert samples == pytest.approx({0.0: 200, 0.001: 198, 0.1: 3}[cost_s], rel=0.1)


def test_nothing_is_measured_where_it_cannot_be() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter._fsdp_flattened = True  # type: ignore[attr-defined]
    for parameters in (
        [parameter],
        [nn.Parameter(torch.ones(1, device="meta")), nn.Parameter(torch.ones(1))],
    ):
        probe = GradientProbe(torch.optim.SGD(parameters, lr=0.1))
        probe.arm(1.0)
        assert not probe.armed
