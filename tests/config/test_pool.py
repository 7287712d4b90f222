"""The administrator's rules of shared stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_rlsched.config import ConfigError, PoolRules, pool_rules


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pool.toml"
    monkeypatch.setenv("RLSCHED_POOL_FILE", str(path))
    return path


def test_no_file_is_no_rule(file: Path) -> None:
    assert pool_rules() == PoolRules()


def test_rules_are_read(file: Path) -> None:
    file.write_text(
        'administrators = ["carol"]\n[quotas]\nada = 2\n[weights]\nada = 2.0\nbob = 0.5\n'
    )
    rules = pool_rules()
    assert rules.administrators == ("carol",)
    assert rules.quotas == {"ada": 2}
    assert rules.weights == {"ada": 2.0, "bob": 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quota = {ada = 2}", "unknown key 'quota' (did you mean 'quotas'?)"),
        ("administrators = 'carol'", "must be a list of users like"),
        ("quotas = {ada = -1}", "must be a table like {alice = 4}"),
        ("quotas = ", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        pool_rules()
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.touch()
    file.chmod(mode)
    with pytest.raises(ConfigError, match="sudo chown root"):
        pool_rules()


def test_a_file_of_another_user_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.touch()
    os.chown(file, 4711, -1) if os.getuid() == 0 else None
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    with pytest.raises(ConfigError, match="others than root can write it"):
        pool_rules()
