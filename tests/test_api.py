"""``mlflow.projects.run(backend="rlsched")``: what is passed on, kept, and kept secret."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import ExecutionException

from mlflow_rlsched import protocol
from mlflow_rlsched.store import State
from tests.test_lifecycle import LONG, QUICK
from tests.world import FAULTY, World, wait_for

RESERVED = {
    "ENV_MANAGER",
    "SYNCHRONOUS",
    "DOCKER_ARGS",
    "STORAGE_DIR",
    "build_image",
    "docker_auth",
}


def project(world: World, mlproject: str | None, script: str) -> Path:
    folder = Path(tempfile.mkdtemp(dir=world.root))
    (folder / "train.py").write_text(textwrap.dedent(script))
    if mlproject is not None:
        (folder / "MLproject").write_text(textwrap.dedent(mlproject))
    return folder


def output(world: World, run_id: str) -> str:
    run_dir = Path(world.task(run_id).spec.run_dir)
    return (protocol.attempt_dir(run_dir, 1) / "output.log").read_text()


def python(world: World, code: str) -> subprocess.Popen[str]:
    """A Python program in the world's folder, with mlflow and the faulty project at hand."""
    text = f"import mlflow, os, signal, sys\nproject = {str(FAULTY)!r}\n" + textwrap.dedent(code)
    return world.command("python", "-c", text)


@pytest.mark.same_world
def test_parameters_arrive_and_are_recorded_as_the_training_logs_them(world: World) -> None:
    folder = project(
        world,
        """
        entry_points:
          main:
            parameters: {lr: {type: float, default: 1e-1}, note: string, epochs: {type: float}}
            command: python train.py {lr} {note} {epochs}
        """,
        """
        import sys
        import mlflow

        lr, note, epochs, option, value = sys.argv[1:]
        mlflow.log_params({"lr": float(lr), "note": note, "epochs": int(epochs), "rest": value})
        print(repr([note, option, value]))
        """,
    )
    given = {"lr": "1e-3", "note": 'it\'s "a" $HOME b', "epochs": 3, "rest": "'; false"}
    run = world.submit(folder, params=given)
    assert world.over(run.run_id).state is State.FINISHED, output(world, run.run_id)
    recorded = {"lr": "0.001", "note": given["note"], "epochs": "3", "rest": "'; false"}
    assert world.run_of(run.run_id).data.params == recorded
    assert output(world, run.run_id).strip() == repr([given["note"], "--rest", "'; false"])


@pytest.mark.same_world
def test_paths_are_those_of_the_submitter(world: World) -> None:
    folder = project(
        world,
        """
        entry_points:
          main:
            parameters: {data: path, other: {type: path, default: other.txt}}
            command: cat {data} {other}
        """,
        "",
    )
    (world.folder / "data.txt").write_text("data,")
    (world.folder / "other.txt").write_text("other")
    run = world.submit(folder, params={"data": "data.txt"})
    world.over(run.run_id)
    assert output(world, run.run_id) == "data,other"
    assert world.run_of(run.run_id).data.params == {"data": "data.txt", "other": "other.txt"}


@pytest.mark.same_world
def test_a_folder_without_mlproject_runs_its_scripts(world: World) -> None:
    folder = project(world, None, "import sys; print(sys.argv[1:])")
    run = world.submit(folder, "train.py", params={"a": "1 2"})
    assert world.over(run.run_id).state is State.FINISHED
    assert output(world, run.run_id).strip() == "['--a', '1 2']"


@pytest.mark.same_world
def test_more_parameters_than_mlflow_takes_at_once(world: World) -> None:
    folder = project(world, None, "")
    given = {f"p{number}": str(number) for number in range(230)}
    run = world.submit(folder, "train.py", params=given)
    assert world.run_of(run.run_id).data.params == given
    world.over(run.run_id)


@pytest.mark.same_world
def test_experiment_and_names(world: World) -> None:
    mlflow.set_tracking_uri(world.tracking_uri)
    run = mlflow.projects.run(
        str(FAULTY),
        "script",
        parameters=QUICK,
        backend="rlsched",
        synchronous=True,
        experiment_name="mine",
        run_name="the first",
    )
    told = world.run_of(run.run_id)
    assert told.info.run_name == "the first"
    assert told.info.experiment_id == world.client.get_experiment_by_name("mine").experiment_id
    assert told.info.status == "FINISHED"
    assert world.task(run.run_id).spec.experiment_id == told.info.experiment_id


