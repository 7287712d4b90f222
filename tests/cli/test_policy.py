"""``rlsched policy``: what it shows, what it changes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_rlsched.versions import Versions
from tests.cli.conftest import Rlsched
from tests.policy.trained import trained
from tests.world import make_tracking_database

LOW = trained(0.9, {"data": "six applications", "seeds": [0, 1], "figures": {"gain": 0.3}})
HIGH = trained(1.1)

pytestmark = pytest.mark.usefixtures("no_versions")


@pytest.fixture
def shipped(tmp_path: Path) -> str:
    version = trained(0.85, {"limits": "an example"})
    version.save(tmp_path / "shipped.safetensors")
    return version.name


@pytest.fixture
def low(tmp_path: Path) -> str:
    """A file with the version ``LOW``."""
    LOW.save(tmp_path / "low.safetensors")
    return str(tmp_path / "low.safetensors")


def listed(rlsched: Rlsched) -> dict[str, object]:
    value = json.loads(rlsched("policy", "list", "--json").stdout)
    assert isinstance(value, dict)
    return value


def test_promote_and_roll_back(rlsched: Rlsched, shipped: str, low: str) -> None:
    result = rlsched("policy", "promote", low, "--reason", "a try")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"version {LOW.name} is the champion",
        f"not registered: there is no tracking store sqlite:///{Path.cwd()}/mlflow.db yet",
    ]
    assert Versions().champion().version.name == LOW.name
    again = rlsched("policy", "promote", LOW.name[:6])
    assert again.stdout.startswith(f"version {LOW.name} is the champion already")
    told = json.loads(rlsched("policy", "rollback", "--json").stdout)
    assert (told["champion"], told["changed"], told["model"]) == (shipped, True, None)
    result = rlsched("policy", "rollback")
    assert result.exit_code == 2
    assert result.stderr == "Error: the champion is the shipped policy: there is none before it\n"


def test_the_champion_is_registered_where_there_is_a_registry(
    rlsched: Rlsched, shipped: str, low: str, tmp_path: Path
) -> None:
    make_tracking_database(tmp_path / "mlflow.db", str(tmp_path / "artifacts"))
    result = rlsched("policy", "promote", low)
    assert "registered as models:/rlsched-policy/1" in result.stdout
    told = json.loads(rlsched("policy", "rollback", "--json").stdout)
    assert told["model"] == "models:/rlsched-policy/2"
    found = MlflowClient().get_model_version_by_alias("rlsched-policy", "champion")
    assert found.tags["rlsched.version"] == shipped


def test_a_tracking_store_that_is_damaged_is_said(
    rlsched: Rlsched, low: str, tmp_path: Path
) -> None:
    (tmp_path / "mlflow.db").write_text("x" * 5000)
    result = rlsched("policy", "promote", low)
    assert result.exit_code == 0
    assert "not registered: sqlite:///" in result.stdout
    assert "file is not a database" in result.stdout
    assert Versions().champion().version.name == LOW.name


def test_a_registry_that_does_not_answer_is_said(
    rlsched: Rlsched, low: str, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{silent_server}")
    result = rlsched("policy", "promote", low)
    assert result.exit_code == 0
    assert f"not registered: http://…@{silent_server}: no answer within 0 s" in result.stdout
    assert "secret" not in result.output
    assert Versions().champion().version.name == LOW.name


def test_list_shows_versions_champion_and_history(rlsched: Rlsched, shipped: str, low: str) -> None:
    rlsched("policy", "promote", low, "--reason", "a try")
    Versions().add(HIGH)
    Versions().path(HIGH.name).write_bytes(b"spoilt")
    told = listed(rlsched)
    assert (told["champion"], told["trouble"]) == (LOW.name, "")
    rows = {row["name"]: row for row in told["versions"]}  # type: ignore[attr-defined]
    assert rows[shipped]["shipped"]
    assert rows[LOW.name]["champion"]
    assert "cannot be read as a policy" in rows[HIGH.name]["trouble"]
    (change,) = told["history"]  # type: ignore[misc]
    assert (change["change"], change["champion"]) == ("promotion", LOW.name)
    assert (change["reason"], change["figures"]) == ("a try", {"gain": 0.3})
    text = rlsched("policy", "list").stdout
    assert f"{LOW.name}  champion" in text
    assert f"{shipped}  shipped" in text
    assert "a try" in text


def test_a_damaged_champion_is_said(rlsched: Rlsched, shipped: str, low: str) -> None:
    rlsched("policy", "promote", low)
    path = Versions().path(LOW.name)
    path.write_bytes(path.read_bytes()[:999])
    told = listed(rlsched)
    assert told["champion"] == shipped
    assert str(told["trouble"]).startswith(f"{path} cannot be read as a policy")
    assert str(path) in rlsched("policy", "list").stdout


def test_a_damaged_record_is_said(rlsched: Rlsched, shipped: str, low: str) -> None:
    rlsched("policy", "promote", low)
    Versions().pointer.write_text("{")
    assert "champion.json cannot be read" in str(listed(rlsched)["trouble"])
    for command in (["promote", low], ["rollback"], ["show", low]):
        result = rlsched("policy", *command)
        assert result.exit_code == 1
        assert "remove it, which makes the shipped policy the champion" in result.stderr


def test_show_the_card(rlsched: Rlsched, shipped: str, low: str) -> None:
    told = json.loads(rlsched("policy", "show", "--json").stdout)
    assert (told["name"], told["card"]) == (shipped, {"limits": "an example"})
    text = rlsched("policy", "show", low).stdout
    assert f"version: {LOW.name}\ndata: six applications\nseeds: [0, 1]\n" in text


def test_without_any_trained_policy(rlsched: Rlsched) -> None:
    result = rlsched("policy", "show")
    assert result.exit_code == 1
    assert "there is no trained policy yet: write the policy rules or goodput" in result.stderr
    assert listed(rlsched)["champion"] is None


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("nothing", 2, "no version 'nothing': give the path of a file, shipped, or at least 4"),
        ("./nothing", 2, "there is no file ./nothing"),
        ("foreign.safetensors", 1, "foreign.safetensors cannot be read as a policy"),
    ],
)
def test_what_cannot_be_promoted(
    rlsched: Rlsched, shipped: str, name: str, code: int, says: str
) -> None:
    Path("foreign.safetensors").write_text("foreign")
    result = rlsched("policy", "promote", name)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert Versions().champion().version.name == shipped
