"""Policy versions in MLflow's model registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.registry import MODEL, download, register
from mlflow_rlsched.versions import Versions
from tests.policy.trained import trained
from tests.world import make_tracking_database

LOW, HIGH = trained(0.9, {"seeds": [1, 2]}), trained(1.1)


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    make_tracking_database(tmp_path / "mlflow.db", str(tmp_path / "artifacts"))
    return MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where MLflow puts artifacts of experiments by default


def added(version: Version, folder: Path) -> Path:
    return Versions(folder).add(version)


def test_a_version_comes_back_as_it_was_registered(client: MlflowClient, tmp_path: Path) -> None:
    address = register(client, LOW, added(LOW, tmp_path / "mine"))
    assert address == f"models:/{MODEL}/1"
    theirs = Versions(tmp_path / "theirs")
    for text in (address, f"models:/{MODEL}@champion"):
        assert download(client, text, theirs) == theirs.path(LOW.name)
    found = theirs.read(LOW.name)
    assert dict(found.card) == {"seeds": [1, 2]}
    assert (found.arrays["actor.body.4.bias"] == LOW.arrays["actor.body.4.bias"]).all()


def test_the_alias_follows_and_nothing_is_registered_twice(
    client: MlflowClient, tmp_path: Path
) -> None:
    addresses = [
        register(client, version, added(version, tmp_path / "mine")) for version in (LOW, HIGH, LOW)
    ]
    assert addresses == [f"models:/{MODEL}/{number}" for number in (1, 2, 1)]
    assert client.get_model_version_by_alias(MODEL, "champion").version == 1


def test_what_is_there_already_is_not_brought_again(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = register(client, LOW, added(LOW, tmp_path / "mine"))
    theirs = Versions(tmp_path / "theirs")
    file = download(client, address, theirs)
    uri = client.get_model_version_download_uri
    monkeypatch.setattr(client, "get_model_version_download_uri", None)
    assert download(client, address, theirs) == file
    # A copy that was damaged meanwhile is.
    file.write_bytes(b"spoilt")
    monkeypatch.setattr(client, "get_model_version_download_uri", uri)
    assert download(client, address, Versions(tmp_path / "theirs")) == file
    assert Version.read(file).name == LOW.name


@pytest.mark.parametrize("address", ["models:/nothing/1", "models:/nothing@champion"])
def test_an_address_that_leads_nowhere(client: MlflowClient, address: str) -> None:
    with pytest.raises(PolicyFileError, match=f"there is no {address} in the model registry"):
        download(client, address, Versions())


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.txt": b""}, "holds 0 files that end with .safetensors, must be one"),
        ({"a.safetensors": b"", "b.safetensors": b""}, "holds 2 files"),
        ({"a.safetensors": b"spoilt"}, "cannot be read as a policy"),
    ],
)
def test_a_model_that_is_no_policy(
    client: MlflowClient, tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    client.create_registered_model("theirs")
    client.create_model_version("theirs", str(folder))
    with pytest.raises(PolicyFileError, match=says):
        download(client, "models:/theirs/1", Versions())
    assert Versions().names() == []
