"""What was recorded of the runs of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_rlsched.learning import recordings
from mlflow_rlsched.learning.recordings import RecordingError, decided_runs, recorded_run
from mlflow_rlsched.learning.workloads import recorded
from tests.learning.experiments import damage, decided, publish, tracking
from tests.learning.recording import Record


@pytest.fixture(scope="module")
def records() -> list[Record]:
    (found,) = decided(1)
    return found


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    return tracking(tmp_path)


def test_the_newest_runs_that_were_decided_on(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "NEWEST", 2)
    old, new, newest = (publish(client, tmp_path, "mine", [], started) for started in (1, 2, 3))
    publish(client, tmp_path, "another", [], 4)
    mine = client.get_experiment_by_name("mine").experiment_id
    client.create_run(mine, start_time=5)  # nobody decided on it
    assert decided_runs(client, "mine") == [newest, new]
    client.delete_run(newest)
    assert decided_runs(client, "mine") == [new, old]


def test_what_a_run_tells_is_what_its_decisions_tell_and_nothing_else_is_downloaded(
    client: MlflowClient, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = publish(client, tmp_path, "mine", records)
    asked = []
    download = MlflowClient.download_artifacts

    def spied(self: MlflowClient, run_id: str, path: str, dst_path: str | None = None) -> str:
        asked.append(path)
        return str(download(self, run_id, path, dst_path))

    monkeypatch.setattr(MlflowClient, "download_artifacts", spied)
    found = recorded_run(client, run_id)
    assert found is not None
    assert repr(found) == repr(recorded(records))  # NaN is "not known"
    assert asked == ["rlsched/decisions.jsonl"]


def test_without_an_experiment_or_decisions(client: MlflowClient, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"there is no experiment 'mine' at sqlite:///"):
        decided_runs(client, "mine")
    place = client.create_experiment("mine")
    client.create_run(place)
    with pytest.raises(RecordingError, match="no run of the experiment 'mine' was decided on"):
        decided_runs(client, "mine")
    client.delete_experiment(place)
    with pytest.raises(RecordingError, match=rf"restore --experiment-id {place}`"):
        decided_runs(client, "mine")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\x00\x01{", "holds no decision"),
        ('{"number": 1}\n', "is damaged"),
        ('{"number": 1, "history": 3}\n', "is damaged"),
    ],
)
def test_a_damaged_artifact(client: MlflowClient, tmp_path: Path, text: str, says: str) -> None:
    run_id = publish(client, tmp_path, "mine", [])
    with pytest.raises(RecordingError, match=r"has no artifact rlsched/decisions\.jsonl"):
        recorded_run(client, run_id)
    damage(client, tmp_path, run_id, text)
    with pytest.raises(RecordingError, match=says):
        recorded_run(client, run_id)


def test_a_line_that_was_torn_off_does_no_harm(
    client: MlflowClient, tmp_path: Path, records: list[Record]
) -> None:
    run_id = publish(client, tmp_path, "mine", records)
    path = tmp_path / run_id / "decisions.jsonl"
    damage(client, tmp_path, run_id, path.read_text()[:-100])
    assert repr(recorded_run(client, run_id)) == repr(recorded(records[:-1]))
