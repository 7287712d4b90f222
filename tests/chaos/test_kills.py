"""kill -9 of trainings, shims, agents, submitters and all of them, at random moments."""

from __future__ import annotations

import pytest

from mlflow_rlsched.daemon import AgentFiles
from tests.chaos import invariants, plans, quick_agent, submitter
from tests.chaos.havoc import Havoc
from tests.world import World


@pytest.fixture(scope="module", autouse=True)
def _submitters() -> None:
    submitter.load()


def survive(world: World, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(AgentFiles, "argv", quick_agent.argv)
    plan = plans.draw(seed)
    havoc = Havoc(world)
    havoc.wreak(plan)
    havoc.see_to_the_end(plan.patience_s)
    invariants.check(world, havoc.accepted)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_killed_is_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    survive(world, monkeypatch, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_what_is_killed_again_and_again_is_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    survive(world, monkeypatch, seed)
