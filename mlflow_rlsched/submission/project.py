"""The project: found in a folder, a git repository or a zip file, and read.

MLflow checks versions out in the user's own working tree, knows no short commits, and leaves
what it fetched behind when something fails; so we fetch ourselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.projects import utils as project_utils

from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.submission.errors import reason

_REMOTE = re.compile(r"[\w+.-]+://|[^/]+:")  # a URL, or git's short form HOST:PATH
_CHATTER = re.compile(r"\s*$|Cloning into |(warning|hint): ", re.IGNORECASE)


class GitError(Exception):
    """A git command failed; the text is its complaint."""


@dataclass(frozen=True)
class Source:
    """Where a project was found.

    Attributes:
        folder: Folder of the project.
        origin: The user's own folder that it is or was cloned from; None for a remote one.
        branch: The version, when it is the name of a branch.
    """

    folder: Path
    origin: Path | None = None
    branch: str | None = None


def fetch(uri: str, version: str | None, target: Path) -> Source:
    """Find a project, and copy it when it is not a folder of the user's.

    Args:
        uri: Folder, git repository (``file://`` and bare ones too) or zip file, with an optional
            ``#subdirectory``.
        version: Branch, tag or commit of a git repository.
        target: Folder to make for the copy; never made for a plain folder.

    Raises:
        ExecutionException: There is no such project or version, or it cannot be fetched.
    """
    location, subdirectory = project_utils._parse_subdirectory(uri)
    local = Path(project_utils._parse_file_uri(location))
    try:
        if local.is_dir():
            if version is None and not _is_bare(local):
                folder = _below(local, subdirectory, uri)
                return Source(folder, folder)
            return _clone_local(local.resolve(), version, subdirectory, uri, target)
        if project_utils._is_zip_uri(location):
            if version is not None:
                raise ExecutionException(f"A zip file has no versions: leave out -v {version}")
            _unzip(location, local, target)
            return Source(_below(target, subdirectory, uri))
        if local.exists():
            raise ExecutionException(f"The project {uri} is a file: name the folder it is in")
        if not _REMOTE.match(location) or project_utils._is_file_uri(location):
            raise ExecutionException(f"There is no project folder {local}")
        branch = _clone_remote(location, version, target)
        return Source(_below(target, subdirectory, uri), branch=branch)
    except (GitError, OSError) as error:
        raise ExecutionException(
            f"Cannot fetch the project {redacted(uri)}: {reason(error)}"
        ) from None


def _below(folder: Path, subdirectory: str, uri: str) -> Path:
    found = folder / subdirectory.strip("/")
    if not found.is_dir():
        raise ExecutionException(f"The project {redacted(uri)} has no folder {subdirectory!r}")
    return Path(os.path.abspath(found))


def _is_bare(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir()


def _clone_local(
    folder: Path, version: str | None, subdirectory: str, uri: str, target: Path
) -> Source:
    """Clone a local repository at a version; the user's working tree stays as it is."""
    prefix = _git("-C", str(folder), "rev-parse", "--show-prefix")
    version = version or "HEAD"
    commit = _commit(folder, version, uri)
    # All objects come along, those that no branch leads to too.
    top = folder if _is_bare(folder) else folder.joinpath(*[".."] * len(Path(prefix).parts))
    _git("clone", "--no-checkout", "--", str(top.resolve()), str(target))
    _check_out(target, commit)
    branches = _git("-C", str(folder), "branch", "--list", "--format=%(refname:short)", version)
    return Source(
        _below(target / prefix, subdirectory, uri),
        folder / subdirectory.strip("/"),
        version if version in branches.splitlines() else None,
    )


def _clone_remote(location: str, version: str | None, target: Path) -> str | None:
    """Clone a remote repository at a version; returns the version if it is a branch."""
    named = [f"--branch={version}"] if version is not None else []
    try:
        _git("clone", "--depth=1", *named, "--", location, str(target))
    except GitError as error:
        if version is None or "not found in upstream" not in str(error):
            raise
        _git("clone", "--no-checkout", "--", location, str(target))
        _check_out(target, _commit(target, version, location))
        return None
    _update_submodules(target)
    return version if _git("-C", str(target), "branch", "--show-current") else None


def _commit(repository: Path, version: str, uri: str) -> str:
    try:
        revision = f"{version}^{{commit}}"
        return _git("-C", str(repository), "rev-parse", "--verify", "--end-of-options", revision)
    except GitError:
        raise ExecutionException(
            f"The project {redacted(uri)} has no branch, tag or commit {version!r}"
        ) from None


def _check_out(clone: Path, commit: str) -> None:
    _git("-C", str(clone), "checkout", "--detach", commit)
    _update_submodules(clone)


def _update_submodules(clone: Path) -> None:
    if (clone / ".gitmodules").exists():
        _git("-C", str(clone), "submodule", "update", "--init", "--recursive")


def _git(*args: str) -> str:
    """The output of a git command.

    Raises:
        GitError: It failed.
    """
    try:
        done = subprocess.run(
            ["git", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not _CHATTER.match(line)]
        raise GitError(redacted(lines[0]).removeprefix("fatal: ") if lines else "git failed")
    return done.stdout.strip()


def _unzip(location: str, local: Path, target: Path) -> None:
    try:
        remote = "://" in location and not project_utils._is_file_uri(location)
        archive = project_utils._fetch_zip_repo(location) if remote else local.open("rb")
        target.mkdir()
        with archive:
            project_utils._unzip_repo(archive, target)
    except (zipfile.BadZipFile, MlflowException, OSError) as error:
        raise ExecutionException(
            f"Cannot unpack the project {redacted(location)}: {reason(error)}"
        ) from error


@dataclass(frozen=True)
class Project:
    """A project that was read.

    Attributes:
        source: Where it was found.
        spec: MLflow's view of its MLproject file.
        entry_point: MLflow's view of the entry point that is to be run.
    """

    source: Source
    spec: Any
    entry_point: Any

    @classmethod
    def read(cls, source: Source, entry_point: str) -> Project:
        """Read the project in a folder.

        Raises:
            ExecutionException: Its MLproject file is wrong or has no such entry point.
        """
        try:
            spec = project_utils.load_project(str(source.folder))
            found = spec.get_entry_point(entry_point)
        except yaml.YAMLError as error:
            raise ExecutionException(f"{_file(source)} is not valid YAML: {_at(error)}") from None
        except OSError as error:
            raise ExecutionException(
                f"The project in {source.folder} cannot be read: {reason(error)}"
            ) from None
        except UnicodeDecodeError:
            raise ExecutionException(f"{_file(source)} is not UTF-8 text") from None
        except (AttributeError, TypeError):
            raise ExecutionException(
                f"{_file(source)} is not an MLproject file: entry_points, each of them, and their"
                " parameters must be mappings"
            ) from None
        if found is None:
            raise ExecutionException("Projects for Databricks Spark jobs cannot be scheduled here")
        if not isinstance(found.command, str):
            raise ExecutionException(
                f"{_file(source)}: the entry point {entry_point!r} has no command"
            )
        is_script = entry_point not in spec._entry_points
        if is_script and not (source.folder / entry_point).is_file():
            raise ExecutionException(f"There is no script {entry_point} in {source.folder}")
        return cls(source, spec, found)

    def compute_command(self, params: Mapping[str, str]) -> str:
        """The entry point's shell command; local paths stand in it as they are given.

        Raises:
            ExecutionException: A parameter is missing or of the wrong type, or the command
                names one that is not declared.
        """
        try:
            text: str = self.entry_point.compute_command(params, None)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            what = f"{error} is no declared parameter" if isinstance(error, KeyError) else error
            raise ExecutionException(
                f"{_file(self.source)}: the command of {self.entry_point.name!r} cannot be filled"
                f" in: {what} (a brace that is no parameter's must be doubled)"
            ) from None
        return text


def _file(source: Source) -> Path:
    names = os.listdir(source.folder)
    return source.folder / next((n for n in names if n.lower() == "mlproject"), "MLproject")


def _at(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"
