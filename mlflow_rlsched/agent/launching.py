"""From a claimed task to an attempt that a shim can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.memory import tree_cap
from mlflow_rlsched.agent.tuning import resumed_setting
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.devices.demand import DEVICE_LIMIT, UNLIMITED, gpus_held, memory_cap
from mlflow_rlsched.devices.interface import Device, Inventory
from mlflow_rlsched.devices.locks import lock_dir, request_for
from mlflow_rlsched.executors.local import LocalExecutor
from mlflow_rlsched.store import Attempt, Task

UNUSED_BYTES = 256 * 2**20
"""Memory that a process may reserve above its cap: stacks of threads, arenas and the like, which
are mostly never touched (about 100 MB of a training with torch and MLflow)."""

MEMORY_CAP = "RLSCHED_MEMORY_CAP_BYTES"
"""Variable of an attempt with a cap: most memory of each device that it may use."""


def launch(
    executor: LocalExecutor,
    task: Task,
    attempt: Attempt,
    config: RunConfig,
    inventory: Inventory,
    agent: AgentFiles,
) -> Path:
    """Write the attempt's directory and start its shim.

    Returns:
        The attempt's directory.

    Raises:
        OSError: The run directory cannot be written (full disk, deleted).
    """
    run_dir = Path(task.spec.run_dir)
    (run_dir / "environment.json").stat()  # a directory that was deleted is not made anew
    folder = protocol.attempt_dir(run_dir, attempt.number)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (run_dir / "checkpoints").mkdir(exist_ok=True, mode=0o700)
    by_id = {device.id: device for device in inventory.devices()}
    devices = [by_id[share.device] for share in attempt.devices if share.device in by_id]
    locks = [request_for(by_id[s.device], s.amount) for s in attempt.devices if s.device in by_id]
    nested = task.spec.parent_attempt_dir is not None
    gpus = gpus_held(config, nested, inventory.kind, len(attempt.devices))
    env = _environment(task, attempt, config, folder, devices, inventory, gpus)
    memory = _host_memory(config, devices, gpus)
    container = None
    if task.spec.docker:
        container = f"rlsched-{task.run_id}-{attempt.number}"
    changed = (
        task.batch_size is not None
        and config.batch_size.param is not None
        and not _takes_directives(run_dir, attempt.number - 1)
    )
    if task.spec.command is not None and not changed:
        argv, cwd = ["bash", "-c", task.spec.command], task.spec.work_dir
    else:
        plan = _plan(task, folder, changed, container, devices, memory)
        protocol.write_json(folder / "launch.json", plan)
        if container is not None:
            _write_env_file(folder / "docker.env", env, plan["gpus"])
        argv = [task.spec.executable, "-m", "mlflow_rlsched.executors.launch", str(folder)]
        cwd = str(folder)  # not the project's, whose modules could hide MLflow's
    setting = resumed_setting(task, config)
    protocol.Directive(
        attempt=attempt.number,
        batch_size=setting.batch_size,
        lr_scale=setting.lr_scale,
        gpus=gpus,
        reason=task.message if task.exit_reason == "oom" else "",
    ).write(folder)
    spec = protocol.AttemptSpec(
        run_id=task.run_id,
        attempt=attempt.number,
        argv=argv,
        cwd=cwd,
        env=env,
        locks=[asdict(lock) for lock in locks],
        lock_dir=str(lock_dir()),
        grace_s=config.grace_s,
        parent_attempt_dir=task.spec.parent_attempt_dir,
        container=container,
        agent_argv=agent.argv(),
        agent_dir=str(agent.folder),
        data_limit_bytes=None if memory is None or container else memory + UNUSED_BYTES,
    )
    return executor.launch(run_dir, spec)


def _environment(
    task: Task,
    attempt: Attempt,
    config: RunConfig,
    folder: Path,
    devices: Sequence[Device],
    inventory: Inventory,
    gpus: int,
) -> dict[str, str]:
    run_dir = Path(task.spec.run_dir)
    limit = task.spec.device_limit
    env = {
        "MLFLOW_RUN_ID": task.run_id,
        "MLFLOW_EXPERIMENT_ID": task.spec.experiment_id,
        # We log the readings of the leased devices under the same names.
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        "RLSCHED_RUN_DIR": str(run_dir),
        "RLSCHED_ATTEMPT": str(attempt.number),
        "RLSCHED_ATTEMPT_DIR": str(folder),
        "RLSCHED_CHECKPOINT_DIR": str(run_dir / "checkpoints"),
        "RLSCHED_NUM_GPUS": str(gpus),
        "RLSCHED_CFG_STORE": config.store,
        DEVICE_LIMIT: UNLIMITED if limit is None else ",".join(limit),
    }
    caps = [memory_cap(config, device) for device in devices] or [memory_cap(config, None)]
    if known := [cap for cap in caps if cap is not None]:
        env[MEMORY_CAP] = str(int(min(known)))
    if task.spec.parent_attempt_dir is None:
        env.update(inventory.environment(devices, len(devices)))
    return env


def _host_memory(config: RunConfig, devices: Sequence[Device], gpus: int) -> int | None:
    """Most memory of the host that a training without accelerators may use, bytes."""
    if any(device.kind != "cpu" for device in devices):
        return None
    cap = tree_cap(config, gpus)
    return None if cap is None else int(cap)


def _takes_directives(run_dir: Path, number: int) -> bool:
    """Whether the training said in an earlier attempt that it can change its batch size."""
    reports = protocol.ReportReader(protocol.attempt_dir(run_dir, number) / "report.jsonl").poll()
    return any(r.event == "hello" and "batch_size" in r.can for r in reports)


def _plan(
    task: Task,
    folder: Path,
    changed: bool,
    container: str | None,
    devices: Sequence[Device],
    memory: int | None,
) -> dict[str, Any]:
    params = dict(task.spec.params)
    recorded = dict(task.spec.recorded_params)
    if changed:
        name = task.spec.config["batch_size"]["param"]
        params[name] = recorded[name] = str(task.batch_size)
    return {
        "run_id": task.run_id,
        "experiment_id": task.spec.experiment_id,
        "label": task.spec.label,
        "work_dir": task.spec.work_dir,
        "entry_point": task.spec.entry_point,
        "params": params,
        "recorded_params": recorded,
        "changed": changed,
        "project_env": dict(task.spec.project_env),
        "docker": container is not None,
        "container": container,
        "memory": memory if container is not None else None,
        "env_file": str(folder / "docker.env"),
        "run_dir": task.spec.run_dir,
        "gpus": [device.id for device in devices if device.kind != "cpu"],
    }


def _write_env_file(path: Path, env: Mapping[str, str], gpus: Sequence[str]) -> None:
    """Variables for ``docker run --env-file``: those of the attempt, not of the submitter."""
    # Images ask NVIDIA's runtime for all devices, where Docker uses it without being told to.
    values = {**env, "NVIDIA_VISIBLE_DEVICES": ",".join(gpus) or "void"}
    lines = [f"{name}={value}" for name, value in values.items() if "\n" not in value]
    path.touch(0o600)
    path.write_text("\n".join(lines) + "\n")
