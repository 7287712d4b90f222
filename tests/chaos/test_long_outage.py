"""The tracking server is away for two minutes in the middle of a run."""

from __future__ import annotations

import pytest

from tests.tracking_server import TrackingServer, live_through_outage
from tests.world import World


@pytest.mark.chaos
def test_nothing_is_missing_after_two_minutes(world: World) -> None:
    server = TrackingServer(world.root / "server")
    server.start()
    try:
        live_through_outage(world, server, 120)
    finally:
        server.kill()
