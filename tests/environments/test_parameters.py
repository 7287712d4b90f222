"""Parameters that are paths: local ones, and those to be downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_rlsched.store import State
from tests.environments.conftest import Place

MLPROJECT = """
name: reader
entry_points:
  main:
    parameters:
      here: path
      there: {type: path, default: data.txt}
      where: {type: uri, default: "s3://bucket/key"}
    command: "python train.py {here} {there} {where}"
"""


@pytest.fixture
def reader(place: Place) -> Place:
    (place.project / "MLproject").write_text(MLPROJECT)
    (place.world.folder / "data.txt").write_text("local")  # the submitter's folder
    return place


def test_local_paths_are_those_of_the_submitters_folder(reader: Place) -> None:
    run_id = reader.submit("main", params={"here": "data.txt"})
    task = reader.world.over(run_id)
    assert task.state is State.FINISHED, task.message
    path = str(reader.world.folder / "data.txt")
    assert reader.seen(run_id)["argv"] == [path, path, "s3://bucket/key"]
    assert reader.world.run_of(run_id).data.params["here"] == "data.txt"


def test_remote_paths_are_downloaded_into_the_storage_folder_at_the_start(reader: Place) -> None:
    client = reader.world.client
    source = client.create_run("0").info.run_id
    client.log_text(source, "remote", "data.txt")
    uri = f"runs:/{source}/data.txt"
    run_id = reader.submit("main", params={"here": uri}, storage_dir="downloads")
    task = reader.world.over(run_id)
    assert task.state is State.FINISHED, task.message
    here, there, where = reader.seen(run_id)["argv"]
    assert Path(here).is_relative_to(reader.world.folder / "downloads")
    assert Path(here).read_text() == "remote"
    assert (there, where) == (str(reader.world.folder / "data.txt"), "s3://bucket/key")
    assert reader.world.run_of(run_id).data.params["here"] == uri
    assert reader.made() == []


def test_a_path_that_cannot_be_downloaded_fails_the_run_with_one_sentence(reader: Place) -> None:
    uri = f"runs:/{'0' * 32}/data.txt"
    run_id = reader.submit("main", params={"here": uri}, storage_dir="downloads")
    task = reader.world.over(run_id)
    assert (task.state, task.exit_reason) == (State.FAILED, "environment_failure")
    assert "0" * 32 in task.message
    assert "\n" not in task.message
