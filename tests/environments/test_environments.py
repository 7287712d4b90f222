"""Runs in environments of their own, made by MLflow's machinery in the attempt itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mlflow.projects import load_project
from mlflow.utils.process import ShellCommandException

from mlflow_rlsched import protocol
from mlflow_rlsched.executors import environments
from mlflow_rlsched.store import State
from tests import programs
from tests.environments.conftest import WHEEL, Place
from tests.world import FAULTY, wait_for


@pytest.mark.usefixtures("pyenv")
@pytest.mark.parametrize("manager", ["uv", None])
def test_the_project_gets_the_environment_that_it_asks_for(
    place: Place, manager: str | None
) -> None:
    place.wants(dependencies=(f"./{WHEEL}",))
    run_id = place.submit(env_manager=manager)
    task = place.world.over(run_id, 120)
    assert task.state is State.FINISHED, task.message
    (made,) = place.made()
    assert place.seen(run_id) == {"prefix": str(made), "tiny": 42, "argv": []}
    tags = place.world.run_of(run_id).data.tags
    assert tags["mlflow.project.env"] == (manager or "virtualenv")


def test_the_submitters_interpreter_is_used_when_told_so(place: Place) -> None:
    place.wants(dependencies=(f"./{WHEEL}",))
    run_id = place.submit(env_manager="local")
    assert place.world.over(run_id).state is State.FINISHED
    assert place.seen(run_id) == {"prefix": sys.prefix, "tiny": None, "argv": []}
    assert place.made() == []


def test_a_smaller_batch_needs_no_environment_where_the_first_one_needed_none(
    place: Place,
) -> None:
    params = {"batch_size": 64, "fits": 60, "steps": 1}
    run = place.world.submit(FAULTY, "script", params)
    assert place.world.over(run.run_id).state is State.FINISHED
    assert len(place.world.store.attempts(run.run_id)) == 2
    assert place.made() == []


@pytest.mark.skipif(shutil.which("conda") is None, reason="no conda")
def test_conda(place: Place) -> None:
    (place.project / "conda.yaml").write_text("name: tiny\ndependencies: [python]\n")
    run_id = place.submit()
    task = place.world.over(run_id, 240)
    assert task.state is State.FINISHED, task.message
    assert place.seen(run_id)["prefix"] != sys.prefix


# What goes wrong


def test_an_unknown_python_fails_the_run_with_one_sentence(place: Place) -> None:
    place.wants(python="3.99.9")
    told(place, place.submit(env_manager="uv"), "No interpreter found for Python 3.99.9")


def test_a_dependency_that_cannot_be_installed_fails_the_run_with_one_sentence(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    place.wants(dependencies=("no-such-package==1.0",))
    told(place, place.submit(env_manager="uv"), "no-such-package was not found")


def test_no_conda_fails_the_run_with_one_sentence(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.project / "conda.yaml").write_text("dependencies: [python]\n")
    monkeypatch.setenv("MLFLOW_CONDA_HOME", "/nowhere")
    told(place, place.submit(), "Could not find Conda executable at /nowhere/bin/conda")


def test_no_pyenv_fails_the_run_with_one_sentence(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", programs.only(tmp_path / "programs", "bash", "git"))
    place.wants()
    words = "the environment manager virtualenv needs the program pyenv, which is not installed"
    told(place, place.submit(), words)


def told(place: Place, run_id: str, words: str) -> None:
    """The run failed for its environment, and its message and output say why."""
    task = place.world.over(run_id)
    assert (task.state, task.exit_reason) == (State.FAILED, "environment_failure")
    assert "the project's environment could not be prepared: " in task.message
    assert words in task.message
    assert "\n" not in task.message
    run = place.world.run_of(run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["rlsched.message"] == task.message
    output = Path(task.spec.run_dir, "attempts", "1", "output.log").read_text()
    assert words in output
    assert "Traceback" not in output


def test_no_uv_is_said_in_one_sentence(place: Place, tmp_path: Path) -> None:
    place.wants()
    run_id = place.world.client.create_run("0").info.run_id
    plan = {
        "run_id": run_id,
        "experiment_id": "0",
        "work_dir": str(place.project),
        "entry_point": "train.py",
        "params": {},
        "changed": False,
        "project_env": {
            "ENV_MANAGER": "uv",
            "DOCKER_ARGS": None,
            "STORAGE_DIR": None,
            "build_image": None,
        },
        "docker": False,
        "run_dir": str(tmp_path),
    }
    protocol.write_json(tmp_path / "launch.json", plan)
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_rlsched.executors.launch", str(tmp_path)],
        env={**os.environ, "PATH": programs.only(tmp_path / "programs", "bash", "git")},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 78
    (line,) = (tmp_path / "report.jsonl").read_text().splitlines()
    report = json.loads(line)
    assert report["event"] == "environment_failed"
    assert report["message"].startswith("the environment manager uv needs the program uv, which")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("pyenv")
@pytest.mark.parametrize(
    ("manager", "output", "sentence"),
    [
        (
            "virtualenv",
            "Collecting nothing\nERROR: Could not find a version that satisfies nothing==1\n"
            "ERROR: No matching distribution found for nothing==1\n\n[notice] A new release\n",
            "ERROR: Could not find a version that satisfies nothing==1 … "
            "ERROR: No matching distribution found for nothing==1",
        ),
        (
            "virtualenv",
            "python-build: definition not found: 3.99.9\n\nSee all available versions with\n",
            "python-build: definition not found: 3.99.9",
        ),
        (
            "uv",
            "error: No solution found when resolving dependencies\n  cause: Because nothing was "
            "not found\n\nhint: Packages were unavailable\n",
            "error: No solution found when resolving dependencies … "
            "cause: Because nothing was not found",
        ),
        ("uv", "Using Python 3.11\nKilled\n", "Killed"),
    ],
)
def test_what_commands_complain_of_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: str, output: str, sentence: str
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    path = tmp_path / "output.log"
    path.write_text(output)
    error = ShellCommandException("Non-zero exit code: 1\nCommand: ['bash', '-c', '…']")
    assert environments.why_not(error, manager, path) == sentence


# One at a time, none half-made


def test_two_runs_do_not_make_the_same_environment_at_the_same_time(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.wants()
    project = load_project(str(place.project))
    entered = threading.Event()

    def enter() -> None:
        with environments.alone(project, place.project, "uv"):
            entered.set()

    other = threading.Thread(target=enter)
    with environments.alone(project, place.project, "uv"):
        other.start()
        said = wait_for(lambda: capsys.readouterr().out)
        assert said == "Waiting for another run that makes the same environment\n"
        assert not entered.is_set()
    other.join(30)
    assert entered.is_set()


KILLED = """
import os, sys
from pathlib import Path
from mlflow.projects import load_project
from mlflow.utils.process import ShellCommandException
from mlflow_rlsched.executors import environments
folder = Path(sys.argv[1])
project = load_project(str(folder))
with environments.alone(project, folder, "uv"):
    Path(sys.argv[2]).mkdir()
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_run_left_behind_is_made_again(place: Place) -> None:
    place.wants()
    project = load_project(str(place.project))
    half_made = place.env_root / environments._virtualenv_name(project, place.project)
    arguments = [str(place.project), str(half_made)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -9
    assert place.made() == [half_made]
    run_id = place.submit(env_manager="uv")
    task = place.world.over(run_id)
    assert task.state is State.FINISHED, task.message
    assert place.seen(run_id)["prefix"] == str(half_made)
    with environments.alone(project, place.project, "uv"):
        assert half_made.exists()
