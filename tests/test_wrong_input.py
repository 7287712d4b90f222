"""What is wrong is said in one sentence, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import ExecutionException

from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.store import State, StoreError, sqlite
from mlflow_rlsched.store.sql import SqlStore
from tests.world import FAULTY, World, wait_for

JARGON = (
    "Traceback",
    "pydantic",
    "sqlalchemy",
    "[SQL",
    "Errno",
    " object at 0x",
    "ValidationError",
)


@dataclass(frozen=True)
class Case:
    """A wrong submission and what the sentence about it holds.

    Attributes:
        says: Parts of the sentence.
        mlproject: The text of the project's MLproject file; None for ``projects/faulty``.
        prepare: Called with the world first; its value replaces ``uri``.
        config: The backend configuration.
        env: Variables.
        run: Further arguments of ``mlflow.projects.run``.
    """

    says: tuple[str, ...]
    mlproject: str | bytes | None = None
    prepare: Callable[[World], Path | str | None] = lambda world: None
    config: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


def project(world: World, text: str | bytes) -> Path:
    folder = world.root / "project"
    folder.mkdir()
    (folder / "MLproject").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def entry_point(text: str) -> str:
    return f"entry_points:\n  main: {text}\n"


def write(name: str, text: str) -> Callable[[World], Path]:
    def prepare(world: World) -> Path:
        path = world.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return prepare


def user_file(text: str) -> Callable[[World], None]:
    return lambda world: write("config/rlsched/config.toml", text)(world) and None


def project_file(text: str) -> Callable[[World], Path]:
    def prepare(world: World) -> Path:
        folder = project(world, entry_point("{command: 'true'}"))
        (folder / "rlsched.toml").write_text(text)
        return folder

    return prepare


def repository(world: World) -> Path:
    folder = project(world, entry_point("{command: 'true'}"))
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def deleted_experiment(world: World) -> None:
    assert world.client.create_experiment("gone") == "1"
    world.client.delete_experiment("1")


def deleted_run(world: World) -> None:
    run = world.client.create_run("0", tags={"kind": "deleted"})
    world.client.set_terminated(run.info.run_id)
    world.client.delete_run(run.info.run_id)
    os.environ["RLSCHED_CFG_RESUME_RUN_ID"] = run.info.run_id


def occupied(path: str) -> Callable[[World], None]:
    """A file where a folder is wanted, or one that belongs to something else."""

    def prepare(world: World) -> None:
        (world.root / path).write_text("something else " * 500)

    return prepare


# Each project is read before the tracking server is asked, so most of these take no time.
CASES = {
    # configuration, layer by layer
    "unknown key": Case(
        ("backend config", "'polcy'", "did you mean 'policy'"), config={"polcy": 1}
    ),
    "wrong value": Case(("backend config", "gpus.initial is -1"), config={"gpus": {"initial": -1}}),
    "min above max": Case(("gpus.min is 3",), config={"gpus": {"min": 3, "initial": 2, "max": 2}}),
    "torchrun without devices": Case(
        ('launcher is "torchrun"', "gpus.initial is 0"),
        mlproject=entry_point("{command: python train.py}"),
        config={"launcher": "torchrun", "gpus": 0},
    ),
    "torchrun of a shell script": Case(
        ("does not begin with python: bash train.sh", "--nproc-per-node $RLSCHED_NUM_GPUS"),
        mlproject=entry_point("{command: bash train.sh}"),
        config={"launcher": "torchrun"},
    ),
    "torchrun in an environment of MLflow's": Case(
        ("MLflow prepares this project's environment", "leave launcher out"),
        mlproject=entry_point("{command: python train.py}"),
        config={"launcher": "torchrun"},
        run={"env_manager": "virtualenv"},
    ),
    "variable is no JSON": Case(
        ("variable RLSCHED_CFG_GPUS", "not valid JSON"), env={"RLSCHED_CFG_GPUS": "{"}
    ),
    "variable is unknown": Case(("variable RLSCHED_CFG_GPU",), env={"RLSCHED_CFG_GPU": "1"}),
    "project file is no TOML": Case(
        ("rlsched.toml", "not valid TOML"), prepare=project_file("priority = ")
    ),
    "project file sets the store": Case(
        ("rlsched.toml", "store"), prepare=project_file("store='x'")
    ),
    "user file is no TOML": Case(("config.toml", "not valid TOML"), prepare=user_file("[")),
    "user file, wrong value": Case(
        ("config.toml", "priority is 'high'"), prepare=user_file("priority = 'high'")
    ),
    "policy variable": Case(("RLSCHED_POLICY", "'best'"), env={"RLSCHED_POLICY": "best"}),
    # the project
    "no such folder": Case(("no project folder nosuch",), prepare=lambda world: "./nosuch"),
    "no such folder by URI": Case(("no project folder /no",), prepare=lambda world: "file:///no"),
    "file for a folder": Case(("is a file",), prepare=lambda world: FAULTY / "faulty.py"),
    "no such subdirectory": Case(("no folder 'no'",), prepare=lambda world: f"{FAULTY}#no"),
    "subdirectory above": Case(("'.' is not allowed",), prepare=lambda world: f"{FAULTY}#../x"),
    "not YAML": Case(("MLproject", "not valid YAML: line 1"), "entry_points: {main: ["),
    "not text": Case(("MLproject", "not UTF-8"), b"\xff\xfename"),
    "empty": Case(("MLproject", "must be mappings"), ""),
    "a list": Case(("MLproject", "must be mappings"), "- main\n"),
    "entry points in a list": Case(("must be mappings",), "entry_points: [main]"),
    "no command": Case(("'main' has no command",), entry_point("{parameters: {}}")),
    "undeclared placeholder": Case(("'lr' is no declared",), entry_point("{command: 'x {lr}'}")),
    "open brace": Case(("cannot be filled in",), entry_point("{command: 'awk { print }'}")),
    "no environment file": Case(
        ("python_env",), "python_env: no.yaml\n" + entry_point("{command: x}")
    ),
    "no such entry point": Case(("mian", "main"), run={"entry_point": "mian"}),
    "no such script": Case(("no script mian.py",), run={"entry_point": "mian.py"}),
    "no repository": Case(
        ("not a git repository",), prepare=lambda world: world.root, run={"version": "v1"}
    ),
    "no such version": Case(
        ("no branch, tag or commit 'v1'",), prepare=repository, run={"version": "v1"}
    ),
    "unreachable repository": Case(
        ("Cannot fetch the project https://…@127.0.0.1:9/x.git",),
        prepare=lambda world: "https://me:secret@127.0.0.1:9/x.git",
    ),
    "unreachable host": Case(
        ("Cannot fetch the project nosuch.invalid:x",),
        prepare=lambda world: "nosuch.invalid:x",
        env={"GIT_SSH_COMMAND": "false"},
    ),
    "not a zip file": Case(("not a zip file",), prepare=write("project.zip", "no")),
    "unreachable zip file": Case(
        ("Connection refused",), prepare=lambda world: "http://127.0.0.1:9/project.zip"
    ),
    # parameters
    "missing": Case(("'a'", "missing"), entry_point("{parameters: {a: float}, command: 'x {a}'}")),
    "not a float": Case(
        ("'lr' is 'small'",),
        entry_point("{parameters: {lr: {type: float, default: 1}}, command: 'x {lr}'}"),
        run={"parameters": {"lr": "small"}},
    ),
    "not a batch size": Case(("'batch_size' is 'big'",), run={"parameters": {"batch_size": "big"}}),
    "negative batch size": Case(("'batch_size' is '-1'",), run={"parameters": {"batch_size": -1}}),
    "not a URI": Case(
        ("Expected URI",),
        entry_point("{parameters: {a: uri}, command: 'x {a}'}"),
        run={"parameters": {"a": "here"}},
    ),
    "no such path": Case(
        ("'a' is 'here'", "no such path"),
        entry_point("{parameters: {a: path}, command: 'x {a}'}"),
        run={"parameters": {"a": "here"}},
    ),
    "name that MLflow refuses": Case(('"a@b"',), run={"parameters": {"a@b": 1}}),
    "outside the bounds": Case(
        ("'batch_size' is '64', below batch_size.min 100",), config={"batch_size": {"min": 100}}
    ),
    # the tracking server
    "server down": Case(
        ("http://127.0.0.1:9", "Connection refused", "MLFLOW_TRACKING_URI"),
        env={"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
    ),
    "server down, with a password": Case(
        ("http://…@127.0.0.1:9", "Connection refused"),
        env={"MLFLOW_TRACKING_URI": "http://me:secret@127.0.0.1:9"},
    ),
    "unknown scheme": Case(
        ("'gopher://x'", "sqlite:///"), env={"MLFLOW_TRACKING_URI": "gopher://x"}
    ),
    "no driver": Case(
        ("No module",), env={"MLFLOW_TRACKING_URI": "mysql://me:secret@127.0.0.1/db"}
    ),
    "not a database": Case(
        ("not a database",),
        prepare=occupied("work/other.db"),
        env={"MLFLOW_TRACKING_URI": "sqlite:///other.db"},
    ),
    "unknown experiment": Case(("no experiment", "77"), run={"experiment_id": "77"}),
    "experiment id is a word": Case(("no experiment", "mine"), run={"experiment_id": "mine"}),
    "deleted experiment": Case(
        ("'gone' was deleted", "restore"), prepare=deleted_experiment, run={"experiment_id": "1"}
    ),
    # this host
    "more devices than there are": Case(("99 CPU slots", "has 2"), config={"gpus": 99}),
    "another host": Case(
        ("'elsewhere'", socket.gethostname()), config={"requires": {"host": "elsewhere"}}
    ),
    "nonsense slots": Case(("RLSCHED_CPU_SLOTS is 'many'",), env={"RLSCHED_CPU_SLOTS": "many"}),
    "locks in a file": Case(
        ("device lock folder", "link or a file"),
        prepare=occupied("lock-file"),
        env={"RLSCHED_LOCK_DIR": "ROOT/lock-file"},
    ),
    "home is a file": Case(
        ("home-file", "RLSCHED_HOME"),
        prepare=occupied("home-file"),
        env={"RLSCHED_HOME": "ROOT/home-file"},
    ),
    "home cannot be made": Case(("/proc/home", "RLSCHED_HOME"), env={"RLSCHED_HOME": "/proc/home"}),
    "store is something else": Case(
        ("not a store",), prepare=occupied("other.db"), env={"RLSCHED_CFG_STORE": "ROOT/other.db"}
    ),
    # runs that exist
    "resume an unknown run": Case(("no such run",), config={"resume_run_id": "nosuch"}),
    "NUL in a parameter": Case(("'ledger'", "NUL"), run={"parameters": {"ledger": "a\0b"}}),
    "resume a deleted run": Case(("that run was deleted",), prepare=deleted_run),
    # runs in runs
    "queue behind the own parent": Case(
        ('"nested": "share"',),
        config={"nested": "queue"},
        env={
            "RLSCHED_RUN_DIR": "ROOT/run",
            "RLSCHED_ATTEMPT_DIR": "ROOT/run/attempts/1",
            "RLSCHED_NUM_GPUS": "1",
        },
    ),
}


@pytest.fixture
def quiet(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world where no agent starts, and temporary files have a folder of their own."""
    (world.root / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(world.root / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(AgentFiles, "start", lambda self: None)
    return world


def assert_nothing_is_left(world: World) -> None:
    unfinished = [r for r in world.client.search_runs(["0"]) if r.info.status not in ("FAILED",)]
    assert [r.info.run_id for r in unfinished] == []
    for name in ("runs", "submissions"):
        assert list((world.home / name).glob("*")) == []
    assert list((world.root / "tmp").glob("*")) == []
    assert world.store.tasks() == []


def assert_one_sentence(text: str) -> None:
    assert "\n" not in text
    assert not [word for word in JARGON if word in text], text
    assert "secret" not in text


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_nothing_is_left(
    quiet: World, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    monkeypatch.setenv("RLSCHED_CFG_RESUME_RUN_ID", "")
    uri = case.prepare(quiet) or FAULTY
    if case.mlproject is not None:
        uri = project(quiet, case.mlproject)
    for variable, text in case.env.items():
        monkeypatch.setenv(variable, text.replace("ROOT", str(quiet.root)))
    mlflow.set_tracking_uri(None)
    arguments = {"experiment_id": "0", "synchronous": False, **case.run}
    began = time.monotonic()
    with pytest.raises(ExecutionException) as caught:
        mlflow.projects.run(
            str(uri), backend="rlsched", backend_config=dict(case.config), **arguments
        )
    assert time.monotonic() < began + 15
    assert_one_sentence(str(caught.value))
    for part in case.says:
        assert part in str(caught.value)
    assert "Traceback" not in "".join(capfd.readouterr())
    assert_nothing_is_left(quiet)


def test_a_store_on_a_network_file_system_is_refused(
    quiet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = quiet.root / "mountinfo"
    share = os.path.realpath(quiet.root / "share")
    table.write_text(f"30 22 0:40 / {share} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(sqlite, "MOUNTS", table)
    refused = pytest.raises(ExecutionException, match=r"network file system \(nfs4.*local disk")
    with refused as caught:
        quiet.submit(FAULTY, config={"store": f"sqlite:///{share}/rlsched.db"})
    assert_one_sentence(str(caught.value))
    assert not os.path.exists(share)
    monkeypatch.setattr(sqlite, "MOUNTS", Path("/proc/self/mountinfo"))
    assert_nothing_is_left(quiet)


def test_a_run_that_is_queued_cannot_be_resumed(quiet: World) -> None:
    run = quiet.submit(FAULTY, "script")
    with pytest.raises(ExecutionException, match="that run is queued now") as caught:
        quiet.submit(FAULTY, "script", config={"resume_run_id": run.run_id})
    assert_one_sentence(str(caught.value))
    assert quiet.run_of(run.run_id).info.status == "SCHEDULED"
    assert [task.run_id for task in quiet.store.tasks()] == [run.run_id]


def test_a_resumption_that_fails_leaves_the_run_as_it_was(
    quiet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quiet.client.create_run("0")
    quiet.client.set_terminated(run.info.run_id, "KILLED", 1000)
    monkeypatch.setattr(SqlStore, "submit", lambda *_: (_ for _ in ()).throw(StoreError("broken")))
    with pytest.raises(ExecutionException, match="broken"):
        quiet.submit(FAULTY, "script", config={"resume_run_id": run.info.run_id})
    told = quiet.run_of(run.info.run_id)
    assert (told.info.status, told.info.end_time) == ("KILLED", 1000)


def test_a_run_that_was_deleted_while_it_waited_ends(world: World) -> None:
    first = world.submit(FAULTY, "script", {"steps": 100000}, {"cpu_slots": 2, "grace_s": 0})
    world.running(first.run_id)
    waiting = world.mlflow_run(FAULTY, "-e", "script", "-P", "steps=100000")
    wait_for(lambda: len(world.store.tasks([State.QUEUED])) == 1, 60)
    (task,) = world.store.tasks([State.QUEUED])
    world.client.delete_run(task.run_id)
    first.cancel()
    output, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert "killed: the MLflow run was deleted" in output
    assert "Traceback" not in output
    assert wait_for(lambda: world.task(task.run_id).tracked)
    assert world.training_processes() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch"], "There is no project folder nosuch"),
        ([str(FAULTY), "-e", "mian"], "Could not find mian"),
        ([str(FAULTY), "-c", '{"polcy": 1}'], "unknown key 'polcy'"),
        ([str(FAULTY), "--experiment-id", "77"], "There is no experiment with the id 77"),
    ],
)
def test_command_line_says_one_line_and_exits_with_1(
    quiet: World, arguments: list[str], says: str
) -> None:
    process = quiet.mlflow_run(*arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = output.splitlines()
    assert "ERROR mlflow.cli: === " in line
    assert says in line
    assert_nothing_is_left(quiet)
