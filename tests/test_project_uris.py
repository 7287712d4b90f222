"""Where projects come from: folders, git repositories, zip files."""

from __future__ import annotations

import http.server
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from mlflow.exceptions import ExecutionException

from mlflow_rlsched.store import State
from mlflow_rlsched.submission.project import Source, fetch
from tests.world import World, wait_for

MLPROJECT = "entry_points:\n  main:\n    command: cat content\n"
VERSIONS = {
    "tag": ("v1", "one", None),
    "branch": ("side", "two", "side"),
    "commit": ("FULL", "one", None),
    "short commit": ("SHORT", "one", None),
    "expression": ("main~2", "one", None),
}


def git(folder: Path, *args: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def put(folder: Path, content: str) -> None:
    """Two projects, one below the other, that print ``content``."""
    for place in (folder, folder / "deep" / "er"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "content").write_text(content)
        (place / "MLproject").write_text(MLPROJECT)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Commits one (tag v1), two (branch side) and three (main), and a change on top."""
    folder = tmp_path / "repository"
    put(folder, "one")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=one")
    git(folder, "tag", "v1")
    put(folder, "two")
    git(folder, "commit", "--quiet", "--all", "--message=two")
    git(folder, "branch", "side")
    put(folder, "three")
    git(folder, "commit", "--quiet", "--all", "--message=three")
    put(folder, "not committed")
    return folder


@pytest.fixture
def bare(repository: Path, tmp_path: Path) -> Path:
    """A bare clone of the repository."""
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
    return tmp_path / "bare.git"


@pytest.fixture
def remote(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, on a host that git reaches through a command (ours stays on this one)."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o700)
    monkeypatch.setenv("GIT_SSH", str(ssh))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    return f"me@box:{bare}"


def told(source: Source) -> str:
    return (source.folder / "content").read_text()


def named(version: str, repository: Path) -> str:
    first = git(repository, "rev-parse", "v1")
    return {"FULL": first, "SHORT": first[:8]}.get(version, version)


def test_a_folder_is_used_where_it_is(repository: Path, tmp_path: Path) -> None:
    for uri in (str(repository), f"file://{repository}", f"'{repository}'"):
        source = fetch(uri, None, tmp_path / "copy")
        assert (source.folder, source.origin) == (repository, repository)
    assert fetch(f"{repository}#deep/er", None, tmp_path / "copy").folder == repository / "deep/er"
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("place", ["", "file://"])
@pytest.mark.parametrize("kind", VERSIONS)
def test_a_version_of_a_local_repository(
    repository: Path, tmp_path: Path, kind: str, place: str
) -> None:
    version, content, branch = VERSIONS[kind]
    before = git(repository, "status", "--porcelain", "--branch")
    source = fetch(f"{place}{repository}", named(version, repository), tmp_path / "copy")
    assert (told(source), source.branch) == (content, branch)
    assert (source.folder, source.origin) == (tmp_path / "copy", repository)
    assert git(repository, "status", "--porcelain", "--branch") == before
    assert (repository / "content").read_text() == "not committed"


@pytest.mark.parametrize("inner", ["#deep/er", "/deep/er", "/deep#er"])
def test_a_version_of_a_part_of_a_local_repository(
    repository: Path, tmp_path: Path, inner: str
) -> None:
    source = fetch(f"{repository}{inner}", "side", tmp_path / "copy")
    assert (told(source), source.folder) == ("two", tmp_path / "copy/deep/er")


def test_a_version_that_no_branch_leads_to(repository: Path, tmp_path: Path) -> None:
    git(repository, "commit", "--quiet", "--all", "--message=lost")
    lost = git(repository, "rev-parse", "HEAD")
    git(repository, "reset", "--quiet", "--hard", "HEAD~1")
    assert told(fetch(str(repository), lost[:10], tmp_path / "copy")) == "not committed"


def test_a_bare_repository_is_cloned(bare: Path, tmp_path: Path) -> None:
    source = fetch(f"file://{bare}", None, tmp_path / "copy")
    assert (told(source), source.folder) == ("three", tmp_path / "copy")
    assert told(fetch(f"{bare}#deep/er", "v1", tmp_path / "other")) == "one"


@pytest.mark.parametrize("kind", VERSIONS)
def test_a_version_of_a_remote_repository(
    repository: Path, remote: str, tmp_path: Path, kind: str
) -> None:
    version, content, branch = VERSIONS[kind]
    source = fetch(f"{remote}#deep/er", named(version, repository), tmp_path / "copy")
    assert (told(source), source.branch, source.origin) == (content, branch, None)


def test_a_remote_repository_is_cloned_without_its_history(remote: str, tmp_path: Path) -> None:
    source = fetch(remote, None, tmp_path / "copy")
    assert told(source) == "three"
    assert git(source.folder, "rev-list", "--count", "HEAD") == "1"


def test_unknown_versions_of_a_remote_repository(remote: str, tmp_path: Path) -> None:
    with pytest.raises(ExecutionException, match="has no branch, tag or commit 'v9'"):
        fetch(remote, "v9", tmp_path / "copy")


def test_submodules_come_along(
    repository: Path, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    git(repository, "submodule", "--quiet", "add", str(bare), "part")
    git(repository, "commit", "--quiet", "--message=part")
    source = fetch(str(repository), "main", tmp_path / "copy")
    assert (source.folder / "part" / "content").read_text() == "three"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A zip file with a project."""
    put(tmp_path / "zipped", "zip")
    path = tmp_path / "www" / "project.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        for name in (tmp_path / "zipped").rglob("*"):
            file.write(name, name.relative_to(tmp_path / "zipped"))
    return path


@pytest.fixture
def web(archive: Path) -> Iterator[str]:
    """The address of a server of the zip file's folder."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(archive.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_zip_file(archive: Path, web: str, tmp_path: Path) -> None:
    uris = [str(archive), f"file://{archive}", f"{web}/project.zip"]
    for number, uri in enumerate(uris):
        assert told(fetch(f"{uri}#deep/er", None, tmp_path / f"copy{number}")) == "zip"
    with pytest.raises(ExecutionException, match="404"):
        fetch(f"{web}/other.zip", None, tmp_path / "other")
    with pytest.raises(ExecutionException, match="has no versions"):
        fetch(str(archive), "v1", tmp_path / "other")


def test_a_zip_file_that_reaches_outside(tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../outside", "no")
    with pytest.raises(ExecutionException, match="outside"):
        fetch(str(path), None, tmp_path / "copy")
    assert not (tmp_path / "outside").exists()


def test_a_run_keeps_its_checkout(world: World, repository: Path) -> None:
    """It waits, its repository is gone, and it still runs the version that was asked for."""
    (repository / "MLproject").write_text('entry_points: {main: {command: "sleep 1000"}}')
    holder = world.submit(repository, config={"cpu_slots": 2, "grace_s": 0})
    world.running(holder.run_id)
    run = world.submit(f"{repository}#deep/er", version="v1")
    moved = repository.rename(repository.with_name("moved"))
    holder.cancel()
    task = world.over(run.run_id)
    assert task.state is State.FINISHED
    run_dir = Path(task.spec.run_dir)
    assert task.spec.work_dir == str(run_dir / "project/deep/er")
    assert (run_dir / "attempts/1/output.log").read_text() == "one"
    tags = world.run_of(run.run_id).data.tags
    assert tags["mlflow.source.git.commit"] == git(moved, "rev-parse", "v1")
    assert tags["mlflow.source.name"] == f"file://{repository}#deep/er"
    assert wait_for(lambda: list((world.home / "submissions").iterdir()) == [])
