"""What a page of a run is sent while the run goes on."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
from mlflow.entities import Metric

from rlsched_dashboard.app import context_of
from rlsched_dashboard.charts import FEW
from rlsched_dashboard.run_updates import Seen, updates
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources import tracking as module
from rlsched_dashboard.sources.run import read_run
from rlsched_dashboard.timeline import Timeline
from tests.world import make_tracking_database


def test_new_points_are_sent_alone_until_the_line_is_to_look_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    make_tracking_database(tmp_path / "mlflow.db", f"file://{tmp_path}/artifacts")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    run_id = client.create_run("0", tags={"rlsched.state": "running"}).info.run_id
    context = context_of(Settings(f"sqlite:///{tmp_path}/rlsched.db", uri))
    timeline = Timeline(1_700_000_000, 100, "UTC")

    def logged(first: int, last: int) -> None:
        points = [Metric("loss", n, 1_700_000_000_000 + 1000 * n, n) for n in range(first, last)]
        client.log_batch(run_id, points)

    logged(0, FEW - 2)
    before = Seen.of(context, read_run(context, run_id), timeline)
    logged(FEW - 2, FEW - 1)
    data = read_run(context, run_id)
    now = Seen.of(context, data, timeline)
    news = updates(context, data, timeline, before, now)
    assert news is not None
    assert news["loss"][0]["y"] == [[FEW - 2]]
    logged(FEW - 1, FEW)
    data = read_run(context, run_id)
    assert updates(context, data, timeline, now, Seen.of(context, data, timeline)) is None
