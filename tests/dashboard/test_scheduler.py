"""What the pages read of this host."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from rlsched_dashboard.sources.scheduler import Scheduler


def busy_in_another_thread(source: Scheduler) -> float:
    """The cores' utilisation, as a thread of the server that never looked before reads it."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(source.cpu_fraction()))
    thread.start()
    thread.join()
    return found[0]


def test_each_thread_of_the_server_sees_how_busy_the_cores_are(tmp_path: Path) -> None:
    source = Scheduler(f"sqlite:///{tmp_path}/rlsched.db")
    for _ in range(2):
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        assert 0 < busy_in_another_thread(source) <= 1
        source._kept.clear()
