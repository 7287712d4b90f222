"""What the tests of the integrations share: some data, and attempts in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mlflow_rlsched.training.session import Session
from tests.training.run_directory import RunDirectory

SAMPLES, EPOCHS = 100, 4


def needs(framework: str) -> pytest.MarkDecorator:
    """Skips a test, or a file of tests, where a framework is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(framework) is None,
        reason=f"{framework} is not installed: pip install 'mlflow-rlsched[{framework}]'",
    )


def dataset() -> TensorDataset:
    """Four numbers a sample, and one of three classes."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (SAMPLES,), generator=generator))


def data(batch_size: int, **options: Any) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(dataset(), batch_size=batch_size, shuffle=True, **options)


class Attempts:
    """The attempts of one run, one after the other in this process; the first has begun."""

    def __init__(self, run: RunDirectory, patch: pytest.MonkeyPatch) -> None:
        self.run, self.number = run, 1
        self._patch = patch

    def following(self, **directive: Any) -> None:
        """Begin the next one."""
        self.number += 1
        for name, text in self.run.start_attempt(self.number, **directive).items():
            self._patch.setenv(name, text)

    def told_at(self, step: int, fit: Callable[[], object], **directive: Any) -> None:
        """Run ``fit``, with a directive that is seen at its step after that one."""
        whole = Session.step

        def stepped(session: Session, **values: Any) -> bool:
            changed = whole(session, **values)
            if session.steps == step:
                self.run.direct(self.number, seq=1000, **directive)
                session._look_at = 0.0
            return changed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "step", stepped)
            fit()

    def stopped_at(self, step: int, fit: Callable[[], object]) -> None:
        """Run ``fit`` until it leaves, as it was asked to at its step after that one."""
        with pytest.raises(SystemExit) as left:
            self.told_at(step, fit, action="stop", reason="test")
        assert left.value.code == 75
        assert self.ends() == ("hello", "stopped")
        assert self.run.events(self.number)[-2] == "checkpointed"

    def ends(self) -> tuple[str, str]:
        """The first and the last event of this attempt."""
        events = self.run.events(self.number)
        return events[0], events[-1]

    def told(self, name: str) -> float:
        """A figure of the last report of this attempt."""
        return self.run.reports(self.number)[-1].numbers[name]
