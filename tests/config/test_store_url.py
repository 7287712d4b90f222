"""The store that a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_rlsched.config import ConfigError, resolve, store_url
from tests.config.asking import (
    NOTHING,
    accept,
    error,
    user_file,
)


@pytest.mark.parametrize("prefix", ["sqlite:///", ""])
def test_a_store_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert accept({"store": f"{prefix}x/s.db"}).store == f"sqlite:///{tmp_path}/x/s.db"
    assert accept({"store": f"{prefix}~/s.db"}).store == f"sqlite:///{tmp_path}/me/s.db"
    assert accept({"store": f"{prefix}/a/../b.db"}).store == "sqlite:////b.db"


def test_a_store_behind_a_link_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to("real.db")
    assert store_url(str(tmp_path / "link.db")) == f"sqlite:///{tmp_path}/real.db"


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("postgresql://me:secret@db/x", "store on postgresql is not available in this version; "),
        ("redis://:secret@box:6379", "store on redis is not available in this version; write "),
        ("mysql://me:secret@db/x", "store begins with 'mysql://'; write sqlite:///<path of a f"),
        ("sqlite://x.db", "store begins with 'sqlite://'; write sqlite:///<path of a file>"),
        ("sqlite:///", "store 'sqlite:///' is no path of a file; write sqlite:///<path of a file>"),
        ("sqlite:///:memory:", "store 'sqlite:///:memory:' is no path of a file; write "),
        ("sqlite:////x.db?mode=ro", "store 'sqlite:////x.db?mode=ro' is no path of a file"),
        ("~nobody-of-that-name/x.db", "store '~nobody-of-that-name/x.db' is no path of a file"),
        ("a\0b", r"store 'a\x00b' is no path of a file"),
        ("sqlite:////tmp", "store 'sqlite:////tmp' is a folder; write sqlite:///<path of a file>"),
    ],
)
def test_a_store_that_cannot_be_is_refused(store: str, message: str) -> None:
    said = error({"store": store})
    assert said.startswith(f"backend config: {message}")
    assert "secret" not in said
    with pytest.raises(ConfigError) as caught:
        store_url(store, NOTHING)
    assert str(caught.value).startswith(f"--store: {message}")


def test_the_store_of_reading_commands(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": user_file(tmp_path, 'store = "/user.db"\n')}
    variable = {"RLSCHED_CFG_STORE": "/variable.db", "RLSCHED_CFG_PRIORITTY": "1"}
    assert store_url("/named.db", {**home, **variable}) == "sqlite:////named.db"
    assert store_url(None, {**home, **variable}) == "sqlite:////variable.db"
    assert store_url(None, home) == "sqlite:////user.db"
    assert store_url(None, NOTHING) == f"sqlite:///{tmp_path}/rlsched-home/rlsched.db"


def test_reading_commands_and_runs_agree_on_the_store(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": user_file(tmp_path, 'store = "/user.db"\n')}
    for environ in (home, NOTHING, {**home, "RLSCHED_CFG_STORE": "null"}):
        assert store_url(None, environ) == resolve({}, None, environ).store


def test_a_home_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_HOME", "/what?")
    assert error({}).startswith("variable RLSCHED_HOME: store '/what?/rlsched.db' is no path of a")
