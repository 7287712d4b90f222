"""Projects that run in containers, before an engine that stands for the absent one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.projects.backend.local import _get_docker_command

from mlflow_rlsched.executors.launch import docker_args
from mlflow_rlsched.store import State
from tests import programs
from tests.gpu.conftest import PROJECT, GpuHost
from tests.stubs import docker, nvml
from tests.world import wait_for

MLPROJECT = f"""
name: boxed
docker_env:
  image: {docker.IMAGE}
  environment: ["TOLD"]
entry_points:
  main:
    parameters:
      folder: string
    command: "python hold.py {{folder}}"
"""


@pytest.fixture
def engine(gpus: GpuHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.Docker]:
    gpus.world.agent.start()  # which knows nothing of the submitter's engine
    wait_for(gpus.world.agent.alive)
    with docker.running() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        monkeypatch.setenv("PATH", str(engine.bin_dir), prepend=":")
        monkeypatch.setenv("MLFLOW_NOT_TOLD", "1")
        monkeypatch.setenv("TOLD", "by-the-project")
        yield engine


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "boxed"
    folder.mkdir()
    (folder / "MLproject").write_text(MLPROJECT)
    shutil.copy(PROJECT / "hold.py", folder)
    return folder


def submit(gpus: GpuHost, project: Path, **more: Any) -> str:
    config = {"env": ["TOLD"], "retry_delays_s": [0], "grace_s": 0} | more.pop("config", {})
    params = {"folder": str(gpus.seen_dir)}
    return gpus.world.submit(project, params=params, config=config, **more).run_id


def test_a_container_gets_the_leased_devices_only(
    gpus: GpuHost, engine: docker.Docker, project: Path
) -> None:
    theirs = {"gpus": "all", "name": "mine", "volume": "/data:/data", "init": True, "ipc": "host"}
    run_id = submit(gpus, project, docker_args=theirs, config={"gpus": 2})
    seen = gpus.seen(run_id)
    assert gpus.let_go(run_id).state is State.FINISHED
    name = f"rlsched-{run_id}-1"
    assert engine.calls == [f"run {name}", f"rm {name}"]
    options, image, argv = engine.runs[name]
    assert (image, argv) == (docker.IMAGE, ["python", "hold.py", str(gpus.seen_dir)])
    leased = f"{nvml.uuid(0)},{nvml.uuid(1)}"
    assert [v for n, v in options if n == "--gpus"] == [f'"device={leased}"']
    assert [v for n, v in options if n == "--name"] == [name]
    run_dir = gpus.world.task(run_id).spec.run_dir
    assert [v for n, v in options if n == "--volume"] == ["/data:/data", f"{run_dir}:{run_dir}"]
    assert ("--init", None) in options
    assert ("--ipc", "host") in options
    assert seen["CUDA_VISIBLE_DEVICES"] == leased
    assert seen["RLSCHED_NUM_GPUS"] == "2"
    assert seen["MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"] == "false"
    told = Path(run_dir, "attempts/1/docker.env").read_text()
    assert f"RLSCHED_RUN_DIR={run_dir}\n" in told
    assert f"NVIDIA_VISIBLE_DEVICES={leased}\n" in told
    assert "NOT_TOLD" not in told
    assert ("-e", "TOLD=by-the-project") in options


def test_a_container_without_devices_sees_none(
    gpus: GpuHost, engine: docker.Docker, project: Path
) -> None:
    config = {"gpus": 0, "memory_cap_gb": 2}
    run_id = submit(gpus, project, docker_args={"gpus": "all"}, config=config)
    gpus.seen(run_id)
    gpus.let_go(run_id)
    options, _, _ = engine.runs[f"rlsched-{run_id}-1"]
    assert ("--memory", "2000000000") in options
    assert "--gpus" not in dict(options)
    env_file = dict(options)["--env-file"]
    assert env_file is not None
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in Path(env_file).read_text()


def test_a_cancelled_container_is_removed(
    gpus: GpuHost, engine: docker.Docker, project: Path
) -> None:
    run_id = submit(gpus, project)
    gpus.seen(run_id)
    assert engine.containers() == [f"rlsched-{run_id}-1"]
    gpus.world.store.request_cancel(run_id, "test")
    gpus.world.agent.wake()
    assert gpus.world.over(run_id).state is State.KILLED
    assert engine.containers() == []


def test_a_container_whose_shim_was_killed_is_removed_before_the_next_one_starts(
    gpus: GpuHost, engine: docker.Docker, project: Path
) -> None:
    run_id = submit(gpus, project)
    gpus.seen(run_id, 1)
    shim = gpus.world.shim_process(gpus.world.running(run_id))
    assert shim is not None
    shim.signal(signal.SIGKILL)
    gpus.seen(run_id, 2)
    first, second = f"rlsched-{run_id}-1", f"rlsched-{run_id}-2"
    assert engine.calls == [f"run {first}", f"rm {first}", f"run {second}"]
    assert engine.containers() == [second]
    assert gpus.let_go(run_id).state is State.FINISHED
    assert [a.reason for a in gpus.world.store.attempts(run_id)] == ["lost", "finished"]


def test_an_engine_out_of_reach_is_said_in_one_sentence(
    gpus: GpuHost, engine: docker.Docker, project: Path
) -> None:
    engine.complaint = "Cannot connect to the Docker daemon. Is it running?"
    task = gpus.world.over(submit(gpus, project))
    assert (task.state, task.exit_reason) == (State.FAILED, "environment_failure")
    assert "\n" not in task.message
    assert task.message.endswith(engine.complaint)


def test_no_docker_command_is_said_in_one_sentence(
    gpus: GpuHost, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", programs.only(tmp_path / "programs", "bash", "git"))
    task = gpus.world.over(submit(gpus, project))
    assert (task.state, task.exit_reason) == (State.FAILED, "environment_failure")
    assert "Could not find Docker executable" in task.message


def test_words_of_ours_reach_docker_as_they_are(tmp_path: Path) -> None:
    """MLflow joins all words with spaces for a shell."""
    folder = '/tmp/it\'s $HOME of "x"'
    plan = {
        "container": "rlsched-r-1",
        "env_file": f"{folder}/docker.env",
        "run_dir": folder,
        "gpus": ["GPU-a", "GPU-b"],
    }
    given = {"env-file": "their.env", "d": True, "detach": True}
    run = SimpleNamespace(
        info=SimpleNamespace(run_id="r", experiment_id="0", artifact_uri="file:///tmp/artifacts")
    )
    words = _get_docker_command(SimpleNamespace(tags=["i"]), run, docker_args(given, plan))
    show = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
    command = " ".join([show, *words[1:]])
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    argv = json.loads(done.stdout)
    assert argv[:12] == [
        *("run", "--rm"),
        *("--env-file", "their.env", "--env-file", f"{folder}/docker.env"),
        *("--name", "rlsched-r-1"),
        *("--volume", f"{folder}:{folder}"),
        *("--gpus", '"device=GPU-a,GPU-b"'),
    ]
