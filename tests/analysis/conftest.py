"""A host on which runs of all kinds have ended, made once for all tests of analyses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from mlflow_rlsched.cli import main
from tests.world import FAULTY, World, signal_all, wait_for

Rlsched = Callable[..., Result]

LIVE = {"policy": "goodput", "decision_interval_s": 0.5, "retry_delays_s": [0]}


@dataclass(frozen=True)
class Lived:
    """A host with one CPU slot and what ran there.

    Attributes:
        world: The host.
        recovered: Run that was killed once, and went on from a checkpoint to its end.
        crashed: Run whose training failed.
        silent: Run of a script that tells nothing.
        waited: Run that never started.
        local: Run that MLflow's own backend started.
    """

    world: World
    recovered: str
    crashed: str
    silent: str
    waited: str
    local: str


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    world = World(tmp_path_factory.mktemp("analysed"), os.environ, slots=1)
    with pytest.MonkeyPatch.context() as patch:
        for name, text in world.env.items():
            patch.setenv(name, text)
        patch.chdir(world.folder)
        value = _live(world)
    yield value
    world.end()


def _live(world: World) -> Lived:
    ledger = world.folder / "ledger"
    steps = {"steps": 240, "step_s": 0.02, "every": 80, "ledger": ledger}
    recovered = world.submit(FAULTY, "count", steps, LIVE).run_id
    waited = world.submit(FAULTY, "count", {}, {"queue_timeout_s": 0.5}).run_id
    # More than a second after its checkpoint, so that reports tell what is done twice.
    wait_for(lambda: ledger.exists() and " step 150 " in ledger.read_text(), 60)
    signal_all(world.training_processes())
    ended = [world.submit(FAULTY, "main", {"fault": "crash"}).run_id]
    ended.append(world.submit(FAULTY, "script", {"steps": 5}).run_id)
    local = world.client.create_run("0", tags={"mlflow.project.backend": "local"}).info.run_id
    for run_id in (recovered, waited, *ended):
        world.over(run_id)
    return Lived(world, recovered, ended[0], ended[1], waited, local)


@pytest.fixture
def rlsched(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> Rlsched:
    """Runs a command on the host's store; a traceback fails the test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", lived.world.tracking_uri)
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "1")

    def run(*args: str) -> Result:
        result = CliRunner().invoke(main, [*args, "--store", lived.world.store_url])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def document(result: Result) -> dict[str, object]:
    """What a command printed with ``--json``."""
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found
