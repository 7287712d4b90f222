"""Who may come in, and whose requests are taken."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.browser import dashboard
from mlflow_rlsched.cli import main
from mlflow_rlsched.cli.dashboard import _prefix
from rlsched_dashboard.app import create_app
from rlsched_dashboard.serving import guard
from rlsched_dashboard.settings import Settings
from tests.world import World

HERE = "127.0.0.1:8050"
UPDATE = "/_dash-update-component"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(f"sqlite:///{tmp_path}/rlsched.db", f"sqlite:///{tmp_path}/mlflow.db")


def client(settings: Settings) -> Any:
    app = create_app(settings)
    guard(app, settings)
    return app.server.test_client()


def asked(client: Any, method: str = "GET", path: str = "/", **headers: str) -> int:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    reply = client.open(path, method=method, headers={"Host": HERE, **named}, json={})
    return int(reply.status_code)


def test_another_sites_name_for_this_machine_is_refused(settings: Settings) -> None:
    browser = client(settings)
    assert asked(browser) == 200
    assert asked(browser, Host="localhost:8050") == 200
    assert asked(browser, Host="evil.example:8050") == 403
    for wrong in ("[", "", "127.0.0.1.evil.example", "[::1", "localhost@evil.example"):
        assert asked(browser, Host=wrong) in (400, 403)


def test_what_no_page_of_ours_asks_is_refused(settings: Settings) -> None:
    browser = client(settings)
    for method in ("PUT", "DELETE", "PATCH", "TRACE"):
        assert asked(browser, method, Origin=f"http://{HERE}") in (404, 405)
    for path in ("../../etc/passwd", "dash/../../x.js", "no_such_package/x.js"):
        assert asked(browser, path=f"/_dash-component-suites/{path}") == 404
    assert asked(browser, "POST", "/no/such", Origin=f"http://{HERE}") in (404, 405)


@pytest.mark.parametrize("prefix", ["rlsched", "/rlsched", "rlsched/", "//rlsched//", "/a//b/"])
def test_a_prefix_is_taken_with_slashes_and_without(prefix: str, settings: Settings) -> None:
    path = _prefix(prefix)
    assert path in ("/rlsched/", "/a/b/")
    browser = client(replace(settings, url_prefix=path))
    assert asked(browser, path=path) == 200
    assert asked(browser, path=path.rstrip("/")) in (200, 302, 308)
    assert asked(browser, path="/") == 404


@pytest.mark.parametrize("prefix", ["", "/", "//"])
def test_no_prefix_is_the_root(prefix: str) -> None:
    assert _prefix(prefix) == "/"


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, False),
        ({"Sec_Fetch_Site": "cross-site"}, False),
        ({"Sec_Fetch_Site": "same-site"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "null"}, False),
        ({"Origin": f"ftp://{HERE}"}, False),
        ({"Sec_Fetch_Site": "same-origin"}, True),
        ({"Origin": f"http://{HERE}"}, True),
    ],
)
def test_only_the_own_page_can_ask_for_changes(
    settings: Settings, headers: dict[str, str], taken: bool
) -> None:
    status = asked(client(settings), "POST", UPDATE, **headers)
    assert (status == 403) != taken


def test_a_token_is_asked_for_once(settings: Settings) -> None:
    browser = client(replace(settings, token="a-long-secret"))
    assert asked(browser) == 401
    assert asked(browser, path="/?token=wrong") == 401
    reply = browser.get("/?token=a-long-secret", headers={"Host": HERE})
    assert reply.status_code == 302
    assert "token" not in reply.headers["Location"]
    assert "HttpOnly" in reply.headers["Set-Cookie"]
    assert "SameSite=Strict" in reply.headers["Set-Cookie"]
    assert asked(browser, Cookie="rlsched_token=a-long-secret") == 200
    reply = browser.get("/compare?runs=a,b&token=a-long-secret&axis=hours", headers={"Host": HERE})
    assert reply.headers["Location"] == "/compare?runs=a%2Cb&axis=hours", "a link shows the same"
    reply = browser.get("//evil.example/x?token=a-long-secret", headers={"Host": HERE})
    assert not reply.headers.get("Location", "/").startswith("//")


def test_a_proxy_has_to_name_the_user(settings: Settings) -> None:
    browser = client(replace(settings, user_header="X-User"))
    assert asked(browser, Host="rlsched.example") == 401
    assert asked(browser, Host="rlsched.example", X_User="ann") == 200


def test_no_page_asks_for_another_host(settings: Settings) -> None:
    text = client(settings).get("/", headers={"Host": HERE}).get_data(as_text=True)
    assert "//cdn" not in text
    assert "https://" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0", "--allow-actions"], "would let anybody end runs"),
        (["--token-file", "{open}"], "chmod 600"),
        (["--token-file", "{empty}"], "is empty"),
        (["--token-file", "{absent}"], "No such file"),
        (["--token-file", "{binary}"], "is no text"),
        (["--token-file", "{folder}"], "Is a directory"),
        (["--url-prefix", "http://here/x"], "is no path"),
        (["--url-prefix", "/a?b"], "is no path"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_what_would_be_unsafe_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    files = {name: tmp_path / name for name in ("open", "empty", "absent", "binary", "folder")}
    files["open"].write_text("secret")
    files["open"].chmod(0o644)
    files["empty"].touch(0o600)
    files["binary"].touch(0o600)
    files["binary"].write_bytes(b"\xff\xfe\x00")
    files["folder"].mkdir(0o700)
    words = [word.format(**files) for word in options]
    result = CliRunner().invoke(main, ["dashboard", *words])
    assert result.exit_code != 0
    assert said in result.output


def test_a_wrong_number_of_slots_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "many")
    result = CliRunner().invoke(main, ["dashboard"])
    assert result.exit_code == 2
    assert "RLSCHED_CPU_SLOTS" in result.output


def test_the_server_does_without_pandas(world: World) -> None:
    with dashboard({**os.environ, **world.env}, world.root) as server:
        loaded = {Path(each.path) for each in server.process.memory_maps()}
    packages = {part for path in loaded for part in path.parts}
    assert "numpy" in packages
    assert "pandas" not in packages, "MLflow imports it where it can: a fifth of the memory"