def test_a_synchronous_call_raises_when_the_run_fails(world: World) -> None:
    mlflow.set_tracking_uri(world.tracking_uri)
    with pytest.raises(ExecutionException, match="failed"):
        mlflow.projects.run(
            str(FAULTY),
            "script",
            parameters={**QUICK, "exit_code": 4},
            backend="rlsched",
            experiment_id="0",
        )
    (task,) = world.store.tasks()
    assert (task.state, task.message) == (State.FAILED, "it exited with code 4: step 5")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_signal_cancels_a_synchronous_call_and_takes_its_usual_effect(
    world: World, number: int, code: str | int
) -> None:
    process = python(
        world,
        """
        try:
            mlflow.projects.run(project, "script", parameters={"steps": 100000},
                                backend="rlsched", experiment_id="0")
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    wait_for(lambda: world.store.tasks([State.RUNNING]), 60)
    (task,) = world.store.tasks()
    world.running(task.run_id)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    assert code in (process.returncode, text.splitlines()[-1])
    assert world.task(task.run_id).state is State.KILLED
    assert world.run_of(task.run_id).info.status == "KILLED"
    assert world.training_processes() == []


@pytest.mark.same_world
def test_an_asynchronous_run_outlives_its_submitter(world: World) -> None:
    process = python(
        world,
        """
        run = mlflow.projects.run(project, "script", parameters={"steps": 60, "step_s": 0.05},
                                  backend="rlsched", synchronous=False, experiment_id="0")
        print(run.run_id, run.get_status())
        """,
    )
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    run_id, status = text.splitlines()[-1].split()
    assert status in ("SCHEDULED", "RUNNING")
    assert not world.task(run_id).state.final
    assert world.over(run_id).state is State.FINISHED


@pytest.mark.same_world
def test_the_callers_configuration_is_not_changed(world: World) -> None:
    config = {"cpu_slots": 1, "gpus": {"initial": 1}, "env": ["A"]}
    mlflow.set_tracking_uri(world.tracking_uri)
    run = mlflow.projects.run(
        str(FAULTY),
        "script",
        parameters=QUICK,
        backend="rlsched",
        backend_config=config,
        synchronous=False,
        experiment_id="0",
    )
    own = {name: value for name, value in config.items() if name not in RESERVED}
    assert own == {"cpu_slots": 1, "gpus": {"initial": 1}, "env": ["A"]}
    run.wait()


def test_secrets_stay_in_files_of_their_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "MLFLOW_TRACKING_PASSWORD": "secret-1",
        "AWS_SECRET_ACCESS_KEY": "secret-2",
        "MY_TOKEN": "secret-3",
    }
    for name, value in {**secrets, "NOT_NAMED": "secret-4"}.items():
        monkeypatch.setenv(name, value)
    # The last line of the output, which a failed run's message quotes, is another one.
    code = (
        "import os, sys; print(os.environ['MY_TOKEN'] + '\\n.'); "
        f"sys.exit('mended' not in os.listdir('{world.root}'))"
    )
    folder = project(world, None, code)
    docker_auth = {"username": "me", "password": "secret-5"}
    run = mlflow.projects.run(
        str(folder),
        "train.py",
        backend="rlsched",
        backend_config={"env": ["MY_TOKEN"]},
        docker_auth=docker_auth,
        synchronous=False,
        experiment_id="0",
    )
    assert world.over(run.run_id).state is State.FAILED
    assert output(world, run.run_id).split() == ["secret-3", "."]
    run_dir = Path(world.task(run.run_id).spec.run_dir)
    environment = protocol.read_json(run_dir / "environment.json")
    assert environment is not None
    assert {name: environment[name] for name in secrets} == secrets
    assert "NOT_NAMED" not in environment
    assert protocol.read_json(run_dir / "docker_auth.json") == docker_auth
    for path in (world.home / "runs", world.home / "submissions", run_dir):
        assert path.stat().st_mode & 0o077 == 0, path
    holding = [
        path
        for path in [*world.home.rglob("*"), *world.folder.rglob("*")]
        if path.is_file() and b"secret-" in path.read_bytes()
    ]
    assert {path.name for path in holding} == {
        "environment.json",
        "docker_auth.json",
        "output.log",  # what the training printed itself, and the artifact
    }
    files = [path for path in holding if path.suffix == ".json"]
    assert [path for path in files if path.stat().st_mode & 0o077] == []

    # Nobody needs them any more once the run has finished well.
    (world.root / "mended").touch()
    assert world.rlsched("retry", run.run_id).returncode == 0
    wait_for(lambda: world.run_of(run.run_id).info.status == "FINISHED")
    wait_for(lambda: not any(path.exists() for path in files))


def test_passwords_in_uris_are_not_passed_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_rlsched.submission import tracking

    uri = "postgresql://me:secret@p@host:5432/db"
    assert tracking.without_credentials(uri) == "postgresql://host:5432/db"
    assert tracking.without_credentials("sqlite:////tmp/a@b.db") == "sqlite:////tmp/a@b.db"
    assert tracking.without_credentials("git@github.com:me/it") == "git@github.com:me/it"


def test_no_process_shows_a_secret(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret-word")
    run = world.submit(FAULTY, "script", LONG, {"grace_s": 0})
    world.running(run.run_id)
    wait_for(lambda: len(world.all_processes()) >= 3)  # agent, shim, training
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in world.all_processes()]
    assert not [line for line in lines if b"secret-word" in line]
    run.cancel()


@pytest.mark.same_world
def test_the_interpreter_and_the_working_folder_are_those_of_the_submitter(world: World) -> None:
    folder = project(world, None, "import os, sys; print(sys.executable, os.getcwd())")
    run = world.submit(folder, "train.py")
    world.over(run.run_id)
    executable, cwd = output(world, run.run_id).split()
    assert os.path.realpath(executable) == os.path.realpath(sys.executable)
    assert cwd == str(folder)
