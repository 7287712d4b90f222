"""Runs whose tracking server is down, or answers nothing, for a while."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from mlflow_rlsched.store import State
from tests.tracking_server import TrackingServer, live_through_outage, submit_to
from tests.world import FAULTY, World, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    """A server for the tests of this module: its start takes seconds."""
    value = TrackingServer(tmp_path_factory.mktemp("tracking") / "server")
    yield value
    value.kill()


def test_nothing_is_missing_after_an_outage(world: World, server: TrackingServer) -> None:
    server.start()
    live_through_outage(world, server, 15)


def test_a_server_that_hangs_holds_nobody_up(world: World, server: TrackingServer) -> None:
    """Its runs end and start, those of another server are told of, a killed agent goes on."""
    server.start()
    local = world.tracking_uri
    submit_to(world, server)
    first = world.submit(FAULTY, "script", {"steps": 60, "step_s": 0.05}, {"cpu_slots": 2})
    world.running(first.run_id)
    second = world.submit(FAULTY, "script", {"steps": 5})
    server.freeze()
    wait_for(lambda: world.task(second.run_id).state.final)
    ended, started = world.task(first.run_id).ended_at, world.task(second.run_id).started_at
    assert ended is not None
    assert started is not None
    assert started - ended < 5
    # The agent is in the middle of a call that is not answered.
    world.tracking_uri = local
    asked = time.monotonic()
    other = world.submit(FAULTY, "script", {"steps": 5})
    assert world.over(other.run_id).state is State.FINISHED
    assert time.monotonic() - asked < 25
    agent = world.agent_process()
    assert agent is not None
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not world.agent.alive())
    world.agent.start()
    assert not world.task(first.run_id).tracked
    server.thaw()
    world.tracking_uri = server.uri
    for run in (first, second):
        task = world.over(run.run_id)
        told = world.run_of(run.run_id)
        assert told.info.status == "FINISHED"
        assert told.data.tags["rlsched.state"] == "finished"
        steps = [
            p.step
            for p in world.client.get_metric_history(run.run_id, "system/network_receive_megabytes")
        ]
        assert steps == list(range(task.samples))
