"""Prepares a project through MLflow's own local backend, then waits for its entry point.

The main process of attempts that need more than a command: virtualenv, uv and conda
environments, Docker, ``path`` parameters to download, and attempts whose parameters were changed
after they ran out of memory. It runs in the submitter's Python and environment, so what takes
long or fails does so in the attempt's own output.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol

EXIT_ENVIRONMENT = 78
"""Exit code when the project's environment could not be prepared (``EX_CONFIG``)."""

KILLED = 128 + signal.SIGKILL
"""Exit code of ``docker run`` when the container was killed."""

# Which devices, under what name, and that we wait for the end: not for the user to say.
_OURS = ("gpus", "name", "detach", "d")


def main(folder: Path) -> int:
    """Run what ``launch.json`` in the attempt's folder says; returns the exit code."""
    plan = protocol.read_json(folder / "launch.json") or {}
    try:
        run_id = _changed_run(plan, folder) if plan["changed"] else plan["run_id"]
        submitted = _start(plan, run_id, folder / "output.log")
    except Exception as error:  # noqa: BLE001 - whatever MLflow's preparation raises
        _report(folder, {"event": "environment_failed", "message": str(error)})
        print(f"The project's environment could not be prepared: {error}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    code: int = submitted.command_proc.wait()
    most = plan.get("memory")
    if most is not None and code == KILLED:
        text = f"the container was killed, as one above its {most} bytes of memory is"
        _report(folder, {"event": "oom", "message": text})
    return code if code >= 0 else 128 - code


def _start(plan: dict[str, Any], run_id: str, output: Path) -> Any:
    import mlflow
    from mlflow.exceptions import ExecutionException
    from mlflow.projects.backend.local import LocalBackend
    from mlflow.projects.utils import MLFLOW_LOCAL_BACKEND_RUN_ID_CONFIG, load_project

    from mlflow_rlsched.executors import environments

    project = load_project(plan["work_dir"])
    manager = environments.manager_of(project, plan["project_env"]["ENV_MANAGER"])
    config = {**plan["project_env"], MLFLOW_LOCAL_BACKEND_RUN_ID_CONFIG: run_id}
    config["ENV_MANAGER"] = manager
    config["docker_auth"] = protocol.read_json(Path(plan["run_dir"]) / "docker_auth.json")
    config["SYNCHRONOUS"] = True  # MLflow then starts the entry point as our child
    if plan["docker"]:
        config["DOCKER_ARGS"] = docker_args(config["DOCKER_ARGS"] or {}, plan)
    try:
        with environments.alone(project, Path(plan["work_dir"]), manager):
            return LocalBackend().run(
                plan["work_dir"],
                plan["entry_point"],
                plan["params"],
                None,
                config,
                mlflow.get_tracking_uri(),
                plan["experiment_id"],
            )
    except Exception as error:
        raise ExecutionException(environments.why_not(error, manager, output)) from error


def docker_args(given: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The user's ``docker run`` arguments, with the leased GPUs only.

    MLflow joins names and values to one shell command, unquoted: so a value of ours is quoted,
    and an argument can stand there twice.

    Args:
        given: The user's arguments, as MLflow takes them.
        plan: Content of ``launch.json``.
    """
    args = {k: v for k, v in given.items() if k not in _OURS}
    args["name"] = plan["container"]
    run_dir = plan["run_dir"]
    for name, value in (("env-file", plan["env_file"]), ("volume", f"{run_dir}:{run_dir}")):
        theirs = f"{args[name]} --{name} " if name in args else ""
        args[name] = theirs + shlex.quote(value)
    if plan.get("memory") is not None:
        args["memory"] = str(plan["memory"])
    if plan["gpus"]:
        args["gpus"] = shlex.quote('"device=' + ",".join(plan["gpus"]) + '"')
    return args


def _changed_run(plan: dict[str, Any], folder: Path) -> str:
    """A nested run for parameters that differ from those which the run already holds."""
    from mlflow import MlflowClient
    from mlflow.entities import Param

    client = MlflowClient()
    tags = {
        "mlflow.parentRunId": plan["run_id"],
        "mlflow.runName": f"{plan['label']} (attempt {folder.name})",
        "mlflow.source.name": plan["work_dir"],
        "mlflow.source.type": "PROJECT",
        "mlflow.project.entryPoint": plan["entry_point"],
        "mlflow.project.backend": "rlsched",
        "rlsched.attempt": folder.name,
    }
    nested = client.create_run(plan["experiment_id"], tags=tags)
    run_id: str = nested.info.run_id
    client.log_batch(run_id, params=[Param(k, v) for k, v in plan["recorded_params"].items()])
    client.set_tag(plan["run_id"], "rlsched.retry_run_id", run_id)
    return run_id


def _report(folder: Path, line: dict[str, Any]) -> None:
    with open(folder / "report.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **line}) + "\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
