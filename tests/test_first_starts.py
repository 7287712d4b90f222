"""Eight first starts at once: nobody has a home, a store or a tracking database yet."""

from __future__ import annotations

from tests.world import FAULTY, World

STARTS = 8


def test_eight_first_starts_at_once_all_finish(world: World) -> None:
    (world.folder / "mlflow.db").unlink()
    del world.env["MLFLOW_TRACKING_URI"]  # MLflow makes mlflow.db in the folder it is started in
    world.home.rmdir()
    arguments = ("-e", "script", "-P", "steps=3", "-P", "step_s=0.01")
    started = [world.mlflow_run(FAULTY, *arguments) for _ in range(STARTS)]
    outputs = [process.communicate(timeout=240)[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output
        assert "step 3\n" in output
        assert "locked" not in output
        assert "Traceback" not in output
    statuses = [run.info.status for run in world.client.search_runs(["0"])]
    assert statuses == ["FINISHED"] * STARTS
    assert len({task.run_id for task in world.store.tasks()}) == STARTS
