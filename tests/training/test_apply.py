from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from mlflow_rlsched import attach
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "cosine with restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.2, 0.02], total_steps=20),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.ExponentialLR(o, 0.8)], [4]
    ),
}


def parameter() -> torch.nn.Parameter:
    value = torch.nn.Parameter(torch.ones(3))
    value.grad = torch.ones(3)
    return value


def make_optimizer(rates: tuple[Any, ...] = (0.1, 0.01)) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [parameter()], "lr": rate} for rate in rates])


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def recorder(optimizer: torch.optim.Optimizer) -> list[list[float]]:
    """Fills with the rates of each step of ``optimizer``; to be called after ``apply``."""
    seen: list[list[float]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(rates(optimizer)))
    return seen


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_the_users_schedule_goes_on_underneath(
    run: RunDirectory, clock: Clock, schedule: Callable[[Any], Any]
) -> None:
    session = attach(batch_size=64, learning_rate=0.1)
    plain, scaled = make_optimizer(), make_optimizer()
    session.apply(scaled)
    seen = recorder(plain), recorder(scaled)
    schedules = schedule(plain), schedule(scaled)
    for step in range(1, 11):
        for optimizer, its_schedule in zip((plain, scaled), schedules, strict=True):
            optimizer.step()
            its_schedule.step()
        assert rates(scaled) == rates(plain)
        if step == 5:
            run.direct(1, seq=1, lr_scale=0.5)
        clock.now += 1
        session.step()
    factors = [[b / a for a, b in zip(*pair, strict=True)] for pair in zip(*seen, strict=True)]
    assert factors[:5] == [pytest.approx([1, 1])] * 5
    assert factors[5:] == [pytest.approx([0.5, 0.5])] * 5


@pytest.mark.parametrize("every", [1, 4], ids=["by steps", "by epochs"])
def test_a_plateau_is_seen_as_without_us(run: RunDirectory, clock: Clock, every: int) -> None:
    """The schedule that reacts to a metric, not to the step, and compares its own rates."""
    run.direct(1, seq=0, lr_scale=0.5)
    session = attach(learning_rate=0.1)
    plain, scaled = make_optimizer(), make_optimizer()
    session.apply(scaled)
    seen = recorder(plain), recorder(scaled)
    schedules = [lr_scheduler.ReduceLROnPlateau(o, factor=0.1, patience=1) for o in (plain, scaled)]
    for step in range(24):
        for optimizer, schedule in zip((plain, scaled), schedules, strict=True):
            optimizer.step()
            if step % every == 0:
                schedule.step(1.0)
        assert rates(scaled) == rates(plain)
    assert rates(plain)[0] < 0.1
    for before, after in zip(*seen, strict=True):
        assert after == pytest.approx([rate / 2 for rate in before])


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        ("SGD", "sgd"),
        ("Adam", "adam"),
        ("AdamW", "adam"),
        ("NAdam", "adam"),
        ("RAdam", "adam"),
        ("Adamax", "adam"),
        ("RMSprop", "adam"),
        ("Adagrad", "adam"),
        ("Rprop", "rprop"),
    ],
)
def test_the_scheduler_learns_what_kind_the_optimizer_is(
    run: RunDirectory, optimizer: str, name: str
) -> None:
    session = attach(learning_rate=0.1)
    session.load()
    session.apply(getattr(torch.optim, optimizer)([parameter()], lr=0.1))
    session.step()
    assert [report.texts.get("optimizer") for report in run.reports()] == [None, name]


def test_a_class_made_from_a_known_one_is_of_its_kind(run: RunDirectory) -> None:
    class Mine(torch.optim.SGD):
        pass

    session = attach(learning_rate=0.1)
    session.apply(Mine([parameter()], lr=0.1))
    session.apply(torch.optim.Adam([parameter()], lr=0.1))
    session.step()
    assert run.reports()[-1].texts == {"optimizer": "sgd"}


def test_applying_again_changes_nothing(run: RunDirectory) -> None:
    run.direct(1, seq=0, lr_scale=0.5)
    session = attach(learning_rate=0.1)
    optimizer = make_optimizer()
    for _ in range(3):
        session.apply(optimizer)
    seen = recorder(optimizer)
    optimizer.step()
    assert seen == [pytest.approx([0.05, 0.005])]


def test_a_scale_is_not_applied_again_at_each_restart(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate that a resumed training uses comes from the base value."""
    steps = []
    for number in range(1, 5):
        if number > 1:
            for name, text in run.start_attempt(number).items():
                monkeypatch.setenv(name, text)
        run.direct(number, seq=0, lr_scale=0.5)
        session = attach(learning_rate=0.1)
        optimizer = make_optimizer()
        session.apply(optimizer)
        state = session.load()
        assert (state is None) == (number == 1)
        if state is not None:
            optimizer.load_state_dict(state)
        seen = recorder(optimizer)
        optimizer.step()
        steps += seen
        assert session.knobs.learning_rate == pytest.approx(0.05)
        assert session.save(optimizer.state_dict())
    assert steps == [pytest.approx([0.05, 0.005])] * 4


def test_a_rate_in_a_tensor_stays_the_same_tensor(run: RunDirectory) -> None:
    run.direct(1, seq=0, lr_scale=0.5)
    session = attach(learning_rate=0.1)
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([parameter()], lr=rate, foreach=False)
    session.apply(optimizer)
    seen = recorder(optimizer)
    for _ in range(2):
        optimizer.step()
    assert seen == [pytest.approx([0.05])] * 2
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


def test_a_step_that_failed_leaves_no_scale_behind(run: RunDirectory) -> None:
    run.direct(1, seq=0, lr_scale=0.5)
    session = attach(learning_rate=0.1)
    optimizer = make_optimizer()
    session.apply(optimizer)
    seen = recorder(optimizer)

    def closure() -> float:
        raise MemoryError

    for _ in range(2):
        with pytest.raises(MemoryError):
            optimizer.step(closure)
    optimizer.step()
    assert seen == [pytest.approx([0.05, 0.005])] * 3
    assert rates(optimizer) == [0.1, 0.01]


def test_without_a_scale_the_rates_are_not_touched(run: RunDirectory) -> None:
    session = attach(learning_rate=0.1)
    optimizer = make_optimizer()
    session.apply(optimizer)
    seen = recorder(optimizer)
    optimizer.step()
    assert seen == [[0.1, 0.01]]


def test_something_else_than_an_optimizer_is_refused(run: RunDirectory) -> None:
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer, got SimpleNamespace"):
        attach(learning_rate=0.1).apply(SimpleNamespace(param_groups=[]))
